"""The check against `single` accepts rounding and nothing else."""

import dataclasses
import math

import numpy as np
import pytest

from benchmarks.cases.case import Case
from benchmarks.cases.failures import Mismatch, NonFinite
from benchmarks.run.equality import Trajectory, rounding_bound
from strategies import PRESETS, MeshSpec

CASE = Case("fsdp", MeshSpec.parse("fsdp=8"), "nano", PRESETS["nano"], 16, 1, "float32", "dots")
SINGLE = Trajectory(losses=(5.5, 5.0, 4.5), grad_norms=(2.0, 1.5, 1.0), loss_scales=(1.0, 1.0, 1.0))


def scaled(losses: float = 1.0, grad_norms: float = 1.0, loss_scale: float = 1.0) -> Trajectory:
    """The reference's first steps, with the last loss and gradient norm scaled, and its loss scale."""
    return Trajectory(
        losses=(*SINGLE.losses[:-1], SINGLE.losses[-1] * losses),
        grad_norms=(*SINGLE.grad_norms[:-1], SINGLE.grad_norms[-1] * grad_norms),
        loss_scales=(1.0, 1.0, loss_scale),
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rounding_passes_and_twice_the_bound_does_not(dtype: str) -> None:
    """Deviations below the rounding bound pass, those of twice the bound raise Mismatch, in loss or gradient norm."""
    case = dataclasses.replace(CASE, dtype=dtype)
    bound = 3 * rounding_bound(case)
    scaled(1 + 0.9 * bound, 1 - 0.9 * bound).require_equal(SINGLE, case)
    with pytest.raises(Mismatch, match=r"step 3: loss 4\.\d+ where one device has 4.5, .* apart; rounding explains"):
        scaled(losses=1 + 2 * bound).require_equal(SINGLE, case)
    with pytest.raises(Mismatch, match=r"step 3: gradient norm"):
        scaled(grad_norms=1 - 2 * bound).require_equal(SINGLE, case)


def test_bound_is_tight_enough_to_see_a_lost_term() -> None:
    """In float32 the bound is below one token's share of the loss, so a lost token is seen."""
    tokens = CASE.batch_size * CASE.config.sequence
    assert 3 * rounding_bound(CASE) < 1 / tokens


def test_bound_covers_reordered_sums() -> None:
    """Float32 sums as many and as long as the model's, each in two random orders, differ by less than the bound."""
    rng = np.random.default_rng(0)
    terms = CASE.batch_size * CASE.config.sequence
    error = 0.0
    for _ in range(2 * (4 * CASE.config.layers + 2)):
        values = rng.normal(size=terms).astype(np.float32) ** 2
        orders = [np.cumsum(rng.permutation(values), dtype=np.float32)[-1] for _ in range(2)]
        error += float(orders[0]) / float(orders[1]) - 1
    assert 0 < abs(error) < rounding_bound(CASE)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_must_be_finite(bad: float) -> None:
    """A NaN or infinite loss or gradient norm raises NonFinite."""
    SINGLE.require_finite("in the first steps")
    for run in (scaled(losses=bad), scaled(grad_norms=bad)):
        with pytest.raises(NonFinite, match=rf"{bad}.* in the first steps"):
            run.require_finite("in the first steps")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_step_that_overflows_may_be_skipped_but_not_among_the_first(bad: float) -> None:
    """A float16 step that overflows is accepted where steps may be skipped; otherwise the advice is a smaller scale.

    It is not accepted at loss scale 1, which cannot be halved, nor if the loss itself is not finite.
    """
    skipped = scaled(grad_norms=bad, loss_scale=8.0)
    skipped.require_finite("after the timed blocks", may_skip=True)
    with pytest.raises(NonFinite, match=r"in the first steps: gradients overflow with --option loss_scale=8; take a"):
        skipped.require_finite("in the first steps")
    for run in (scaled(grad_norms=bad), scaled(losses=bad, grad_norms=bad, loss_scale=8.0)):
        with pytest.raises(NonFinite, match=rf"gradient norm {bad} after the timed blocks$"):
            run.require_finite("after the timed blocks", may_skip=True)
