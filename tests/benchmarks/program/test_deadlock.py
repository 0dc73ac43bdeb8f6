"""Collectives that could deadlock on virtual devices, because they are in no order, are found, and no step has any."""

import dataclasses
import functools
import os
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from benchmarks.cases.case import Case
from benchmarks.cases.failures import MayDeadlock
from benchmarks.program.compiled import read_program
from benchmarks.program.deadlock import POOL, pool_threads, require_no_deadlock
from benchmarks.run.attribution import require_safe
from benchmarks.run.compilation import Clock
from benchmarks.run.prepare import Preparation
from benchmarks.run.record import Record
from benchmarks.run.references import References
from benchmarks.run.states import RunSettings
from strategies import STRATEGIES, GPTConfig, Infeasible, MeshSpec, TrainConfig, fsdp
from strategies.backends.backend import CPU, GPU
from strategies.core.plan import Plan
from strategies.model.hooks import ONE_DEVICE, head_first
from tests.benchmarks.program.programs import BOTH, MESH, compiled, text_of

SMALL = GPTConfig(layers=8, embed=32, heads=8, vocab=256, sequence=32)


def looped(x):
    """A loop with an all-reduce in each iteration, and work that may run in other threads."""
    return lax.scan(lambda x, _: (lax.psum(jnp.tanh(x @ x.T @ x), BOTH), None), x, length=3)[0]


@pytest.mark.parametrize(
    ("function", "pairs"),
    [
        (looped, 0),
        (lambda x: looped(looped(x)), 0),
        (lambda x: lax.psum(looped(x), "data"), 0),
        (lambda x: looped(lax.psum(x, "data")), 0),
        (lambda x: looped(x) + looped(2 * x), 1),
        (lambda x: looped(x) + looped(2 * x) + looped(3 * x), 3),
    ],
    ids=["loop", "one after the other", "sum of a loop", "loop of a sum", "two side by side", "three"],
)
def test_loops_that_communicate_side_by_side_are_found(function, pairs):
    """Each pair of communicating loops of which neither depends on the other is found, and no other pair."""
    assert len(read_program(compiled(function, (8, 16)), MESH).concurrent) == pairs


def test_unordered_loops_inside_a_loop_are_found():
    """Unordered loops in the body of a loop are found, too."""

    def nested(x):
        return lax.scan(lambda x, _: (looped(x) + looped(2 * x), None), x, length=2)[0]

    assert len(read_program(compiled(nested, (8, 16)), MESH).concurrent) == 1


@pytest.mark.parametrize(
    ("pool", "threads"), [("1", 8), ("8", 8), ("20", 20), ("many", None), ("-3", None), (None, None)], ids=str
)
def test_the_pool_has_as_many_threads_as_xla_starts(pool, threads, monkeypatch):
    """One per device at least, then what PJRT_NPROC says; XLA ignores what is no number, and counts the cores."""
    monkeypatch.setenv(POOL, pool) if pool else monkeypatch.delenv(POOL, raising=False)
    assert pool_threads(8) == (threads or max(8, len(os.sched_getaffinity(0))))


def test_a_pool_with_threads_for_all_collectives_in_flight_runs_what_a_smaller_one_may_not(monkeypatch):
    """Three loops side by side on two devices need six threads: with five they are refused, by the number needed."""
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    text = compiled(lambda x: looped(x) + looped(2 * x) + looped(3 * x), (8, 16))
    concurrent = read_program(text, MESH).concurrent
    monkeypatch.setattr("benchmarks.program.deadlock.pool_threads", lambda devices: 5)
    with pytest.raises(MayDeadlock, match="or start with PJRT_NPROC=6; there are 5 threads"):
        require_no_deadlock(mesh, concurrent)
    monkeypatch.setattr("benchmarks.program.deadlock.pool_threads", lambda devices: 6)
    require_no_deadlock(mesh, concurrent)


@pytest.fixture
def _small_pool(monkeypatch):
    """A pool with one thread per device, on any machine."""
    monkeypatch.setattr("benchmarks.program.deadlock.pool_threads", lambda devices: 2)


@pytest.mark.usefixtures("_small_pool")
def test_a_variant_that_may_deadlock_is_not_run():
    """An attribution variant with unordered collectives is refused on several virtual devices."""
    text = compiled(lambda x: looped(x) + looped(2 * x), (8, 16))
    program: Any = SimpleNamespace(as_text=lambda: text)
    with pytest.raises(MayDeadlock, match="virtual CPU devices may deadlock; make one collective depend on the other"):
        require_safe(jax.make_mesh((2,), ("data",), devices=jax.devices()[:2]), program)
    assert require_safe(jax.make_mesh((1,), ("data",), devices=jax.devices()[:1]), program) is program


@pytest.mark.usefixtures("_small_pool")
def test_a_step_that_may_deadlock_is_not_run(monkeypatch):
    """A step with unordered collectives raises MayDeadlock with both instructions, before it runs."""
    case = Case("data", MeshSpec.parse("data=8"), "small", SMALL, 8, 1, "float32", "dots")
    read = lambda text, axes: dataclasses.replace(read_program(text, axes), concurrent=(("while.1", "psum.2"),))  # noqa: E731
    monkeypatch.setattr("benchmarks.run.prepare.read_program", read)
    corpus_N = np.zeros(2000, np.uint8)
    preparation = Preparation(case, RunSettings(corpus_N), References(corpus_N, Clock()))
    before_it_runs = preparation.functions[: preparation.functions.index(preparation.start)]
    with pytest.raises(MayDeadlock, match=r"%psum.2 may communicate at the same time as %while.1"):
        functools.reduce(lambda record, function: function(record), before_it_runs, Record.begin(case))


def test_gradients_of_the_last_norm_are_scattered_before_a_loop_over_long_sequences():
    """At 4,096 tokens, where JAX 0.12 would leave them unordered, fsdp scatters the last norm's gradients before the
    loop.
    """
    config = GPTConfig(layers=2, embed=32, heads=2, vocab=256, sequence=4096)
    step = STRATEGIES["fsdp"].build(config, MeshSpec.parse("fsdp=2"), TrainConfig(2), jax.devices()[:2])
    assert read_program(text_of(step.lower()), step.mesh.shape).concurrent == ()


def test_the_backward_pass_of_the_blocks_needs_the_gradients_of_the_last_norm():
    """On virtual devices the blocks' backward pass depends on the last norm's gradients, with the same result.

    Elsewhere nothing is added.
    """
    x, weights = jnp.ones((2, 3)), {"scale": jnp.ones(3), "bias": jnp.ones((3, 1))}
    (y, same), backward = jax.vjp(head_first, x, weights)
    assert (y == x).all()
    for name in weights:
        dx, dweights = backward((3 * x, same | {name: jnp.nan * same[name]}))
        assert jnp.isnan(dx).all()
        assert jnp.isnan(dweights[name]).all()
    assert (backward((3 * x, same))[0] == 3 * x).all()
    for backend, head in ((GPU, ONE_DEVICE.head), (CPU, head_first)):
        plan = Plan.of((fsdp.AXIS,), SMALL, MeshSpec.parse("fsdp=2"), TrainConfig(2), backend)
        assert fsdp.implement(plan).hooks.head is head


@pytest.mark.factorisations
@pytest.mark.parametrize(
    ("name", "mesh", "layers", "unroll"), [("context", "context=4", 2, 2), ("auto", "fsdp=2,tensor=4", 1, 3)]
)
def test_a_loop_of_one_iteration_stays_a_loop(name, mesh, layers, unroll):
    """All layers in one iteration are in a loop in the program, too, and its collectives are in order."""
    config = GPTConfig(layers=layers, embed=32, heads=8, vocab=64, sequence=24)
    step = STRATEGIES[name].build(config, mesh, TrainConfig(4, unroll=unroll))
    text = text_of(step.lower())
    assert read_program(text, step.mesh.shape).concurrent == ()
    assert text.count("skip-simplify-while-loops_trip-count-one") >= 2


def test_stages_with_empty_slots_run_one_layer_at_a_time():
    """With 3 layers on 2 stages a slot is empty: branches of two layers are in two iterations, whatever `unroll`."""
    config = GPTConfig(layers=3, embed=8, heads=1, vocab=64, sequence=8)
    train = TrainConfig(8, 2, unroll=4, remat="none", schedule="zb-h1", sequence_parallel=False)
    step = STRATEGIES["three_d"].build(config, "fsdp=4,pipeline=2", train)
    assert read_program(text_of(step.lower()), step.mesh.shape).concurrent == ()


@pytest.mark.factorisations
@pytest.mark.parametrize(
    ("name", "mesh"),
    [(name, mesh) for name, each in STRATEGIES.items() for mesh in each.meshes(8)],
    ids=lambda each: str(each),
)
def test_no_step_may_deadlock(name, mesh):
    """Every strategy on every mesh of eight devices has its collectives in order."""
    train = TrainConfig(16, microbatches=8 if "pipeline" in mesh.sizes else STRATEGIES[name].microbatches)
    try:
        step = STRATEGIES[name].build(SMALL, mesh, train)
    except Infeasible:
        step = STRATEGIES[name].build(SMALL, mesh, dataclasses.replace(train, microbatches=2))
    assert read_program(text_of(step.lower()), step.mesh.shape).concurrent == ()
    assert len(jax.devices()) == 8
