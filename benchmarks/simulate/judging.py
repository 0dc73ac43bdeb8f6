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
    from scipy.stats import spearmanr  # takes as long to import as most commands to run

    guess, truth = np.asarray(predicted, float), np.asarray(measured, float)
    error = guess / truth - 1
    ranked = len(guess) >= LEAST_RANKED and np.ptp(guess) > 0 and np.ptp(truth) > 0
    return Errors(
        len(guess),
        float(np.abs(error).mean()),
        float(np.median(np.abs(error))),
        float(error.mean()),
        float(spearmanr(guess, truth).statistic) if ranked else None,  # pyright: ignore[reportAttributeAccessIssue]
        float(truth[guess.argmin()] / truth.min() - 1),
    )
