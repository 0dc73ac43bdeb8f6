"""Variants of a step without its communication send nothing and do all other work."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from benchmarks.program.compiled import read_program
from benchmarks.run.variants import WithoutCommunication
from strategies import STRATEGIES, GPTConfig, MeshSpec, Step, TrainConfig
from tests.strategies import quick
from tests.strategies.sampling import nightly

CONFIG = GPTConfig(layers=4, embed=16, heads=4, vocab=256, sequence=16)
SPREADS = {
    "data": "data=4",
    "fsdp": "fsdp=4",
    "tensor": "tensor=4",
    "context": "context=4",
    "pipeline": "pipeline=4",
    "three_d": "data=2,pipeline=2,tensor=2",
}
ALONE, WAITING, SIDE_BY_SIDE = (
    WithoutCommunication(),
    WithoutCommunication(synchronizes=True),
    WithoutCommunication(synchronizes=True, aligned_stages=True),
)


@cache
def built(strategy: str) -> Step:
    """A small step, with microbatches where it has stages."""
    mesh = MeshSpec.parse(SPREADS[strategy])
    train = TrainConfig(batch_size=8, microbatches=4 if "pipeline" in mesh.sizes else 1)
    return STRATEGIES[strategy].build(CONFIG, mesh, train, jax.devices()[: mesh.size])


@cache
def compiled(strategy: str, silence: WithoutCommunication | None = None) -> tuple[Any, dict[str, Any]]:
    """A compiled step or variant, and the facts of its program."""
    step = built(strategy)
    update = jax.jit(silence(step.update), donate_argnums=0) if silence else step.update
    program = quick.compiled(update.lower(step.state, step.batch))
    return program, dict(read_program(program.as_text() or "", step.mesh.shape).as_row())


@pytest.mark.parametrize("strategy", ["pipeline", *nightly("data", "fsdp", "tensor", "context", "three_d")])
def test_nothing_but_the_communication_is_left_out(strategy: str) -> None:
    """Without communication a step sends nothing, with waits alone under 2%, and both do all of its FLOPs.

    Waits go over the same axes. Both take and return arrays of the step's shapes and dtypes, with finite values.
    """
    whole, alone, waiting = (compiled(strategy, silence)[1] for silence in (None, ALONE, WAITING))
    assert alone["compiled.flops"] == waiting["compiled.flops"] == whole["compiled.flops"] > 0
    assert alone["compiled.sent_bytes"] == 0
    assert 0 < waiting["compiled.sent_bytes"] < whole["compiled.sent_bytes"] / 50
    axes = [
        {key.rpartition(".")[2] for key, sent in does.items() if "bytes." in key and sent} for does in (whole, waiting)
    ]
    assert axes[0] == axes[1]
    step, key = built(strategy), jax.random.key(0)
    init, shapes = quick.compiled(step.init.lower(key)), jax.tree.map(lambda x: (x.shape, x.dtype), step.state)
    for silence in (ALONE, WAITING):
        program, _ = compiled(strategy, silence)
        state, metrics = program(init(key), step.place(np.ones(step.batch.shape, int)))
        assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == shapes
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state, metrics)))


@pytest.mark.factorisations
def test_side_by_side_stages_do_the_same_work() -> None:
    """Stages that do not wait for first results have equal FLOPs, and still communicate at every tick."""
    (_, waiting), (_, aligned_stages) = compiled("pipeline", WAITING), compiled("pipeline", SIDE_BY_SIDE)
    assert aligned_stages["compiled.flops"] == waiting["compiled.flops"]
    permutes = "compiled.collectives.permute.in_loops"
    assert aligned_stages[permutes] == waiting[permutes] == compiled("pipeline")[1][permutes] > 0


def test_one_device_computes_what_it_did() -> None:
    """Without communication there is nothing to leave out: the gradients are unchanged."""
    step = STRATEGIES["single"].build(CONFIG, MeshSpec.parse("data=1"), TrainConfig(batch_size=2), jax.devices()[:1])
    state, batch = step.init(jax.random.key(0)), step.place(np.ones(step.batch.shape, int))
    expected = quick.compiled(step.gradients.lower(state, batch))(state, batch)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(ALONE(step.gradients))(state, batch), expected)


def on_two(function: Callable[[jax.Array], jax.Array], silence: WithoutCommunication, check: bool = True) -> np.ndarray:
    """The result of a function on two devices that hold [0, 1] and [2, 3]."""
    mesh = Mesh(np.array(jax.devices()[:2]), "pipeline")
    spread = jax.shard_map(function, mesh=mesh, in_specs=P("pipeline"), out_specs=P("pipeline"), check_vma=check)
    return np.asarray(jax.jit(silence(spread))(jnp.arange(4.0)))


swap = partial(lax.ppermute, axis_name="pipeline", perm=[(0, 1), (1, 0)])
exchange = partial(lax.all_to_all, axis_name="pipeline", split_axis=0, concat_axis=1, tiled=True)
gather = partial(lax.all_gather, axis_name="pipeline", tiled=True)


@pytest.mark.parametrize(
    ("function", "alone", "waiting"),
    [
        (lambda x: lax.pcast(lax.psum(x, "pipeline"), "pipeline", to="varying"), [0, 1, 2, 3], [2, 1, 2, 3]),
        (lambda x: lax.pcast(lax.pmax(x, "pipeline"), "pipeline", to="varying"), [0, 1, 2, 3], [2, 1, 2, 3]),
        (swap, [0, 1, 2, 3], [2, 1, 0, 3]),
        (gather, [0, 1, 0, 1, 2, 3, 2, 3], [2, 1, 0, 1, 2, 3, 2, 3]),
        (lambda x: lax.all_gather(x, "pipeline").reshape(-1), [0, 1, 0, 1, 2, 3, 2, 3], [2, 1, 0, 1, 2, 3, 2, 3]),
        (lambda x: lax.psum_scatter(x, "pipeline", tiled=True), [0, 2], [2, 2]),
        (lambda x: lax.psum_scatter(x, "pipeline")[None], [0, 2], [2, 2]),
        (lambda x: lax.all_to_all(x, "pipeline", 0, 0, tiled=True), [0, 1, 2, 3], [2, 1, 2, 3]),
        (lambda x: exchange(x[:, None]).reshape(-1), [0, 1, 2, 3], [2, 1, 2, 3]),
        (lambda x: lax.all_to_all(x[:, None], "pipeline", 0, 1).reshape(-1), [0, 1, 2, 3], [2, 1, 2, 3]),
        (lambda x: lax.scan(lambda y, _: (swap(y), None), x, None, 3)[0], [0, 1, 2, 3], [2, 1, 0, 3]),
        (lambda x: lax.cond(x.sum() < 9, swap, lambda y: y + 1, x), [0, 1, 2, 3], [2, 1, 0, 3]),
        (lambda x: jax.jit(jax.checkpoint(lambda y: jnp.sin(swap(y)) * 0 + y))(x), [0, 1, 2, 3], [0, 1, 2, 3]),
        (lambda x: x + lax.axis_index("pipeline"), [0, 1, 3, 4], [0, 1, 3, 4]),
    ],
)
def test_stand_ins_use_a_devices_own_numbers(
    function: Callable[[jax.Array], jax.Array], alone: list, waiting: list
) -> None:
    """Each collective's stand-in uses a device's own numbers; if it waits, one element comes from the others."""
    np.testing.assert_array_equal(on_two(function, ALONE), alone)
    np.testing.assert_array_equal(on_two(function, WAITING), waiting)


def test_side_by_side_all_are_the_first_stage() -> None:
    """Side by side every stage has pipeline index 0."""
    np.testing.assert_array_equal(on_two(lambda x: x + lax.axis_index("pipeline"), SIDE_BY_SIDE), [0, 1, 2, 3])


def test_collectives_of_the_compiler_are_refused() -> None:
    """A step that the compiler partitions is refused, because its collectives cannot be left out."""
    mesh = MeshSpec.parse("data=2")
    step = STRATEGIES["auto"].build(CONFIG, mesh, TrainConfig(batch_size=8), jax.devices()[:2])
    with pytest.raises(ValueError, match="that follow from shardings cannot be left out"):
        jax.eval_shape(ALONE(step.update), step.state, step.batch)


def test_unknown_collective_is_refused() -> None:
    """A collective without a stand-in raises an error that names it."""
    with pytest.raises(ValueError, match="no replacement for the collective pbroadcast"):
        on_two(lambda x: lax.pbroadcast(x, ("pipeline",), 0), ALONE)
