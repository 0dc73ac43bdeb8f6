"""The bubble of a pipeline is that of passes which take as long as their FLOPs."""

import pytest

from strategies import PRESETS, MeshSpec, TrainConfig
from strategies.costs.predict import predict
from strategies.pipelining.orders import SCHEDULES
from tests.strategies.formulas import cost


def simulated_bubble(schedule, forward, inputs, weights):
    """Of a schedule whose stages start each operation as soon as they can, found by visiting them again and again."""
    backward = inputs if schedule.splits_backward else inputs + weights
    lasts = {kind: each / schedule.chunks for kind, each in {"F": forward, "B": backward, "W": weights}.items()}
    parts, ends, clock = schedule.stages * schedule.chunks, {}, [0.0] * schedule.stages
    last = schedule.stages - 1
    left = [list(order) for order in schedule.orders]
    while any(left):
        for stage, ops in enumerate(left):
            while ops:
                kind, m, chunk = ops[0]
                place = last - stage if schedule.name.endswith("-v") and chunk == 1 else stage
                part = chunk * schedule.stages + place
                before = {"F": ("F", m, part - 1), "B": ("B", m, part + 1), "W": ("B", m, part)}[kind]
                if kind == "B" and part == parts - 1:
                    before = ("F", m, part)
                if before not in ends and before[2] >= 0:
                    break
                clock[stage] = ends[kind, m, part] = max(clock[stage], ends.get(before, 0.0)) + lasts[kind]
                ops.pop(0)
    return 1 - schedule.microbatches * (forward + inputs + weights) / max(clock)


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
@pytest.mark.parametrize("schedule", [*SCHEDULES])
def test_bubble_is_that_of_passes_as_long_as_their_flops(schedule, remat):
    """Simulated with costs by hand, for a layer and a token: matmuls 24 D^2, attention 4 D T (Qi et al. 2023, table 1).

    Backward, 8 D T of attention and its scores, 2 D T, again; with `remat="full"` all that but the last matmul, 8 D^2.
    A quarter of attention is left out (attention.py).
    """
    config, train = PRESETS["gpt3-6.7b"], TrainConfig(32, 32, schedule=schedule, remat=remat)
    matmuls, embed, tokens = 24 * config.embed**2, config.embed, 3 * config.sequence // 4
    again = matmuls + 4 * embed * tokens - 8 * embed**2 if remat == "full" else 2 * embed * tokens
    by_hand = matmuls + 4 * embed * tokens, matmuls + 8 * embed * tokens + again, matmuls
    predicted = predict("pipeline", config, MeshSpec.parse("pipeline=8"), train)
    assert predicted.bubble == pytest.approx(simulated_bubble(predicted.plan.schedule, *by_hand), rel=1e-9)


def test_zero_bubble_waits_for_recomputation():
    """ZB-H1 waits (S-1) (F+B-W) (Qi et al. 2023, table 2): of 8 stages with 32 microbatches of gpt3-6.7b, 9.7%."""
    train = TrainConfig(32, 32, schedule="zb-h1", remat="full")
    predicted = predict("pipeline", PRESETS["gpt3-6.7b"], MeshSpec.parse("pipeline=8"), train)
    forward, inputs, weights = predicted.passes
    idle, work = 7 * (forward + inputs - weights), 32 * (forward + inputs + weights)
    assert predicted.bubble == pytest.approx(idle / (idle + work), rel=1e-9)
    assert predicted.bubble == pytest.approx(0.0967, abs=5e-5)


def test_what_is_computed_again_is_no_waiting():
    """Hardware FLOPs are the model's and those done again, in a pipeline as on one device, however long it waits."""
    one, staged = cost("single", "data=1", remat="full"), cost("pipeline", "pipeline=2", remat="full", microbatches=4)
    assert staged.hardware_flops == one.hardware_flops > one.model_flops()
    assert (one.bubble, staged.bubble) == (0, pytest.approx(1 / 5))


@pytest.mark.parametrize("schedule", [*SCHEDULES])
def test_lockstep_bubble_is_that_of_ticks_as_long_as_their_longest_pass(schedule):
    """Counted by hand, tick by tick. One microbatch, the naive way, has none: it idles three quarters of the time."""
    train = TrainConfig(32, 8, schedule=schedule)
    predicted = predict("pipeline", PRESETS["gpt3-6.7b"], MeshSpec.parse("pipeline=4"), train)
    order, passes = predicted.plan.schedule, predicted.passes
    columns = zip(*order.table, strict=True)
    ticks = [max(sum(order.duration(op, passes) for op in cell) for cell in cells) for cells in columns]
    assert (1 - predicted.lockstep_bubble) * sum(ticks) == pytest.approx(order.makespan(passes), rel=1e-9)
    assert (1 - order.lost(passes)) * sum(ticks) == pytest.approx(8 * sum(passes), rel=1e-9)
    naive = predict(
        "pipeline", PRESETS["gpt3-6.7b"], MeshSpec.parse("pipeline=4"), TrainConfig(32, 1, schedule="gpipe")
    )
    assert (naive.bubble, naive.lockstep_bubble) == (pytest.approx(3 / 4), pytest.approx(0))
