"""Errors of predictions: how far they are off, whether they rank runs as measured, and what the best choice loses."""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LEAST_RANKED = 3
"""With fewer runs a rank correlation says nothing."""
NEAR = 0.1
"""Errors of at most this fraction are near."""


class Errors(NamedTuple):
    """Errors of the predictions of several runs, as fractions: mean and median are of absolute errors.

    The bias is above zero if predictions are too long, and `near` is the share of the runs whose error is at most 10%.
    The rank correlation is Spearman's; None with few runs. The regret is how much longer the run takes that is
    predicted to be the fastest than the fastest.
    """

    runs: int
    mean: float
    median: float
    bias: float
    near: float
    rank_correlation: float | None
    regret: float

    @property
    def rank_text(self) -> str:
        """The rank correlation in a table; empty if there is none."""
        return "" if self.rank_correlation is None else f"{self.rank_correlation:.2f}"


def errors_of(predicted: Sequence[float], measured: Sequence[float]) -> Errors:
    """Errors of predictions, in the order of the measured seconds.

    >>> errors_of([1.1, 2.0, 3.3], [1.0, 2.0, 3.0])._replace(mean=0, bias=0, median=0, near=1)
    Errors(runs=3, mean=0, median=0, bias=0, near=1, rank_correlation=1.0, regret=0.0)
    """
    signed = [guess / truth - 1 for guess, truth in zip(predicted, measured, strict=True)]
    absolute = [abs(error) for error in signed]
    ranked = len(signed) >= LEAST_RANKED and len({*predicted}) > 1 and len({*measured}) > 1
    fastest = min(range(len(signed)), key=lambda place: predicted[place])
    return Errors(
        len(signed),
        statistics.fmean(absolute),
        statistics.median(absolute),
        statistics.fmean(signed),
        statistics.fmean(error <= NEAR for error in absolute),
        statistics.correlation(ranks(predicted), ranks(measured)) if ranked else None,
        measured[fastest] / min(measured) - 1,
    )


def quantile(sizes: Mapping[str, Sequence[float]], coverage: float) -> float:
    """The size that covers a share of the errors of a new source, if it is as the others.

    Runs of a source resemble each other, so each source counts as much. The new source does, too, and its errors may be
    of any size: where the others do not make up the share, it is the largest that is known.

    Args:
        sizes: source -> sizes of its errors.
        coverage: the share.

    >>> quantile({"one": [0.1, 0.2], "other": [0.3, 0.4]}, 0.5), quantile({"one": [0.1, 0.2]}, 0.9)
    (0.3, 0.2)
    """
    weighted = sorted((size, 1 / len(own) / (len(sizes) + 1)) for own in sizes.values() for size in own)
    reached = 0.0
    for size, weight in weighted:
        reached += weight
        if reached >= coverage - 1e-9:
            return size
    return weighted[-1][0]


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value, from 1; equal values share the mean of theirs.

    >>> ranks([5.0, 3.0, 5.0])
    [2.5, 1.0, 2.5]
    """
    return [sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values]
