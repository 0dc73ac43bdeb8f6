"""Pipeline schedules do all work once, in a possible order, with the bubbles of their papers."""

import json
from itertools import product
from pathlib import Path

import pytest

from strategies import GPTConfig, Infeasible, TrainConfig
from strategies.costs.predict import predict
from strategies.pipelining.orders import SCHEDULES, gpipe, interleaved, one_f_one_b, zero_bubble
from strategies.pipelining.schedules import EQUAL, Op, PassTimes, Schedule

OF_TORCH = Path(__file__).with_name("orders_of_torch.json")
STAGES, MICROBATCHES = (1, 2, 3, 4, 5, 8), (1, 2, 3, 4, 6, 8, 16, 31)
ONE_CHUNK = ("gpipe", "1f1b", "eager-1f1b", "zb-h1", "eager-zb")
PLAIN = [(name, s, m, 1) for name in ONE_CHUNK for s, m in product(STAGES, MICROBATCHES)]
V_SHAPED = [
    *(("zb-v", s, m, 2) for s, m in product(STAGES, MICROBATCHES)),
    *(("dualpipe-v", s, 2 * s + more, 2) for s, more in product(STAGES, (0, 1, 2, 7))),
]
INTERLEAVED = [("interleaved", s, s * groups, v) for s, groups, v in product(STAGES, (1, 2, 5), (1, 2, 3, 4))]
GRID = [*PLAIN, *V_SHAPED, *INTERLEAVED]


def schedule(name: str, stages: int, microbatches: int, chunks: int) -> Schedule:
    """The schedule of a grid entry."""
    return SCHEDULES[name](stages, microbatches, chunks)


def each(name: str) -> list[tuple[int, int]]:
    """The stages and microbatches of a schedule's grid entries."""
    return [(s, m) for known, s, m, _ in GRID if known == name]


@pytest.mark.parametrize("case", GRID, ids=str)
def test_each_operation_is_done_once(case: tuple[str, int, int, int]) -> None:
    """Each stage runs forward, backward, and if they are apart the weights' gradients, once for each microbatch and
    chunk.
    """
    plan = schedule(*case)
    kinds = "FBW" if plan.splits_backward else "FB"
    all_of_them = sorted(Op(kind, m, c) for kind in kinds for m in range(case[2]) for c in range(case[3]))  # type: ignore[arg-type]
    for row in plan.table:
        assert sorted(op for cell in row for op in cell) == all_of_them


@pytest.mark.parametrize("case", GRID, ids=str)
def test_nothing_is_done_before_what_it_needs(case: tuple[str, int, int, int]) -> None:
    """A microbatch goes forward through the parts of the model in order, and back in reverse, one tick each."""
    name, stages, microbatches, chunks = case
    cells = ((s, t, cell) for s, row in enumerate(schedule(*case).table) for t, cell in enumerate(row))
    tick = {(s, op): t for s, t, cell in cells for op in cell}
    down, up = list(range(stages)), list(reversed(range(stages)))
    for m in range(microbatches):
        parts = [(s, c) for c in range(chunks) for s in (up if name.endswith("-v") and c == 1 else down)]
        way = [tick[s, Op("F", m, c)] for s, c in parts] + [tick[s, Op("B", m, c)] for s, c in reversed(parts)]
        assert way == sorted(set(way))
        assert all(tick[s, Op("B", m, c)] < tick.get((s, Op("W", m, c)), 1e9) for s, c in parts)


@pytest.mark.parametrize(("remat", "passes"), [("dots", PassTimes(1, 1, 1)), ("full", PassTimes(1, 2, 1))])
@pytest.mark.parametrize(
    ("layers", "stages", "microbatches"), [(4, 2, 4), (3, 2, 6), (8, 4, 8), (4, 4, 16), (16, 8, 16)]
)
def test_auto_is_the_schedule_that_loses_least(layers, stages, microbatches, remat, passes):
    """Of those that are possible and hold fewer than two microbatches a stage, in lockstep."""
    config = GPTConfig(layers=layers, embed=16, heads=2, vocab=64, sequence=8)
    train = TrainConfig(microbatches, microbatches, schedule="auto", remat=remat)
    chosen = predict("pipeline", config, f"pipeline={stages}", train).plan.schedule

    def held(one: Schedule) -> float:
        return max(map(one.in_flight, range(stages))) / one.chunks

    others = (schedule(*case) for case in GRID if case[1:3] == (stages, microbatches) and case[3] < 3)
    fitting = [each for each in others if each.chunks * stages <= layers and held(each) < 2 * stages]
    assert held(chosen) < 2 * stages
    assert chosen.lockstep(passes) == min(each.lockstep(passes) for each in fitting)


def test_auto_says_what_does_not_fit():
    """If no schedule does."""
    config, train = GPTConfig(layers=2, embed=16, heads=2, vocab=64), TrainConfig(8, 8, schedule="auto")
    with pytest.raises(Infeasible, match="2 blocks are too few for 4 parts of a pipeline"):
        predict("pipeline", config, "pipeline=4", train)


@pytest.mark.parametrize(("name", "stages", "microbatches"), [(n, s, m) for n, s, m, _ in PLAIN if "zb" not in n])
def test_bubble_of_gpipe_and_1f1b(name: str, stages: int, microbatches: int) -> None:
    """The bubble of GPipe and both 1F1B is (S-1)/(M+S-1) at any costs (Narayanan et al. 2021, section 2.2.1)."""
    for costs in (EQUAL, PassTimes(1, 0.5, 0.5), PassTimes(3, 5, 2)):
        expected = (stages - 1) / (microbatches + stages - 1)
        assert schedule(name, stages, microbatches, 1).bubble(costs) == pytest.approx(expected)


@pytest.mark.parametrize(("stages", "microbatches", "chunks"), [case[1:] for case in GRID if case[0] == "interleaved"])
def test_bubble_of_interleaved_1f1b(stages: int, microbatches: int, chunks: int) -> None:
    """The bubble of interleaved 1F1B is (S-1)/(vM+S-1) (Narayanan et al. 2021, section 2.2.2)."""
    expected = (stages - 1) / (chunks * microbatches + stages - 1)
    for costs in (EQUAL, PassTimes(1, 0.5, 0.5)):
        assert interleaved(stages, microbatches, chunks).bubble(costs) == pytest.approx(expected)


@pytest.mark.parametrize(("stages", "microbatches"), each("zb-h1"))
def test_bubble_of_zb_h1(stages: int, microbatches: int) -> None:
    """With M >= S and equal costs ZB-H1 idles a third as long as 1F1B, and never longer (Qi et al. 2023, table 1)."""
    idle = [
        plan.makespan() - 3 * microbatches
        for plan in (zero_bubble(stages, microbatches), one_f_one_b(stages, microbatches))
    ]
    assert idle[1] == 3 * (stages - 1)
    if microbatches >= stages:
        assert idle[0] == stages - 1
    assert idle[0] <= idle[1]


@pytest.mark.parametrize(("stages", "microbatches"), each("1f1b"))
def test_microbatches_in_flight(stages: int, microbatches: int) -> None:
    """In flight are M with GPipe, min(S - s, M) on stage s with 1F1B, at most min(S, M) with ZB-H1 (Qi et al. 2023)."""
    for stage in range(stages):
        assert gpipe(stages, microbatches).in_flight(stage) == microbatches
        assert one_f_one_b(stages, microbatches).in_flight(stage) == min(stages - stage, microbatches)
        assert zero_bubble(stages, microbatches).in_flight(stage) <= min(stages, microbatches)


def test_chunks_in_flight() -> None:
    """Interleaved, the first stage has (v-1) S + 2 S - 1 chunks in flight, or all if there are fewer."""
    assert interleaved(4, 16, 2).in_flight(0) == 4 + 2 * 4 - 1
    assert interleaved(4, 4, 2).in_flight(0) == 8


def test_lockstep_bubble() -> None:
    """GPipe and ZB-H1 have no lockstep bubble at equal costs; 1F1B has one, as its ticks mix forward and backward."""
    assert gpipe(4, 8).lockstep_bubble(PassTimes(1, 1, 1)) == 0
    assert zero_bubble(4, 8).lockstep_bubble(EQUAL) == 0
    by_hand = 1 - 3 * (8 + 3) / (4 + 2 * (2 * (8 + 3) - 4))  # four ticks have forwards only
    assert one_f_one_b(4, 8).lockstep_bubble(EQUAL) == pytest.approx(by_hand)
    assert one_f_one_b(4, 8).lockstep_bubble(PassTimes(1, 0.5, 0.5)) == 0


@pytest.mark.parametrize(("stages", "microbatches"), each("eager-1f1b"))
def test_in_turn_lockstep_loses_nothing(stages: int, microbatches: int) -> None:
    """In turn, lockstep takes (M+S-1)(F+B+W), and with weight gradients apart and M >= S M (F+B+W) + (S-1)(F+B),
    at any costs.
    """
    for costs in (EQUAL, PassTimes(1, 1.25, 0.75), PassTimes(3, 5, 2)):
        whole, fill = sum(costs), costs.forward + costs.inputs
        eager, apart = (schedule(name, stages, microbatches, 1) for name in ("eager-1f1b", "eager-zb"))
        assert eager.lockstep(costs) == pytest.approx((microbatches + stages - 1) * whole)
        assert eager.lockstep_bubble(costs) == pytest.approx(0)
        if microbatches >= stages:
            assert apart.lockstep(costs) == pytest.approx(microbatches * whole + (stages - 1) * fill)
        for stage in range(stages):
            assert eager.in_flight(stage) == min(2 * (stages - 1 - stage) + 1, microbatches)
            assert apart.in_flight(stage) == min(2 * stages - 1 - stage, microbatches)


@pytest.mark.parametrize("name", ["eager-1f1b", "eager-zb"])
def test_in_turn_all_stages_run_the_same_kind(name: str) -> None:
    """A tick has operations of one kind, and none is empty."""
    for stages, microbatches in ((2, 4), (4, 8), (5, 11)):
        for column in zip(*SCHEDULES[name](stages, microbatches).table, strict=True):
            assert len({op.kind for cell in column for op in cell}) == 1


@pytest.mark.parametrize("case", V_SHAPED, ids=str)
def test_bubble_of_v_schedules(case: tuple[str, int, int, int]) -> None:
    """With M >= 2 S and equal costs ZB-V idles for (S-1) / 2 passes, with S microbatches in flight (`orders` of torch
    2.13's ScheduleZBVZeroBubble), and DualPipe-V at any costs for (S-1) (F/2+B+W) in lockstep, with S + 1/2.
    """
    name, stages, microbatches, _ = case
    plan, flying = schedule(*case), 2 * stages + (name == "dualpipe-v")
    assert all(plan.in_flight(stage) <= min(flying, 2 * microbatches) for stage in range(stages))
    if microbatches >= 2 * stages:
        assert plan.in_flight(0) == flying
        if name == "zb-v":
            assert plan.makespan() - 3 * microbatches == pytest.approx((stages - 1) / 2)
        else:
            for costs in (EQUAL, PassTimes(1, 1.25, 0.75), PassTimes(3, 5, 2)):
                idle = (stages - 1) * (sum(costs) - costs.forward / 2)
                assert plan.lockstep(costs) == pytest.approx(microbatches * sum(costs) + idle)


@pytest.mark.parametrize(("stages", "microbatches"), each("dualpipe-v"))
def test_pairs(stages: int, microbatches: int) -> None:
    """A pair is a forward and then a backward pass of another microbatch; a stage has as many as its warm-up leaves."""
    plan = schedule("dualpipe-v", stages, microbatches, 2)
    for stage, row in enumerate(plan.table):
        pairs = [cell for cell in row if len(cell) > 1]
        assert all([op.kind for op in cell] == ["F", "B"] and cell[0][1] != cell[1][1] for cell in pairs)
        assert len(pairs) == 2 * microbatches - 3 * stages + 1 + stage


@pytest.mark.parametrize(("case", "rows"), json.loads(OF_TORCH.read_text()).items())
def test_v_shaped_orders_are_those_of_torch(case: str, rows: list[str]) -> None:
    """Stage by stage, as ScheduleZBVZeroBubble and ScheduleDualPipeV of torch 2.13 order them. A backward pass is B
    and W, or B alone if it is not split.
    """
    name, stages, microbatches = case.split()
    plan = SCHEDULES[name](int(stages), int(microbatches))
    kinds = "FBW" if plan.splits_backward else "FB"
    expected = [" ".join(op for op in row.split() if op[0] in kinds) for row in rows]
    assert [" ".join(map(str, order)) for order in plan.orders] == expected
