"""What pipeline stages execute, counted on the host each time a device does it."""

import collections
import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from strategies import PRESETS, STRATEGIES, MeshSpec, TrainConfig
from strategies.pipelining import layer_backward, split_backward
from strategies.pipelining.executor import Executor
from strategies.pipelining.orders import SCHEDULES, layer_slots
from strategies.pipelining.timetable import Ticks
from tests.strategies.quick import compiled
from tests.strategies.sampling import nightly

TINY = dataclasses.replace(PRESETS["nano"], layers=5, embed=8, heads=2, vocab=16, sequence=4)
STAGES, MICROBATCHES, KEY = 2, 4, jax.random.key(0)


def always_while(condition, body, state):
    """A planted fault: a while loop of zero or one trips that always runs its body, and selects the right result."""
    taken, done = condition(state), body(state)
    return jax.tree.map(lambda new, old: new if new is old else jnp.where(taken, new, old), done, state)


def always_cond(taken, *branches_and_operands):
    """A planted fault: a conditional that runs both branches, and selects the right result."""
    (work, other), operands = branches_and_operands[:2], branches_and_operands[2:]
    return jax.tree.map(lambda new, old: jnp.where(taken, new, old), work(*operands), other(*operands))


@functools.cache
def counted(schedule, chunks=1, always=False):
    """A tiny pipeline's gradients, and how often each stage did what; `always` plants the faults."""
    counts = collections.Counter()
    with pytest.MonkeyPatch.context() as patch:

        def count(owner, name, what):
            done = getattr(owner, name)

            def counting(*args: Any) -> Any:
                jax.debug.callback(lambda stage: counts.update([(int(stage), what)]), lax.axis_index("pipeline"))
                return done(*args)

            patch.setattr(owner, name, counting)

        count(layer_backward, "forward", "F")
        count(layer_backward, "backward", "B")
        count(split_backward.SplitBackward, "first", "B")
        count(split_backward.SplitBackward, "second", "W")
        count(Executor, "_run_model_ends", "ends")
        count(Executor, "_send", "sends")
        if always:
            patch.setattr(lax, "while_loop", always_while)
            patch.setattr(lax, "cond", always_cond)
        options: dict[str, Any] = {"chunks": chunks} if schedule == "interleaved" else {}
        train = TrainConfig(MICROBATCHES, MICROBATCHES, schedule=schedule, **options)
        mesh = MeshSpec.parse(f"pipeline={STAGES}")
        step = STRATEGIES["pipeline"].build(TINY, mesh, train, jax.devices()[:STAGES])
        tokens = np.arange(MICROBATCHES * (TINY.sequence + 1)).reshape(MICROBATCHES, -1) % TINY.vocab
        state = compiled(step.init.lower(KEY))(KEY)
        gradients = jax.jit(step.gradients)(state, step.place(tokens))
        jax.effects_barrier()
    return jax.device_get(gradients), counts


@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [("zb-h1", 1), *nightly(("interleaved", 2), ("eager-1f1b", 1), ("zb-v", 2), ("dualpipe-v", 2))],
)
def test_a_stage_does_what_its_schedule_says_and_nothing_else(schedule, chunks):
    """At run time each stage runs its layers exactly in the ticks of its schedule, and nothing in bubbles.

    It skips slots without a layer, too. test_pipeline.py counts the FLOPs of the program's text, and believes that
    loops run as often as their names say; here executions are counted.
    """
    plan = SCHEDULES[schedule](STAGES, MICROBATCHES, chunks)
    ticks, expected = Ticks.of(plan), collections.Counter()
    used = np.array(layer_slots(TINY.layers, plan)).reshape(STAGES, chunks, -1) >= 0
    assert not used.all()
    for stage, row in enumerate(plan.table):
        for op in itertools.chain(*row):
            expected[stage, op.kind] += int(used[stage, op.chunk].sum())
        expected[stage, "ends"] += int((ticks.shared.ends >= 0).sum())
        expected[stage, "sends"] += int((ticks.shared.edges >= 0).sum())  # with what a stage hands over to itself
    assert counted(schedule, chunks)[1] == expected


@pytest.mark.factorisations
def test_work_in_vain_is_counted():
    """With faults that keep gradients right but do useless work, every tick is counted as doing everything."""
    (gradients, _), (planted, counts) = counted("zb-h1"), counted("zb-h1", always=True)
    jax.tree.map(lambda mine, its: np.testing.assert_allclose(mine, its, rtol=1e-4, atol=1e-6), planted, gradients)
    plan, room = SCHEDULES["zb-h1"](STAGES, MICROBATCHES), -(-TINY.layers // STAGES)
    for stage, kind in itertools.product(range(STAGES), "FBW"):
        assert counts[stage, kind] == plan.ticks * room > MICROBATCHES * room
    assert counts[0, "ends"] == plan.ticks * len(Ticks.of(plan).ends)


def test_residuals_keep_their_layout_on_gpus_alone(monkeypatch):
    """For NVIDIA GPUs the layout of each residual that a backward pass reads is fixed; other platforms choose it.

    With a layout that XLA chooses for a matmul, it would transpose the buffer of all microbatches for each pass.
    """
    residuals, slots = [], layer_backward.Passes.slots

    def counting(*args: Any, **options: Any) -> layer_backward.ResidualBuffers:
        made = slots(*args, **options)
        residuals.append(len(jax.tree.leaves(made.kept)))
        return made

    monkeypatch.setattr(layer_backward.Passes, "slots", counting)
    train = TrainConfig(MICROBATCHES, MICROBATCHES, schedule="1f1b")
    step = STRATEGIES["pipeline"].build(TINY, MeshSpec.parse(f"pipeline={STAGES}"), train, jax.devices()[:STAGES])
    traced = step.gradients.trace(step.state, step.batch)
    fixed = {on: traced.lower(lowering_platforms=(on,)).as_text().count("@LayoutConstraint") for on in ("cuda", "cpu")}
    assert fixed == {"cuda": residuals[-1], "cpu": 0}
