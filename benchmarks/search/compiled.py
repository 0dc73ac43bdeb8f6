"""Candidates as compiled: exposed communication of the compiler's schedule instead of what predictions assume.

The compiled program is replayed at the same machine's rates (`simulate.program.replay`). Its compute is not compared: a
program tells no dims of matmuls and no launches, by which that of other candidates is priced.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks.cases.case import Case
from benchmarks.cli.outputs import log
from benchmarks.cli.tables import paragraph, wrapped
from benchmarks.devices.attached import host_peak_rss_bytes, processes_that_fit
from benchmarks.devices.chips import GIB
from benchmarks.program.compiled import HLOError, read_program
from benchmarks.run.corpus import EMPTY_CORPUS
from benchmarks.run.engine import Engine
from benchmarks.run.journal import MirroredJournal
from benchmarks.run.pool import Outcome, run_in_processes
from benchmarks.run.progress import progress, say_regularly
from benchmarks.run.record import Record
from benchmarks.run.states import RunSettings
from benchmarks.search.ranking import Candidate, Ranking, Tried, fastest_first
from benchmarks.search.rows import GIBIBYTES, LAYOUT, MILLISECONDS, RANK, Column, table
from benchmarks.simulate.machine import Machine
from benchmarks.simulate.program import replay
from benchmarks.simulate.queues import EXPOSED as EXPOSED_LANE
from benchmarks.simulate.step import SENDING

EXPOSED = "machine.exposed_seconds"
"""Column: seconds for which the compiled step waits for collectives, at the rates that a machine reaches."""
WORKER_BYTES = 4 * GIB
"""Host memory per compiling process. A GPT with 6.7 billion parameters took up to 2 GiB."""
TITLE = "as compiled: after each prediction, the same number by the compiled program and its schedule"
COLUMNS = (
    *(RANK, *LAYOUT),
    *(Column("GiB", "needed_bytes", *GIBIBYTES), Column("compiled", "compiled.needed_bytes", *GIBIBYTES)),
    Column("exposed ms", "compiled.predicted_exposed_seconds", *MILLISECONDS),
    Column("compiled", "compiled.exposed_seconds", *MILLISECONDS),
    *(Column("ms", "predicted_seconds", *MILLISECONDS), Column("compiled", "compiled.seconds", *MILLISECONDS)),
)


def compiled_record(case: Case) -> Record:
    """The record of a case that `benchmarks.run` compiles and does not run, with its program if it has one."""
    engine = Engine(RunSettings(EMPTY_CORPUS, compile_only=True), MirroredJournal())
    engine.run([case])
    return engine.states.records[str(case)].adding({"memory.host_peak_rss_bytes": host_peak_rss_bytes()})


def compile_best(ranking: Ranking, count: int, workers: int | None, budget_seconds: float) -> list[Tried]:
    """Compile the best of each strategy and set of mesh axes, then the best of all: similar ones tell little more."""
    by_case = {candidate.case: candidate for candidate in (*ranking.best_per_layout, *ranking.fitting)}
    at_once, machine = workers or processes_that_fit(WORKER_BYTES), ranking.fitting[0].machine
    ended = outcomes([*by_case][:count], machine, at_once, budget_seconds)
    return fastest_first(compiled(by_case[outcome.task], outcome) for outcome in ended)


def outcomes(cases: Sequence[Case], machine: Machine, at_once: int, budget_seconds: float) -> Iterator[Outcome[Case]]:
    """Compile each case in a process of its own. Each one that ends is logged on stderr."""
    left = list(cases)
    log(f"compiling {len(cases)}, {min(at_once, len(cases))} at a time, within {budget_seconds:.0f} s")

    def doing() -> str:
        names = ", ".join(f"{case} remat={case.remat}" for case in left[:at_once])
        return f"compiling {names}; {len(left)} of {len(cases)} left" if left else ""

    with say_regularly(doing):
        for outcome in run_in_processes(cases, partial(compile_and_replay, machine=machine), at_once, budget_seconds):
            left.remove(outcome.task)
            ended = outcome.reason or outcome.result["reason"] or outcome.result["status"]
            text = f"{outcome.task} remat={outcome.task.remat}: {ended}, {outcome.seconds:.0f} s"
            log(progress(len(cases) - len(left), len(cases), text, None))
            yield outcome


def compile_and_replay(case: Case, machine: Machine) -> dict[str, Any]:
    """Compile a case and return the columns of its row, and `EXPOSED`. Called in a process of its own."""
    assert case.topology
    case.topology.prepare()
    record = compiled_record(case)
    return {**record.as_row().extra_info, EXPOSED: exposed_seconds(record, machine)}


def exposed_seconds(record: Record, machine: Machine) -> float | None:
    """Exposed communication of a compiled step on a machine; None if its program was not read or is not scheduled."""
    if not (record.program and record.step):
        return None
    try:
        program = read_program(record.program.as_text() or "", record.step.mesh.shape)
    except HLOError:
        return None
    replayed = None if program.unread else replay(program, record.step.mesh, machine, record.case.dtype)
    return replayed and replayed.parts.get(EXPOSED_LANE, 0.0)


def compiled(candidate: Candidate, outcome: Outcome[Case]) -> Tried:
    """A candidate with its outcome; its seconds are predicted but for the compiled schedule's exposed communication."""
    columns = outcome.result or {}
    exposed = columns.get(EXPOSED)
    failed = columns.get("status", "ok") != "ok" and (columns.get("reason") or columns["status"])
    reason = outcome.reason or failed or ("its schedule cannot be read" if exposed is None else "")
    predicted = sum(candidate.timeline.parts.get(name, 0.0) for name in SENDING)
    seconds = None if reason or exposed is None else candidate.step_seconds - predicted + exposed
    found = {"compiled.seconds": seconds, "compiled.needed_bytes": columns.get("chip.needed_bytes")}
    found |= {"compiled.exposed_seconds": exposed, "compiled.predicted_exposed_seconds": predicted}
    return Tried(candidate, seconds, found | {"compiled.reason": reason})


def lines(found: Sequence[Tried], ranking: Ranking) -> list[str]:
    """The lines of the table of compiled candidates, and below it why some have no time."""
    rows = [ranking.row(one.candidate) | one.columns for one in found]
    failed = [f"rank {row['rank']}: {row['compiled.reason']}" for row in rows if row["compiled.reason"]]
    return [*wrapped(TITLE), *table(COLUMNS, rows), *paragraph(*failed)]
