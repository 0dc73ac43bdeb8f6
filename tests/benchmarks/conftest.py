"""Fixtures that tests of the benchmarks share."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.cases.case import Case
from benchmarks.training.plan import Plan
from strategies import Step, TrainConfig
from tests.benchmarks.short_blocks import shorten


@pytest.fixture(scope="module")
def _short_blocks() -> Iterator[None]:
    """Shorten timed blocks, for files in which nothing depends on how long a step takes."""
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        yield


@pytest.fixture(scope="module")
def _built_once() -> Iterator[None]:
    """Build each step once in a file: JAX then compiles it once, however often it is prepared or trained."""
    build: Any = Plan.build

    @cache
    def built(case: Case, train: TrainConfig) -> Step:
        step = build(SimpleNamespace(case=case, train=train))
        # Strategies have options of their own, unless XLA_FLAGS has them, as in tests.
        return replace(step, xla_options={"xla_cpu_enable_fast_math": False})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Case, "build", cache(Case.build))
        patch.setattr(Plan, "build", lambda plan: built(plan.case, plan.train))
        yield
