"""Lifecycle of a case: it begins, it may hang, and however it ends, it leaves a row."""

import traceback
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.cases.case import Case
from benchmarks.cases.failures import CaseFailure, ProcessDied, TimedOut, reason_of, status_of
from benchmarks.cases.row import Row
from benchmarks.cli.values import MIN_ROUNDS
from benchmarks.cluster import processes
from benchmarks.commandline.outputs import safe_name
from benchmarks.commandline.statuses import TIMEOUT_CAUSE
from benchmarks.run.corpus import Corpus
from benchmarks.run.journal import Journal, JournalError
from benchmarks.run.prepare import Entry
from benchmarks.run.watchdog import Watchdog
from benchmarks.simulate.machine import Machine

MAX_DEATHS = 2
"""Number of processes that may die during a case before it is given up."""


@dataclass(frozen=True)
class RunSettings:
    """Settings of a run.

    Attributes:
        corpus_N: the text to train on.
        rounds: number of timed blocks of each case.
        extra_seconds: if these take less time, cases with a wide interval get more blocks until then.
        compile_only: only compile, and run nothing.
        trace: folder for a profiler trace of each case, which is recorded apart from the timed blocks.
        case_timeout: seconds without progress after which a case ends with a timeout.
        attribution: whether to attribute each step's time to its causes.
        checkpoints: folder in which saving and restoring each state is timed; None to time neither.
        memory_profile: folder for profiles of device memory of each case.
        report: file of the rows; reasons that are too long for a row are written beside it.
        machine: by which times of steps are predicted; None to predict none.
    """

    corpus_N: Corpus
    rounds: int = MIN_ROUNDS
    extra_seconds: float = 0.0
    compile_only: bool = False
    trace: Path | None = None
    case_timeout: float = 600.0
    attribution: bool = False
    checkpoints: Path | None = None
    report: Path | None = None
    memory_profile: Path | None = None
    machine: Machine | None = None


class Lifecycle:
    """The cases of a run that have begun, and the rows of those that have ended.

    Its watchdog ends the process if a case hangs, until the lifecycle is closed or garbage-collected.

    Attributes:
        settings: of the run.
        journal: of the run.
        entries: the prepared cases by id.
    """

    def __init__(self, settings: RunSettings, journal: Journal) -> None:
        self.settings, self.journal, self.entries = settings, journal, dict[str, Entry]()
        # Weak, so that the watchdog's thread does not keep this object alive.
        time_out = weakref.WeakMethod(self._time_out)
        self.watchdog = Watchdog(settings.case_timeout, lambda case: end(case) if (end := time_out()) else None)
        weakref.finalize(self, self.watchdog.stop)

    @property
    def rows(self) -> dict[str, Row]:
        """Rows of the cases that have ended, by id."""
        return self.journal.rows

    @property
    def waiting(self) -> list[Entry]:
        """Prepared cases that have not ended."""
        return [entry for name, entry in self.entries.items() if name not in self.rows]

    def begin(self, case: str) -> None:
        """A case begins or makes progress."""
        self.watchdog.beat(case)
        self.journal.begin(case)

    def end(self, entry: Entry, **facts: Any) -> None:
        """A case has ended. Its row is final, with these last facts."""
        entry.record = replace(entry.record, **facts)
        self.journal.finish(entry.record.as_row())
        self.watchdog.pause()

    def fail(self, entry: Entry, error: Exception) -> None:
        """A case has ended with an error."""
        # Frames keep training states alive, whose memory the next case needs.
        traceback.clear_frames(error.__traceback__)
        entry.error = error
        self.end(entry, status=status_of(error), reason=reason_of(error, self._reason_file(entry.case)))

    @contextmanager
    def failures_end(self, entries: Sequence[Entry]) -> Iterator[None]:
        """Errors in the body end these cases instead of the run. Ctrl-C and a full disk still end the run."""
        try:
            yield
        except JournalError:
            raise
        except Exception as error:
            for entry in entries:
                if str(entry.case) not in self.rows:
                    self.fail(entry, error)

    def given_up(self, case: Case) -> CaseFailure | None:
        """Reason to give up a case that earlier processes died of; None to try it.

        One death is enough if the case hung, because that takes long to detect.
        """
        deaths = self.journal.deaths.get(str(case), [])
        if TIMEOUT_CAUSE in deaths:
            return TimedOut(self._timeout_reason())
        if len(deaths) < MAX_DEATHS:
            return None
        return ProcessDied(f"{len(deaths)} processes died while it ran, the last of {deaths[-1]}")

    def close(self) -> list[Row]:
        """End the run, and return all rows. Prepared cases that have not ended become interrupted."""
        self.watchdog.stop()
        self.journal.stop()
        stopped = {"status": "interrupted", "reason": "the run was stopped before the case was timed"}
        return [*self.rows.values(), *(replace(entry.record, **stopped).as_row() for entry in self.waiting)]

    def _reason_file(self, case: Case) -> Path | None:
        """File for a reason that is too long for a row: beside the report, written by the first process.

        None without a report.
        """
        report = self.settings.report if processes.is_first() else None
        return report and report.with_name(f"{safe_name(f'{report.stem}.{case}')}.txt")

    def _timeout_reason(self) -> str:
        waited = f"it made no progress for {self.settings.case_timeout:g} seconds"
        return f"{waited}; --case-timeout sets how long to wait"

    def _time_out(self, case: str) -> None:
        """Record the row of a case that hangs. Called from the watchdog's thread just before it ends the process.

        A reference that hangs has no row; its death is recorded by the next process.
        """
        if case in self.entries and case not in self.rows:
            self.journal.finish(
                replace(self.entries[case].record, status="timeout", reason=self._timeout_reason()).as_row()
            )
