"""The check before timing: what must be finite, and what the float32 step of a 16-bit case is."""

import dataclasses
import math
from typing import Any

import pytest

from benchmarks.cases.case import Case
from benchmarks.cases.failures import NonFinite
from benchmarks.run.measure import require_finite
from benchmarks.run.references import float32_case
from strategies import PRESETS, MeshSpec

CASE = Case("zero1", MeshSpec.parse("data=8"), "nano", PRESETS["nano"], 16, 1, "bfloat16", "dots")


def metrics(loss: float = 4.5, grad_norm: float = 1.0, loss_scale: float = 1.0) -> list[Any]:
    """The metrics of two steps, of which the last is as given."""
    return [
        {"loss": 5.0, "grad_norm": 2.0, "loss_scale": 1.0},
        {"loss": loss, "grad_norm": grad_norm, "loss_scale": loss_scale},
    ]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_must_be_finite(bad: float) -> None:
    """A NaN or infinite loss or gradient norm raises NonFinite."""
    require_finite(metrics(), "in the first steps")
    for run in (metrics(loss=bad), metrics(grad_norm=bad)):
        with pytest.raises(NonFinite, match=rf"{bad}.* in the first steps"):
            require_finite(run, "in the first steps")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_step_that_overflows_may_be_skipped_but_not_among_the_first(bad: float) -> None:
    """A float16 step that overflows is accepted where steps may be skipped; otherwise the advice is a smaller scale.

    It is not accepted at loss scale 1, which cannot be halved, nor if the loss itself is not finite.
    """
    skipped = metrics(grad_norm=bad, loss_scale=8.0)
    require_finite(skipped, "after the timed blocks", may_skip=True)
    with pytest.raises(NonFinite, match=r"in the first steps: gradients overflow with --option loss_scale=8; take a"):
        require_finite(skipped, "in the first steps")
    for run in (metrics(grad_norm=bad), metrics(loss=bad, grad_norm=bad, loss_scale=8.0)):
        with pytest.raises(NonFinite, match=rf"gradient norm {bad} after the timed blocks$"):
            require_finite(run, "after the timed blocks", may_skip=True)


def test_a_16_bit_case_is_compared_in_float32_on_the_same_mesh() -> None:
    """Its float32 case keeps mesh and options, but those that float32 does not have; a float32 case has none."""
    options = ("master", "float32"), ("unroll", 2)
    twin = float32_case(dataclasses.replace(CASE, options=options))
    assert twin
    assert (twin.dtype, twin.mesh, twin.training().master, twin.training().unroll) == ("float32", CASE.mesh, "none", 2)
    assert float32_case(twin) is None
