"""Which cases of a law run every day: a sample. The whole grid runs with `-m factorisations`."""

from typing import Any

import pytest

SAMPLE = "single", "zero1", "fsdp", "pipeline", "three_d", "auto"
"""A strategy for each kind of step: one device, replicas with a sharded update, gathered weights, stages, several axes
(replicas, stages and split dims), and the compiler's."""


def unless_sampled(name: str, *rest: Any) -> Any:
    """A case that runs every day if its strategy is in the sample."""
    return pytest.param(name, *rest) if name in SAMPLE else nightly((name, *rest))[0]


def nightly(*cases: Any) -> list[Any]:
    """Cases that run with the factorisations only. A case is a tuple of arguments, or a single argument."""
    whole = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=pytest.mark.factorisations) for case in whole]
