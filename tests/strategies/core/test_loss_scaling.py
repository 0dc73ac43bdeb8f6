"""float16 with dynamic loss scaling: all devices skip the steps that overflow, and train on as one device does.

The steps here begin with a scale that overflows, so the first ones are skipped, each with half the scale of the one
before. Which is the first good one depends on the mesh: devices that sum fewer tokens in float16 overflow at a larger
scale. Scales are powers of two, so the good steps are the same with any of them.
"""

import dataclasses
import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.program.compiled import read_program
from strategies import STRATEGIES, MeshSpec, State
from strategies.costs.predict import predict
from tests.strategies.equality import CONFIG, ROUNDING, STEPS, TO_FLOAT32, TRAIN, adam, assert_equal, ordered, single
from tests.strategies.equality import train as trained
from tests.strategies.formulas import by_axes, held_bytes, sent
from tests.strategies.meshes import HARDEST
from tests.strategies.quick import compiled
from tests.strategies.sampling import nightly

ONE = MeshSpec.parse("data=1")
MESHES = {"single": ONE, **HARDEST}
EVERY_DAY = ("fsdp",)
OVERFLOWS = 2.0**40
"""A loss scale with which the gradients of logits overflow: without it they are up to 1 / 256 tokens."""
FITS = 2.0**15


class Run(NamedTuple):
    """A compiled step that begins with a loss scale that overflows, and doubles it after `STEPS` good steps."""

    name: str
    step: Any
    update: Any

    @classmethod
    def of(cls, name, mesh, **options):
        """Build and compile the step."""
        train = dataclasses.replace(TRAIN, dtype="float16", loss_scale=OVERFLOWS, loss_scale_growth_steps=STEPS)
        step = STRATEGIES[name].build(CONFIG, mesh, dataclasses.replace(train, **options))
        return cls(name, step, compiled(step.lower()))

    def init(self, loss_scale):
        """The state before the first step, with this loss scale."""
        key = jax.random.key(0)
        return with_scale(compiled(self.step.init.lower(key))(key), loss_scale)

    def __call__(self, state, seed):
        """Train on the batch of a step of `trained`."""
        tokens = np.random.default_rng(seed).integers(0, CONFIG.vocab, self.step.batch.shape).astype(np.int32)
        return self.update(state, self.step.place(tokens))


@pytest.fixture(scope="module", params=[*EVERY_DAY, *nightly(*(name for name in MESHES if name not in EVERY_DAY))])
def run(request):
    """The step of each strategy on its hardest mesh. Tests of one strategy follow each other: it is compiled once."""
    name, mesh = request.param, MESHES[request.param]
    return Run.of(name, mesh, microbatches=4 if "pipeline" in mesh.sizes else 1)


def with_scale(state, loss_scale):
    """A state with another loss scale."""
    scale = jax.device_put(jnp.float32(loss_scale), state.optimizer.loss_scale.sharding)
    return State(state.params, state.optimizer._replace(loss_scale=scale))


def by_device(state):
    """What each device holds, on the host, and of that the loss scale and the count of good steps."""
    held = {}
    for path, x in jax.tree.leaves_with_path(state):
        for shard in x.addressable_shards:
            held.setdefault(shard.device.id, {})[jax.tree_util.keystr(path)] = np.array(shard.data)
    return held


def assert_skipped(before, after, but=None):
    """Every device holds what it held before the step, to the bit, and half the loss scale.

    Args:
        before, after: the states, `by_device`.
        but: a device whose weights were tampered with.
    """
    for device, expected in before.items():
        scale = {".optimizer.loss_scale": expected[".optimizer.loss_scale"] / 2, ".optimizer.good_steps": 0}
        found = after[device] if device != but else {name: after[device][name] for name in scale}
        np.testing.assert_equal(found, {name: {**expected, **scale}[name] for name in found})


def test_steps_that_overflow_are_skipped_and_the_next_equal_one_device(run):
    """With a scale that overflows, steps are skipped on all devices alike until it fits, and report their loss.

    The next steps equal those of `single`: in float16 to its rounding, and in float32 to the rounding of float16. After
    `STEPS` good steps the scale is doubled.
    """
    state, scale, good = run.init(OVERFLOWS), OVERFLOWS, []
    reference, exact = single(dtype="float16"), single()
    while len(good) < STEPS:
        before = by_device(state)
        state, metrics = run(state, seed=len(good))
        assert metrics["loss_scale"] == scale
        if math.isfinite(metrics["grad_norm"]):
            host = jax.tree.map_with_path(partial(ordered, run.step), state)
            good.append((float(metrics["loss"]), float(metrics["grad_norm"]), host))
            continue
        assert not good
        assert_skipped(before, by_device(state))
        assert metrics["loss"] == pytest.approx(reference[0][0], rel=ROUNDING["float16"])
        scale /= 2
    assert 2**8 < scale < OVERFLOWS
    losses, norms, states = zip(*good, strict=True)
    assert_equal((np.array(losses), np.array(norms), states), reference, ROUNDING["float16"])
    assert_equal((np.array(losses), np.array(norms), states), exact, TO_FLOAT32["float16"])
    assert [(adam(each).count, each.optimizer.good_steps) for each in states] == [(1, 1), (2, 2), (3, 0)]
    assert state.optimizer.loss_scale == 2 * scale


def test_an_inf_on_one_device_is_skipped_by_all(run):
    """If weights are inf on one device only, all devices skip the step, and hold to the bit what they held.

    Without the inf the step is a good one. ZeRO then gathers the updated weights, and so repairs the one device.
    """
    assert math.isfinite(run(run.init(FITS), seed=0)[1]["grad_norm"])
    state = run.init(FITS)
    planted = state.params["blocks"]["mlp"]["up_DF"]
    *parts, last = (shard.data for shard in planted.addressable_shards)
    (device,), last = last.devices(), last.at[(0,) * last.ndim].set(jnp.inf)
    state.params["blocks"]["mlp"]["up_DF"] = jax.make_array_from_single_device_arrays(
        planted.shape, planted.sharding, [*parts, last]
    )
    before = by_device(state)
    state, metrics = run(state, seed=0)
    assert not math.isfinite(metrics["grad_norm"])
    assert_skipped(before, by_device(state), but=device.id)


def test_it_sends_nothing_and_donates_its_state(run):
    """What is sent is, to the byte, what the formulas say of a step that scales nothing, in half precision.

    So are the arguments, with two numbers for the scale, and the step updates all of its state in place.
    """
    memory, step = run.update.memory_analysis(), run.step
    assert memory.alias_size_in_bytes == held_bytes(step.state)
    if run.name == "auto":  # nothing is predicted of what the compiler partitions
        return
    spec = HARDEST.get(run.name, ONE)
    predicted = predict(run.name, CONFIG, spec, step.train)
    assert sent(read_program(run.update.as_text(), step.mesh.shape)) == by_axes(predicted)
    assert memory.argument_size_in_bytes == sum(predicted.arguments.values())
    wide = predict(
        run.name, CONFIG, spec, STRATEGIES[run.name].applicable(dataclasses.replace(step.train, dtype="bfloat16"))
    )
    assert predicted.sent == wide.sent
    assert sum(predicted.arguments.values()) == sum(wide.arguments.values()) + 8


def test_without_scaling_gradients_underflow():
    """With a scale of 1 the check against float32 fails: scaling is what float16 passes it by."""
    with pytest.raises(AssertionError):
        assert_equal(trained("single", ONE, dtype="float16", loss_scale=1.0), single(), TO_FLOAT32["float16"])


@pytest.mark.factorisations
@pytest.mark.parametrize("compression", ["int8", "onebit"])
def test_compressed_gradients_that_overflow_are_skipped(compression):
    """With compression, quantisation errors stay as they were, too, and the next steps are good ones.

    With 1 bit, in the warm-up and after it.
    """
    warmup = {"compression_warmup": 1} if compression == "onebit" else {}
    run = Run.of("data", MeshSpec.parse("data=4"), compression=compression, **warmup)
    state = run.init(OVERFLOWS)
    for overflows in (True, False, True, False):
        state = with_scale(state, OVERFLOWS if overflows else FITS)
        before = by_device(state)
        state, metrics = run(state, seed=0)
        assert math.isfinite(metrics["grad_norm"]) != overflows
        if overflows:
            assert_skipped(before, by_device(state))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))
