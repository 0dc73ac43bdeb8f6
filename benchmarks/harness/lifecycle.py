"""The life of a case: it begins, it may hang, and however it ends there is a row."""

import traceback
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.arguments import MIN_ROUNDS
from benchmarks.cases import Case
from benchmarks.cluster import processes
from benchmarks.commandline.outputs import safe_name
from benchmarks.failures import CaseFailure, Died, TimedOut, reason_of, status_of
from benchmarks.harness.corpus import Corpus
from benchmarks.harness.journal import Journal, JournalError
from benchmarks.harness.prepare import Entry
from benchmarks.harness.watchdog import Watchdog
from benchmarks.row import Row
from benchmarks.statuses import A_TIMEOUT

MOST_DEATHS = 2
"""A case that ended so many processes is not tried again."""


@dataclass(frozen=True)
class RunPlan:
    """How a run goes about its cases.

    Attributes:
        corpus_N: the text.
        rounds: how many blocks of each case are timed.
        compile_only: ask the compiler, and run nothing.
        trace: a folder for a profiler's trace of each case, taken apart from what is timed.
        case_timeout: seconds after which a case that gets nowhere has ended.
        attribution: say of each step where its time goes.
        report: the file of the rows; a reason that is too long for a row is written beside it.
    """

    corpus_N: Corpus
    rounds: int = MIN_ROUNDS
    compile_only: bool = False
    trace: Path | None = None
    case_timeout: float = 600.0
    attribution: bool = False
    report: Path | None = None


class Lifecycle:
    """The cases of a run that have begun, and the rows of those that have ended.

    Its watchdog ends a process in which a case hangs. One that is closed, or dropped, ends no process any more.

    Attributes:
        entries: those that were prepared, by id.
    """

    def __init__(self, plan: RunPlan, journal: Journal) -> None:
        self.plan, self.journal, self.entries = plan, journal, dict[str, Entry]()
        time_out = weakref.WeakMethod(self._time_out)  # the watchdog's thread must not keep this object
        self.watchdog = Watchdog(plan.case_timeout, lambda case: end(case) if (end := time_out()) else None)
        weakref.finalize(self, self.watchdog.stop)

    @property
    def rows(self) -> dict[str, Row]:
        """The cases that have ended, by id."""
        return self.journal.rows

    @property
    def waiting(self) -> list[Entry]:
        """Those prepared, not yet ended."""
        return [entry for name, entry in self.entries.items() if name not in self.rows]

    def begin(self, case: str) -> None:
        """A case begins, or goes on."""
        self.watchdog.beat(case)
        self.journal.begin(case)

    def end(self, entry: Entry, **facts: Any) -> None:
        """A case has ended: its row is final."""
        entry.record = replace(entry.record, **facts)
        self.journal.finish(entry.record.as_row())
        self.watchdog.rest()

    def fail(self, entry: Entry, error: Exception) -> None:
        """A case has ended in an error."""
        traceback.clear_frames(error.__traceback__)  # they hold states, and the next case needs their memory
        entry.error = error
        self.end(entry, status=status_of(error), reason=reason_of(error, self._beside_report(entry.case)))

    @contextmanager
    def ending(self, entries: Sequence[Entry]) -> Iterator[None]:
        """What goes wrong inside ends these cases, and not the run; Ctrl-C ends the run, and a disk that is full."""
        try:
            yield
        except JournalError:
            raise
        except Exception as error:
            for entry in entries:
                if str(entry.case) not in self.rows:
                    self.fail(entry, error)

    def died(self, case: Case) -> CaseFailure | None:
        """Whether a case has ended too many processes: one is enough where it hung, for that takes long to find."""
        deaths = self.journal.deaths.get(str(case), [])
        if A_TIMEOUT in deaths:
            return TimedOut(self._silence())
        if len(deaths) < MOST_DEATHS:
            return None
        return Died(f"{len(deaths)} processes died while it ran, the last of {deaths[-1]}")

    def close(self) -> list[Row]:
        """End the run; all rows, those of cases that were not finished among them."""
        self.watchdog.stop()
        self.journal.stop()
        stopped = {"status": "interrupted", "reason": "the run was stopped before the case was timed"}
        return [*self.rows.values(), *(replace(entry.record, **stopped).as_row() for entry in self.waiting)]

    def _beside_report(self, case: Case) -> Path | None:
        """Where a text on a case is kept, if a report is; the first of several processes writes it."""
        report = self.plan.report if processes.is_first() else None
        return report and report.with_name(f"{safe_name(f'{report.stem}.{case}')}.txt")

    def _silence(self) -> str:
        waited = f"nothing was heard of it for {self.plan.case_timeout:g} seconds"
        return f"{waited}; --case-timeout sets how long to wait"

    def _time_out(self, case: str) -> None:
        """The last words of the watchdog, in its thread, while the case hangs in this one's.

        A reference that hangs has no row to say so; it counts as dead.
        """
        if case in self.entries and case not in self.rows:
            self.journal.finish(replace(self.entries[case].record, status="timeout", reason=self._silence()).as_row())
