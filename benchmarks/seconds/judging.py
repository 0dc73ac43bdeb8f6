"""Errors of predictions: how far they are off, whether they rank runs as measured, and what the best choice loses."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LEAST_RANKED = 3
"""With fewer runs a rank correlation says nothing."""


class Errors(NamedTuple):
    """Errors of the predictions of several runs. All but `runs` and `rank_correlation` are fractions.

    Attributes:
        runs: number of runs.
        mean: mean absolute error.
        median: median absolute error.
        bias: mean error; above zero if predictions are too long.
        rank_correlation: Spearman's; None with few runs.
        regret: how much longer the run takes that is predicted to be the fastest than the fastest.
    """

    runs: int
    mean: float
    median: float
    bias: float
    rank_correlation: float | None
    regret: float


def errors_of(predicted: Sequence[float], measured: Sequence[float]) -> Errors:
    """Errors of predictions, in the order of the measured seconds.

    >>> errors_of([1.1, 2.0, 3.3], [1.0, 2.0, 3.0])._replace(mean=0, bias=0, median=0)
    Errors(runs=3, mean=0, median=0, bias=0, rank_correlation=1.0, regret=0.0)
    """
    guess, truth = np.asarray(predicted, float), np.asarray(measured, float)
    error = guess / truth - 1
    ranked = len(guess) >= LEAST_RANKED and np.ptp(guess) > 0 and np.ptp(truth) > 0
    return Errors(
        len(guess),
        float(np.abs(error).mean()),
        float(np.median(np.abs(error))),
        float(error.mean()),
        rank_correlation(guess, truth) if ranked else None,
        float(truth[guess.argmin()] / truth.min() - 1),
    )


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Spearman's rank correlation; equal values share the mean of their ranks.

    >>> float(round(rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([3.0, 1.0, 2.0])), 3))
    -0.5
    """
    return float(np.corrcoef(ranks(first), ranks(second))[0, 1])


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1; equal values share the mean of theirs.

    >>> ranks(np.array([10.0, 20.0, 10.0])).tolist()
    [1.5, 3.0, 1.5]
    """
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum()
    return (ends - (counts - 1) / 2)[inverse]
