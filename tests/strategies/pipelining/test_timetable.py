"""The timetable of a schedule, played through with names in place of arrays: each slot has what is read from it."""

from itertools import product
from operator import itemgetter

import jax
import pytest

from strategies.pipelining.orders import SCHEDULES
from strategies.pipelining.schedules import Schedule
from strategies.pipelining.timetable import KINDS, Pass, Shared, Ticks, Turn

ONE_CHUNK = ("gpipe", "1f1b", "eager-1f1b", "zb-h1", "eager-zb")
CASES = [(name, s, m, 1) for name in ONE_CHUNK for s, m in product((1, 2, 4, 7), (1, 3, 4, 9))]
CASES += [("zb-v", s, m, 2) for s, m in product((1, 2, 4, 7), (1, 3, 9))]
CASES += [("dualpipe-v", s, 2 * s + more, 2) for s, more in product((1, 2, 4, 7), (0, 3))]
CASES += [("interleaved", s, s * groups, v) for s, groups, v in product((1, 2, 4), (1, 3), (2, 3))]


class Stage:
    """The buffers of one stage, which hold names in place of arrays."""

    def __init__(self, ticks: Ticks) -> None:
        depths = ticks.depths
        self.arrived, self.made = (
            ["x 0 0", *["nothing"] * depths.arrived],
            ["nothing"] * (1 + max(ticks.sent, default=0)),
        )
        self.kept = ["nothing"] * depths.kept


def take_turn(stage: Stage, kind: str, slots: Pass, part: int) -> str:
    """Run an operation of a stage; return its name, and store what the stage sends on."""
    taken = stage.arrived[slots.operand_slot]
    if kind == "W":
        m = int(stage.kept[slots.residual_slot].split()[2])
        assert stage.kept[slots.residual_slot] == f"put off {m} {part}"
        return f"W {m} {part}"
    m = int(taken.split()[1])
    if kind == "F":
        assert taken == f"x {m} {part}"
        stage.kept[slots.residual_slot], stage.made[0] = f"kept {m} {part}", f"x {m} {part + 1}"
    else:
        assert (taken, stage.kept[slots.residual_slot]) == (f"dy {m} {part}", f"kept {m} {part}")
        stage.made[-1], stage.kept[slots.residual_slot] = f"dy {m} {part - 1}", f"put off {m} {part}"
    return f"{kind} {m} {part}"


def play(plan: Schedule, ticks: Ticks) -> list[str]:
    """Run all ticks as executor.py does; return the names of everything computed."""
    stages = [Stage(ticks) for _ in range(plan.stages)]
    parts, done = plan.stages * plan.chunks, ["embedding of 0"]
    for tick in range(plan.ticks):
        shared = Shared(*(column[tick] for column in ticks.shared))
        turns: list[Turn] = [jax.tree.map(itemgetter((tick, s)), ticks.turns) for s in range(plan.stages)]
        for s, (stage, turn) in enumerate(zip(stages, turns, strict=True)):
            for kind in KINDS[turn.kind]:
                slots = turn.forward if kind == "F" else turn.backward
                done.append(take_turn(stage, kind, slots, plan.part(s, slots.chunk)))
        enters, leaves, returns = ticks.ends[shared.ends] if shared.ends >= 0 else (False, False, False)
        if enters:
            done.append(f"embedding of {shared.enters}")
        if leaves:
            assert stages[plan.last_stage].made[0] == f"x {shared.leaves} {parts}"
            done.append(f"loss {shared.leaves}")
        if returns:
            assert stages[0].made[-1] == f"dy {shared.returns} -1"
            done.append(f"back to embedding {shared.returns}")
        for stage, turn in zip(stages, turns, strict=True):
            stage.arrived[turn.embed_dst] = f"x {shared.enters} 0" if enters else "nothing"
            stage.arrived[turn.loss_grad_dst] = f"dy {shared.leaves} {parts - 1}" if leaves else "nothing"
        for exchange, index in enumerate(shared.edges):
            for source, target in ticks.edges[exchange][index] if index >= 0 else ():
                stages[target].arrived[turns[target].recv_dst[exchange]] = stages[source].made[ticks.sent[exchange]]
    return done


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_operation_finds_its_inputs(case: tuple[str, int, int, int]) -> None:
    """Each operation finds its inputs in its slots, nothing is overwritten before use, and all is computed once."""
    name, stages, microbatches, chunks = case
    plan = SCHEDULES[name](stages, microbatches, chunks)
    done = play(plan, Ticks.of(plan))
    kinds = "FBW" if plan.splits_backward else "FB"
    expected = [f"{kind} {m} {p}" for kind in kinds for m in range(microbatches) for p in range(stages * chunks)]
    expected += [f"{end} {m}" for end in ("embedding of", "loss", "back to embedding") for m in range(microbatches)]
    assert sorted(done) == sorted(expected)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_buffers_are_as_large_as_what_is_in_flight(case: tuple[str, int, int, int]) -> None:
    """The buffer of residuals has a slot for each microbatch in flight, and no more."""
    name, stages, microbatches, chunks = case
    plan = SCHEDULES[name](stages, microbatches, chunks)
    assert Ticks.of(plan).depths.kept == max(plan.in_flight(stage) for stage in range(stages))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_exchange_is_a_permutation(case: tuple[str, int, int, int]) -> None:
    """In an exchange each stage sends and receives at most once, and a tick has a second exchange only if needed.

    With pairs that holds of what forward passes make, and of what backward passes make.
    """
    name, stages, microbatches, chunks = case
    plan = SCHEDULES[name](stages, microbatches, chunks)
    ticks = Ticks.of(plan)
    for edges in (edges for exchange in ticks.edges for edges in exchange):
        assert len({source for source, _ in edges}) == len({target for _, target in edges}) == len(edges) > 0
    between = 0
    for tick, chosen in enumerate(ticks.shared.edges):
        end = {"F": stages * chunks - 1, "B": 0}  # where the last part is done, nothing goes on
        made = [(s, op.kind, plan.part(s, op.chunk)) for s, row in enumerate(plan.table) for op in row[tick]]
        sent = [each for each in made if each[1] != "W" and each[2] != end[each[1]]]
        for result, kinds in enumerate(("F", "B") if plan.pairs else ("FB",)):
            must = [(s, plan.stage_of(p + (1 if kind == "F" else -1))) for s, kind, p in sent if kind in kinds]
            found = [(exchange, index) for exchange, index in enumerate(chosen) if index >= 0]
            taken = [ticks.edges[exchange][index] for exchange, index in found if ticks.sent[exchange] == result]
            assert all(any(way in edges for edges in taken) for way in must)
            assert len(taken) == min(len(must), 1 + (len({target for _, target in must}) < len(must)))
            between += sum(any(source != target for source, target in edges) for edges in taken)
    assert ticks.exchanges == between  # a stage that hands over to itself sends nothing
    if name == "1f1b":  # one after another, each stage sends on what the next takes at once
        assert len(ticks.edges) == 1


def test_slots_do_not_grow_with_microbatches() -> None:
    """The buffers of 1F1B and ZB-H1 do not grow with the number of microbatches; those of GPipe do."""
    few, many = ([Ticks.of(SCHEDULES[name](4, m)).depths for name in ("1f1b", "zb-h1", "gpipe")] for m in (8, 64))
    assert few[:2] == many[:2]
    assert (few[2].kept, many[2].kept) == (8, 64)
