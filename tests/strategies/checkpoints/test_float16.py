"""Checkpoints in float16: the loss scale and the steps since it changed go where the weights go."""

import jax.numpy as jnp
import numpy as np
import pytest

from strategies.checkpoints import restore, save
from tests.strategies.checkpoints.variants import resumed, step_of
from tests.strategies.equality import ROUNDING, TRAIN, assert_equal, build, initial, single
from tests.strategies.sampling import nightly

FLOAT16 = {"dtype": "float16", "loss_scale_growth_steps": 2}
"""The scale grows with every second step, so a run that forgot one of the two would have another scale."""


def float16(strategy, mesh):
    """The step of a small model in float16."""
    return build(strategy, mesh, **FLOAT16)


@pytest.mark.parametrize(("strategy", "mesh"), [("tensor", "tensor=8"), *nightly(("pipeline", "pipeline=4"))])
def test_the_loss_scale_goes_where_the_weights_go(strategy, mesh, tmp_path):
    """Saved under one strategy and restored under another, the scale and the count of good steps are the same."""
    before, after = float16("fsdp", "fsdp=8"), float16(strategy, mesh)
    state = initial(before)
    optimizer = state.optimizer._replace(loss_scale=jnp.float32(2**9), good_steps=jnp.int32(7))
    save(before, state._replace(optimizer=optimizer), tmp_path).wait()
    restored = restore(after, tmp_path).optimizer
    assert (float(restored.loss_scale), int(restored.good_steps)) == (2**9, 7)
    assert restored.loss_scale.sharding == after.state.optimizer.loss_scale.sharding


def test_a_scale_begins_anew_in_float16_and_is_dropped_elsewhere(tmp_path):
    """A float32 step has no loss scale, and what it saves has none: from there float16 begins with that of its own."""
    half, whole = float16("fsdp", "fsdp=8"), step_of("fsdp")
    state = initial(half)
    optimizer = state.optimizer._replace(loss_scale=jnp.float32(2**9), good_steps=jnp.int32(7))
    save(half, state._replace(optimizer=optimizer), tmp_path / "float16").wait()
    without = restore(whole, tmp_path / "float16")
    np.testing.assert_array_equal(without.params["embedding"]["token_VD"], state.params["embedding"]["token_VD"])
    save(whole, without, tmp_path / "float32").wait()
    again = restore(half, tmp_path / "float32").optimizer
    assert (float(again.loss_scale), int(again.good_steps)) == (TRAIN.loss_scale, 0)


@pytest.mark.parametrize(
    ("before", "after"),
    nightly((("fsdp", "fsdp=8"), ("tensor", "tensor=8")), (("data", "data=8"), ("single", "data=1"))),
)
def test_training_goes_on_in_float16(before, after, tmp_path):
    """Three steps, save, restore elsewhere, and three steps compute what six steps on one device compute."""
    mine, state = resumed(float16(*before), float16(*after), tmp_path, 3, 3)
    assert_equal(mine, single(steps=6, **FLOAT16), ROUNDING["float16"])
    assert float(state.optimizer.loss_scale) == TRAIN.loss_scale * 2**3
