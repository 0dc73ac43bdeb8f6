"""Candidates as compiled: what the compiler's schedule leaves exposed replaces the overlap that predictions assume."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.cases.case import Case
from benchmarks.commandline.tables import aligned, wrapped
from benchmarks.compile import compile_entry
from benchmarks.devices.chips import GIB
from benchmarks.program.compiled import HLOError, read_program
from benchmarks.run.machine import fingerprint
from benchmarks.run.pool import Outcome
from benchmarks.run.prepare import Entry
from benchmarks.search.advised import Choice, Choices
from benchmarks.seconds.drawn import LANES
from benchmarks.seconds.machine import Machine
from benchmarks.simulate.program import replay
from benchmarks.simulate.queues import EXPOSED
from strategies.core.sizes import BYTES

EXPOSED_COLUMN = "machine.exposed_seconds"
"""Seconds for which the compiled step waits for collectives, at the rates that a machine reaches."""
SENDING = tuple(name for name, lane in LANES.items() if lane == EXPOSED)
"""Parts of a prediction that are exposed communication."""


@dataclass(frozen=True)
class AsCompiled:
    """A candidate that was compiled, or meant to be.

    Attributes:
        rank: of the candidate by its prediction, from 1.
        choice: the candidate.
        needed_bytes: memory of a device, as compiled; None if it is not known.
        exposed_seconds: communication that the device waits for, by its compiled schedule; None if that is not known.
        reason: why there is no such step; empty if there is one.
    """

    rank: int
    choice: Choice
    needed_bytes: int | None
    exposed_seconds: float | None
    reason: str

    @property
    def predicted_exposed_seconds(self) -> float:
        """Exposed communication by the prediction."""
        return sum(self.choice.timeline.parts.get(name, 0.0) for name in SENDING)

    @property
    def step_seconds(self) -> float | None:
        """The prediction with the exposed communication of the compiled schedule; None if that is not known."""
        if self.reason or self.exposed_seconds is None:
            return None
        return self.choice.step_seconds - self.predicted_exposed_seconds + self.exposed_seconds

    def as_row(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "rank": self.rank,
            "compiled_seconds": self.step_seconds,
            "needed_bytes": self.needed_bytes,
            "exposed_seconds": self.exposed_seconds,
            "predicted_exposed_seconds": self.predicted_exposed_seconds,
            "reason": self.reason,
        }


def to_compile(choices: Choices, count: int) -> list[Choice]:
    """The best of each strategy and set of mesh axes, and then the best of all: those alike tell little more."""
    distinct = {id(each): each for each in (*choices.of_each_layout(), *choices.best)}
    return list(distinct.values())[:count]


def compile_and_replay(case: Case, machine: Machine) -> dict[str, Any]:
    """Compile a case and return the columns of its row, and `EXPOSED_COLUMN`. Called in a process of its own."""
    assert case.topology
    case.topology.prepare()
    entry = compile_entry(case)
    return {**entry.record.as_row().extra_info, EXPOSED_COLUMN: exposed_seconds(entry, machine)}


def exposed_seconds(entry: Entry, machine: Machine) -> float | None:
    """Exposed communication of a compiled step on a machine; None if there is no program in schedule order."""
    if not (entry.program and entry.step):
        return None
    try:
        program = read_program(entry.program.as_text() or "", entry.step.mesh.shape)
    except HLOError:
        return None
    rate = machine.best_rate(BYTES[entry.case.dtype]) * machine.constants.matmul_efficiency
    replayed = replay(program, entry.step.mesh, replace(machine.reached, flops_per_second=rate))
    return replayed and replayed.parts.get(EXPOSED, 0.0)


def key(machine: Machine) -> str:
    """Name of the cache of what is compiled and replayed for a machine."""
    return fingerprint(asdict(machine))


def found(choices: Choices, outcomes: Iterable[Outcome[Case]]) -> list[AsCompiled]:
    """The compiled candidates, fastest first, and last those without time."""
    ranks = {each.case: (rank, each) for rank, each in enumerate(choices.best, start=1)}
    compiled = []
    for outcome in outcomes:
        columns = outcome.result or {}
        failed = columns.get("status", "ok") != "ok" and (columns.get("reason") or columns["status"])
        unread = "" if columns.get(EXPOSED_COLUMN) is not None else "its schedule cannot be read"
        reason = outcome.reason or failed or unread
        needed = columns.get("chip.needed_bytes")
        compiled.append(AsCompiled(*ranks[outcome.task], needed, columns.get(EXPOSED_COLUMN), reason))
    return sorted(compiled, key=lambda each: (each.step_seconds is None, each.step_seconds or each.rank))


def table(compiled: Sequence[AsCompiled]) -> list[str]:
    """The lines of the table of compiled candidates."""
    rows: list[tuple[str, ...]] = [
        (
            *("rank", "strategy", "mesh", "options", "GiB compiled"),
            *("exposed ms predicted", "as compiled", "ms predicted", "as compiled", ""),
        )
    ]
    for each in compiled:
        times = each.predicted_exposed_seconds, each.exposed_seconds, each.choice.step_seconds, each.step_seconds
        rows.append(
            (
                str(each.rank),
                *each.choice.cells,
                "" if each.needed_bytes is None else f"{each.needed_bytes / GIB:.1f}",
                *("" if seconds is None else f"{1e3 * seconds:,.0f}" for seconds in times),
                each.reason,
            )
        )
    title = "as compiled: the compiler's schedule, at the rates of the machine, says what communication is exposed"
    return [*wrapped(title), *aligned(rows, [*"<<<<", *">" * 5, "<"])]
