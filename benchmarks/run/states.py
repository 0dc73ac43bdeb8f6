"""The states of a run's cases: a case begins, gains facts, and ends in a row, however it ends."""

import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jax.errors import JaxRuntimeError

from benchmarks.cases.case import Case
from benchmarks.cases.failures import ERRORS, CaseFailure, ProcessDied, TimedOut, reason_of, status_of
from benchmarks.cases.row import Row
from benchmarks.cli.options import CASE_TIMEOUT
from benchmarks.cli.statuses import MAX_DEATHS, TIMEOUT_CAUSE
from benchmarks.cli.values import MIN_ROUNDS
from benchmarks.run.corpus import Corpus
from benchmarks.run.journal import Journal, JournalError
from benchmarks.run.record import Record
from benchmarks.simulate.machine import Machine


@dataclass(frozen=True)
class RunSettings:
    """Settings of a run: the options of the same names. `trace` and `memory_profile` are folders.

    In `extra_seconds` cases with a wide interval get more than `rounds` blocks.
    """

    corpus_N: Corpus
    rounds: int = MIN_ROUNDS
    extra_seconds: float = 0.0
    compile_only: bool = False
    trace: Path | None = None
    case_timeout: float = CASE_TIMEOUT
    attribution: bool = False
    memory_profile: Path | None = None
    machine: Machine | None = None


class CaseStates:
    """The state of every case of a run: its record, once it has begun, and its row, once it has ended."""

    def __init__(self, settings: RunSettings, journal: Journal) -> None:
        self.settings, self.journal, self.records = settings, journal, dict[str, Record]()

    @property
    def rows(self) -> dict[str, Row]:
        """Rows of the cases that have ended, by id."""
        return self.journal.rows

    def begin(self, case: Case) -> None:
        """A case begins or makes progress. The supervisor ends the process if neither happens for too long."""
        self.journal.begin(str(case))

    def add(self, case: Case, **facts: Any) -> None:
        """Add columns and other facts to the record of a case."""
        self.records[str(case)] = self.records[str(case)].adding(**facts)

    def end(self, case: Case, **facts: Any) -> None:
        """A case has ended. Its row is final, with these last columns and facts."""
        self.add(case, **facts)
        self.journal.finish(self.records[str(case)].as_row())

    def fail(self, case: Case, error: BaseException) -> None:
        """A case has ended with an error."""
        facts: dict[str, Any] = {"status": status_of(error), "reason": reason_of(error)}
        # Of other failures, and of what the compiler says, the reason says it all.
        if facts["status"] in ("error", "compile_error") and not isinstance(error.__cause__, JaxRuntimeError):
            self.journal.report_traceback(str(case), "".join(traceback.format_exception(error)))
        # Frames keep training states alive, whose memory the next case needs.
        traceback.clear_frames(error.__traceback__)
        facts |= {"columns": {"matches_single": False}} if facts["status"] == "mismatch" else {}
        try:
            self.end(case, **facts)
        except JournalError:
            raise
        except ERRORS:  # what the record has learnt of a user's step cannot be a row
            self.records[str(case)] = Record.begin(case, compile_only=self.settings.compile_only)
            self.end(case, **facts)

    @contextmanager
    def record_failures(self, cases: Iterable[Case]) -> Iterator[None]:
        """Errors in the body end these cases instead of the run. Ctrl-C and a full disk still end the run."""
        try:
            yield
        except JournalError:
            raise
        except ERRORS as error:
            for case in cases:
                if str(case) not in self.rows:
                    self.fail(case, error)

    def given_up(self, case: Case) -> CaseFailure | None:
        """Reason to give up a case that earlier processes died of; None to try it.

        One death is enough if the case hung, because that takes long to detect.
        """
        deaths = self.journal.deaths.get(str(case), [])
        if TIMEOUT_CAUSE in deaths:
            waited = f"it made no progress for {self.settings.case_timeout:g} seconds"
            return TimedOut(f"{waited}; --case-timeout sets how long to wait")
        if len(deaths) < MAX_DEATHS:
            return None
        return ProcessDied(f"{len(deaths)} processes died while it ran, the last of {deaths[-1]}")

    def close(self) -> list[Row]:
        """End the run, and return rows of the cases that have begun and not ended; these are interrupted."""
        self.journal.stop()
        stopped = {"status": "interrupted", "reason": "the run was stopped before the case was timed"}
        waiting = [record for name, record in self.records.items() if name not in self.rows]
        return [replace(record, **stopped).as_row() for record in waiting]
