"""Mistakes in the use of the public interface raise errors with the numbers and the way out."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from strategies import STRATEGIES, GPTConfig, MeshSpec, TrainConfig
from strategies.backends.device_mesh import device_mesh
from strategies.costs.predict import predict
from strategies.tokens import CheckedBatches

TINY = GPTConfig(layers=1, embed=8, heads=1, vocab=256, sequence=8)
TRAIN = TrainConfig(batch_size=8)


def test_a_mesh_can_be_its_text() -> None:
    """A mesh may be given as text, to a strategy and to the formulas."""
    step = STRATEGIES["fsdp"].build(TINY, "fsdp=8", TRAIN)
    assert step.mesh == STRATEGIES["fsdp"].build(TINY, MeshSpec.parse("fsdp=8"), TRAIN).mesh
    assert predict("fsdp", TINY, "fsdp=8", TRAIN) == predict("fsdp", TINY, MeshSpec.parse("fsdp=8"), TRAIN)


def test_a_small_mesh_takes_the_first_devices() -> None:
    """A mesh smaller than the devices there are takes the first ones."""
    assert list(device_mesh(MeshSpec.parse("data=1"), ("data",)).devices.flat) == jax.devices()[:1]
    assert list(device_mesh(MeshSpec.parse("data=4"), ("data",)).devices.flat) == jax.devices()[:4]


class Later:
    """A batch on the mesh whose values are not there yet, until `ready` is set; reading it earlier fails the test."""

    def __init__(self, batch: jax.Array) -> None:
        self.batch, self.ready = batch, False

    def is_deleted(self) -> bool:
        """Never."""
        return False

    def is_ready(self) -> bool:
        """Once `ready` is set."""
        return self.ready

    @property
    def addressable_shards(self) -> Any:
        """Those of the batch."""
        assert self.ready
        return self.batch.addressable_shards


@pytest.mark.parametrize("mesh", ["data=8", "data=1"])
def test_tokens_on_a_device_are_checked(mesh: str) -> None:
    """An array of JAX is checked as one of numpy is, whoever placed it: in a step, and in an evaluation."""
    step = STRATEGIES["data"].build(TINY, mesh, TRAIN)
    state, beyond = step.init(jax.random.key(0)), jnp.full((8, 9), 10**6)
    expected = step.evaluate(state.params, np.zeros((8, 9), np.int32))  # pyright: ignore[reportArgumentType]
    for tokens in (beyond, jax.device_put(beyond, step.batch.sharding)):
        for call in (lambda tokens: step.evaluate(state.params, tokens), lambda tokens: step(state, tokens)):
            with pytest.raises(ValueError, match="token ids from 1000000"):
                call(tokens)
    assert step.evaluate(state.params, jax.device_put(jnp.zeros((8, 9), jnp.int32), step.batch.sharding)) == expected


def test_a_batch_is_read_once_and_not_waited_for() -> None:
    """A batch whose values are still computed is checked at a later call; one that was checked is not read again."""
    checked, good = CheckedBatches(vocab=256), jnp.zeros((8, 9), jnp.int32)
    checked.require(good)
    bad, other = Later(jnp.full((8, 9), 256)), Later(good)
    checked.require(other)  # pyright: ignore[reportArgumentType]
    checked.require(bad)  # pyright: ignore[reportArgumentType]
    bad.ready = True
    with pytest.raises(ValueError, match="token ids from 256"):
        checked.require(good)
    other.ready = True
    checked.require(good)
    other.ready = False
    checked.require(other)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("mesh", ["fsdp=2", "fsdp=1"])
def test_a_donated_state_is_refused(mesh: str) -> None:
    """A state that was donated to a step is refused by every function of the step, before JAX ends the process."""
    step = STRATEGIES["fsdp"].build(TINY, mesh, TRAIN)
    donated, batch = step.init(jax.random.key(0)), step.place(np.zeros((8, 9), np.int32))
    state, _ = step(donated, batch)
    _, grads = step.gradients(state, batch)
    for call in (
        lambda: step(donated, batch),
        lambda: step.update(donated, batch),
        lambda: step.gradients(donated, batch),
        lambda: step.apply(donated, grads),
        lambda: step.evaluate(donated.params, batch),
    ):
        with pytest.raises(
            ValueError, match=r"are deleted, as a step deletes .*; use the state that the step returned"
        ):
            call()
    assert np.isfinite(step.evaluate(state.params, batch))
