"""Mistakes in the use of the public interface raise errors with the numbers and the way out."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from strategies import PRESETS, STRATEGIES, GPTConfig, Infeasible, MeshSpec, TrainConfig
from strategies.backends.device_mesh import device_mesh
from strategies.costs.predict import predict
from strategies.pipelining.schedules import SCHEDULES
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


def test_a_large_mesh_is_refused_with_a_way_to_more_devices() -> None:
    """A mesh larger than the devices there are raises Infeasible and says how to get more virtual ones."""
    message = r'mesh data=16 needs 16 devices, and JAX has 8; .*JAX_NUM_CPU_DEVICES=16 .*"jax_num_cpu_devices", 16\)'
    with pytest.raises(Infeasible, match=message):
        device_mesh(MeshSpec.parse("data=16"), ("data",))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("zero3", "'zero3' is not a strategy; use one of single, .*; did you mean fsdp"),
        ("DDP", "did you mean data"),
        ("pipelin", "did you mean pipeline"),
        ("x", "'x' is not a strategy; use one of single, data, [a-z0-9_, ]*$"),
    ],
)
def test_an_unknown_strategy_is_told_those_that_there_are(name: str, words: str) -> None:
    """An unknown strategy raises a KeyError that lists those there are and suggests the one meant."""
    with pytest.raises(KeyError, match=words):
        STRATEGIES[name]
    assert name not in STRATEGIES
    assert STRATEGIES.get(name) is None


def test_what_is_no_model_or_mesh_is_refused() -> None:
    """A wrong type for the model or the mesh is refused, and the message says what to pass."""
    with pytest.raises(TypeError, match=r"config must be a GPTConfig, got str 'nano'; use PRESETS\['nano'\]"):
        STRATEGIES["data"].build("nano", "data=8", TRAIN)  # type: ignore[arg-type]
    with pytest.raises(Infeasible, match="mesh 8; pass a MeshSpec, or a string such as 'data=2,tensor=4'"):
        STRATEGIES["data"].build(TINY, 8, TRAIN)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match=r"'nanno' is not a preset; use one of .*; did you mean nano"):
        PRESETS["nanno"]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.full((8, 9), 256), "token ids from 256 to 256; with vocab=256 they can be 0 to 255"),
        (np.full((8, 9), -1), "token ids from -1 to -1"),
        (np.full((8, 9), 2**40), "token ids from 1099511627776"),
        (np.zeros((8, 9), np.float32), "tokens of dtype float32; pass integers"),
    ],
)
def test_tokens_beyond_the_vocabulary_are_refused(tokens: np.ndarray, message: str) -> None:
    """Token ids outside of the vocabulary are refused, because JAX would clamp them silently."""
    with pytest.raises(ValueError, match=message):
        STRATEGIES["data"].build(TINY, "data=8", TRAIN).place(tokens)


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


def test_what_is_no_key_is_refused() -> None:
    """A key of another type is refused in one line."""
    with pytest.raises(Infeasible, match=r"^the key is '0'; pass one, such as jax.random.key\(0\)$"):
        STRATEGIES["data"].build(TINY, "data=8", TRAIN).init("0")  # type: ignore[arg-type]


def test_what_is_no_number_of_devices_is_refused() -> None:
    """Meshes and microbatches are of counts, and a mesh can be its text here, too."""
    fsdp = STRATEGIES["fsdp"]
    for wrong in ("8", 2.5, 0):
        with pytest.raises(Infeasible, match=r"devices=.*; it must be a whole number of at least 1"):
            fsdp.meshes(wrong)  # type: ignore[arg-type]
    assert fsdp.default_microbatches("fsdp=2", 8) == 1
    with pytest.raises(Infeasible, match="batch_size=0; it must be a whole number of at least 1"):
        fsdp.default_microbatches("fsdp=2", 0)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("what", "sizes"), [("stages", (0, 2, 1)), ("microbatches", (2, 0, 1)), ("chunks", (2, 2, 0))])
def test_a_schedule_of_nothing_is_refused(name: str, what: str, sizes: tuple[int, int, int]) -> None:
    """A schedule of zero stages, microbatches or chunks raises Infeasible."""
    with pytest.raises(Infeasible, match=f"schedule {name} of {what}=0; it must be a whole number of at least 1"):
        SCHEDULES[name](*sizes)
