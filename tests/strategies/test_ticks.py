"""What a schedule's arrays say, played through by hand: each operation finds in its slots what belongs there."""

from itertools import product

import pytest

from strategies.schedules import SCHEDULES, Schedule
from strategies.ticks import KINDS, Shared, Ticks, Turn

CASES = [(name, s, m, 1) for name in ("gpipe", "1f1b", "zb-h1") for s, m in product((1, 2, 4, 7), (1, 3, 4, 9))]
CASES += [("interleaved", s, s * groups, v) for s, groups, v in product((1, 2, 4), (1, 3), (2, 3))]


class Stage:
    """Buffers of one stage, which hold names in the place of arrays."""

    def __init__(self, ticks: Ticks) -> None:
        depths = ticks.depths
        self.x, self.dy = ["nothing"] * (depths.x + 1), ["nothing"] * (depths.dy + 1)
        self.kept, self.put_off = ["nothing"] * depths.kept, ["nothing"] * depths.put_off


def take_turn(stage: Stage, turn: Turn, part: int, entered: int) -> tuple[str, str, str]:
    """What a stage sends on and back, and what it has computed."""
    kind, x, dy = KINDS[turn.kind], "nothing", "nothing"
    if kind == "F":
        assert turn.first == (part == 0)
        m = entered if turn.first else int(stage.x[turn.x].split()[1])
        assert turn.first or stage.x[turn.x] == f"x {m} {part}"
        stage.kept[turn.kept], x = f"kept {m} {part}", f"x {m} {part + 1}"
    elif kind == "B":
        m = int(stage.dy[turn.dy].split()[1])
        assert (stage.dy[turn.dy], stage.kept[turn.kept]) == (f"dy {m} {part}", f"kept {m} {part}")
        dy = f"dy {m} {part - 1}"
        if stage.put_off:
            stage.put_off[turn.put_off] = f"put off {m} {part}"
    elif kind == "W":
        m = int(stage.put_off[turn.put_off].split()[2])
        assert (stage.kept[turn.kept], stage.put_off[turn.put_off]) == (f"kept {m} {part}", f"put off {m} {part}")
    else:
        return x, dy, ""
    return x, dy, f"{kind} {m} {part}"


def play(plan: Schedule, ticks: Ticks) -> list[str]:
    """Go through the ticks as executor.py does; return what was computed, by name."""
    stages = [Stage(ticks) for _ in range(plan.stages)]
    parts, done = plan.stages * plan.chunks, []
    for tick in range(plan.ticks):
        shared = Shared(*(column[tick] for column in ticks.shared))
        turns = [Turn(*(column[tick, s] for column in ticks.turns)) for s in range(plan.stages)]
        xs, dys, work = zip(
            *(
                take_turn(stage, turn, turn.chunk * plan.stages + s, shared.enters)
                for s, (stage, turn) in enumerate(zip(stages, turns, strict=True))
            ),
            strict=True,
        )
        done += filter(None, work)
        if shared.leaves >= 0:
            assert xs[-1] == f"x {shared.leaves} {parts}"
            done.append(f"loss {shared.leaves}")
        if shared.returns >= 0:
            assert dys[0] == f"dy {shared.returns} -1"
            done.append(f"embedding {shared.returns}")
        for s, (stage, turn) in enumerate(zip(stages, turns, strict=True)):
            stage.x[turn.got_x] = xs[s - 1] if shared.sends_x else "nothing"
            stage.dy[turn.got_dy] = dys[(s + 1) % plan.stages] if shared.sends_dy else "nothing"
            stage.dy[turn.got_loss] = f"dy {shared.leaves} {parts - 1}"
    return done


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_operation_finds_its_inputs(case: tuple[str, int, int, int]) -> None:
    """Nothing is overwritten before it is used, and all is computed once."""
    name, stages, microbatches, chunks = case
    plan = SCHEDULES[name](stages, microbatches, chunks)
    done = play(plan, Ticks.of(plan))
    kinds = "FBW" if plan.splits_backward else "FB"
    expected = [f"{kind} {m} {p}" for kind in kinds for m in range(microbatches) for p in range(stages * chunks)]
    expected += [f"{end} {m}" for end in ("loss", "embedding") for m in range(microbatches)]
    assert sorted(done) == sorted(expected)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_buffers_are_as_large_as_what_is_in_flight(case: tuple[str, int, int, int]) -> None:
    """What is kept for the backward pass has a slot for each microbatch in flight, and none besides."""
    name, stages, microbatches, chunks = case
    plan = SCHEDULES[name](stages, microbatches, chunks)
    assert Ticks.of(plan).depths.kept == max(plan.in_flight(stage) for stage in range(stages))


def test_slots_do_not_grow_with_microbatches() -> None:
    """But those of GPipe, which has all in flight."""
    few, many = ([Ticks.of(SCHEDULES[name](4, m)).depths for name in ("1f1b", "zb-h1", "gpipe")] for m in (8, 64))
    assert few[:2] == many[:2]
    assert (few[2].kept, many[2].kept) == (8, 64)
