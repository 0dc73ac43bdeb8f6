"""Supervisor: runs the measuring process, and restarts it without the case that killed it.

Aborts of a backend, the system's out-of-memory killer and hanging collectives all end the process that they happen in.
The measuring process (`program.py`) sends every line of its journal to this process as well. If the journal does not
grow for too long, the process hangs, and is killed.
"""

import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases.row import Row
from benchmarks.cli.child import Child, same_code
from benchmarks.cli.statuses import INTERRUPTED, MAX_DEATHS, REFUSED, TIMED_OUT, UNWRITTEN, cause_of_death

PROGRAM = "benchmarks.run"
"""The module that measures."""
JOURNAL = "MESHMARK_JOURNAL"
"""Environment variable with the journal's path; without it, cases are only listed."""
RESUMED = "MESHMARK_RESUMED"
"""Environment variable with a cause of death, for a process that continues the journal of one that died."""
STOP = signal.SIGUSR1
"""The signal that stops the measuring process; before it handles signals, it ends it silently."""
PATIENCE_SECONDS = 2.0
"""Time for the measuring process to react to a stop. After that, a message says what it is doing, or it is killed."""
TICK_SECONDS = 0.25
"""Longest wait for a message before other checks."""


class Ended(Exception):
    """The run ended before a case did: `status` is its exit status, `reason` says why in one line."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Supervisor:
    """A run, which another process measures: `cases` are the ids that the options select, in the order of measuring.

    The `first` of several processes prints and writes. `interrupted` are rows of the cases that had begun when the run
    was stopped.
    """

    def __init__(
        self, options: Mapping[str, Any], journal: Path | None, *, alone: bool, timeout_seconds: float, listing: bool
    ) -> None:
        """Supervise a run of a single process, if `alone`, or of one of several, in which one death ends all.

        The process is killed after `timeout_seconds` without a line of the journal.
        """
        self.cases, self.first, self.machine = list[str](), True, dict[str, Any]()
        self.rows, self.interrupted, self.tracebacks = dict[str, Row](), list[Row](), dict[str, str]()
        self.journal, self._options = journal, options
        self._alone, self._timeout_seconds = alone, timeout_seconds
        self._folder = tempfile.TemporaryDirectory(prefix="meshmark-")
        self._command = [sys.executable, "-P", "-m", PROGRAM]
        path = journal or Path(self._folder.name, "journal.jsonl")
        self._environment = same_code() | ({} if listing else {JOURNAL: str(path)})
        # Those of the terminal: pytest replaces them while tests run.
        self._output, self._errors = os.dup(1), os.dup(2)
        self._stops, self._announced, self._deaths = list[float](), False, Counter[str]()
        self._selected: list[str] | None = None
        self._child: Child | None = None
        self._end: Ended | None = None

    def begin(self) -> None:
        """Start the run, until it has said which cases it has. SIGINT and SIGTERM stop it from now on."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        self._restart()
        self._until(lambda: bool(self.cases))

    def select(self, cases: Sequence[str]) -> None:
        """Let it measure these cases."""
        assert self._child
        self._selected = list(cases)
        self._child.send(self._selected)

    def row(self, case: str) -> Row:
        """Wait for a case to end."""
        self._until(lambda: case in self.rows)
        return self.rows[case]

    def finish(self) -> int:
        """Wait for the process to end, and return its exit status. It is stopped if cases are left."""
        if self._end is None:
            if not self._measured_all():
                self._stop(STOP, None)
            try:
                self._until(lambda: False)
            except Ended as end:
                self._end = end
        for number in (signal.SIGINT, signal.SIGTERM):  # they stop what is left to do here
            signal.signal(number, signal.default_int_handler)
        return self._end.status if self._end else 0

    def remove_journal(self) -> None:
        """Delete the journal of a run in which every case has a row, once the report has been written."""
        if self.journal and self.first and self._measured_all():
            self.journal.unlink(missing_ok=True)

    def close(self) -> None:
        """Kill the process if it still runs, and delete the temporary journal."""
        if self._child:
            self._child.end()
        for descriptor in (self._output, self._errors):
            os.close(descriptor)
        self._folder.cleanup()

    def _measured_all(self) -> bool:
        return self._selected is not None and {*self._selected} <= self.rows.keys()

    def _restart(self) -> None:
        """Start the process. One that replaces another is told at once which cases to measure."""
        self._silent_seconds, self._refusal = 0.0, ""
        self._running: str | None = None
        self._began, self._stopped = "", False
        self._last: dict[str, Any] | None = None
        # In this one's group: what suspends one of them, as Ctrl-Z, suspends both.
        output, errors = self._output, self._errors
        self._child = Child(self._command, self._environment, output=output, errors=errors, own_group=False)
        self._child.send(self._options)
        if self._selected is not None:
            self._child.send(self._selected)

    def _stop(self, number: int, _: object) -> None:
        """Stop the process in order, and at the second stop at once."""
        self._stops.append(time.monotonic())
        if self._child and self._child.runs:
            self._child.process.send_signal(STOP)

    def _until(self, done: Callable[[], bool]) -> None:
        """Listen until something is done."""
        while not done():
            if self._end:
                raise self._end
            assert self._child
            if not self._listen(self._child):
                hung = self._silent_seconds > self._timeout_seconds
                self._ended(TIMED_OUT if hung else self._child.process.wait())
            self._escalate_stop()
            if self._silent_seconds > self._timeout_seconds:
                self._child.kill()

    def _listen(self, child: Child) -> bool:
        """Wait at most `TICK_SECONDS` for a message; whether there may be more."""
        start = time.monotonic()
        try:
            if child.connection.poll(TICK_SECONDS):
                self._hear(child.connection.recv())
                self._silent_seconds = 0.0
                return True
        except (EOFError, OSError):
            return False
        if self._running or self._last:
            # Time in which this process was suspended (Ctrl-Z) does not count: the other one may have been, too.
            self._silent_seconds += min(time.monotonic() - start, 2 * TICK_SECONDS)
        return True

    def _hear(self, entry: dict[str, Any]) -> None:
        """Process a message."""
        if "said" in entry:  # for the terminal
            return
        self._running = entry.get("began")
        self._began = entry.get("began", self._began)
        self._stopped |= "stopped" in entry
        if "row" in entry:
            row = Row(**entry["row"])
            self.rows[row.case] = row
        elif "failed" in entry:
            self.tracebacks[entry["failed"]] = entry["traceback"]
        elif "refused" in entry:
            self._refusal = entry["refused"]
        elif "ended" in entry:
            self._last = entry
            self.interrupted = [Row(**line["row"]) for line in entry["interrupted"]]
        elif "cases" in entry:
            self.cases, self.first = entry["cases"], entry["first"]
        self.machine = entry.get("machine", self.machine)

    def _escalate_stop(self) -> None:
        """Kill a process that was stopped twice and does not exit; after one stop, say what it is doing."""
        waited = time.monotonic() - self._stops[min(len(self._stops), 2) - 1] if self._stops else 0.0
        if len(self._stops) > 2 or (len(self._stops) == 2 and waited > PATIENCE_SECONDS):
            assert self._child
            self._child.kill()
        elif self._stops and waited > PATIENCE_SECONDS and not self._announced and not self._last:
            self._announced = True
            doing = f"{self._running or 'it'} cannot be interrupted right now"
            limit = f"waiting {self._timeout_seconds:g} seconds at most"
            self._say(f"stopping: {doing}; {limit}; press Ctrl-C again to end it at once")

    def _ended(self, status: int) -> None:
        """Judge how the process has ended: the run has ended, or a process that died is replaced."""
        assert self._child
        self._child.connection.close()
        shell_status = 128 - status if status < 0 else status
        if self._last:  # in order
            if status == TIMED_OUT:
                self._say("the benchmarks were done, but their process hung during shutdown and was killed")
            reason = self._last["why"] or ("stopped" if self._last["ended"] else "")
            advice = "; continue with --resume" if self.journal and reason == "stopped" else ""
            self._finally(self._last["ended"], reason + advice)
        if self._refusal:
            self._finally(REFUSED, self._refusal)
        if self._stops:
            self._finally(INTERRUPTED, self._stopped_hard())
        if not self._began or self._stopped or status == UNWRITTEN:
            self._finally(shell_status, f"the benchmarks were ended by {cause_of_death(status)}" if self._began else "")
        death = cause_of_death(status)
        if not self._alone:
            advice = f"; {self.journal} has the finished rows, for --resume" if self.journal else ""
            self._say(f"the benchmarks were ended by {death}, and so were all other processes{advice}")
            self._finally(shell_status, f"ended by {death}")
        self._deaths[self._began] += 1
        if (times := self._deaths[self._began]) > MAX_DEATHS:  # giving up the case has not helped
            self._finally(shell_status or 1, f"{times} processes ended after {self._began} began, the last by {death}")
        self._say(f"the benchmarks were ended by {death}; continuing with the remaining cases")
        self._environment |= {RESUMED: death}
        self._restart()

    def _finally(self, status: int, reason: str) -> None:
        self._end = Ended(status, reason)
        raise self._end

    def _stopped_hard(self) -> str:
        """Say how to continue a run that was stopped before it could end in order."""
        if not (self._began or self.rows):
            self._say("stopped before a case had begun")
        elif self.journal:
            self._say(f"stopped; {self.journal} has the finished cases: continue with --resume")
        return "stopped"

    def _say(self, text: str) -> None:
        """Write a line to stderr, also while pytest captures it."""
        os.write(self._errors, f"\n{text}\n".encode())
