"""Progress of a run on the terminal: lines for each case that ends, every few seconds while it runs, and a summary."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.cases.row import Row
from benchmarks.cli.tables import PLAIN_WIDTH, minutes
from benchmarks.run.compilation import Clock
from benchmarks.run.equality import CHECKED_STEPS
from benchmarks.run.ledger import RunSettings
from benchmarks.run.measure import BLOCK_SECONDS
from benchmarks.run.summary import outcome, progress, summary

PHASES = {"compile": "compiling", "checked": "comparing its first steps with one device", "timed": "timing"}
"""Phases of the clock in words; others keep their names."""


SILENT_SECONDS = 15.0
"""Longest time without a line."""


class Alive:
    """A context in which a line is written every few seconds: what is done, for how long, and what is left.

    The lines go to the standard error of the process as it is when this object is made, even if it is captured later.
    """

    def __init__(self, doing: Callable[[], str], every_seconds: float = SILENT_SECONDS) -> None:
        """Say what `doing` returns, with the time since it was first seen to; nothing where it returns ""."""
        self.doing, self.every_seconds = doing, every_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: int | None = None
        try:
            self._error = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)
        except OSError:  # closed: there is nobody to tell
            return

    def __enter__(self) -> "Alive":
        """Start to say it."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop saying it."""
        self.close()

    def close(self) -> None:
        """Stop saying it. It may be called several times, and where nothing was started."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._error is not None:
            os.close(self._error)
            self._error = None

    def _run(self) -> None:
        before, begin = self.doing(), time.monotonic()
        while not self._ended.wait(self.every_seconds):
            text = self.doing()
            if text == before and text:
                self._write(f"{text}, {minutes(time.monotonic() - begin)} so far\n")
            elif text:
                self._write(f"{text}\n")  # it began some time after the line before
                begin = time.monotonic()
            before = text

    def _write(self, line: str) -> None:
        if self._error is not None:
            try:
                os.write(self._error, line.encode())
            except OSError:  # the reader has gone, which the work itself reports
                self._ended.set()


class Progress:
    """Prints what is running, what has ended, and the estimated remaining time.

    Args:
        settings: of the run.
        clock: of the run.
        rows: of the cases that have ended, which grow.
        total: number of cases.
    """

    def __init__(self, settings: RunSettings, clock: Clock, rows: Mapping[str, Row], total: int) -> None:
        self.settings, self.clock, self.rows, self.total = settings, clock, rows, total
        self.ended, self.prepared, self.running = len(rows), set[str](), ""
        self.start_seconds = time.perf_counter()
        self.alive = Alive(self.doing)

    def hear(self, entry: Mapping[str, Any]) -> None:
        """A line of the journal: a case begins or makes progress, or it has ended and its row is among the rows."""
        if "began" in entry:
            self.running = entry["began"]
            self.prepared.add(self.running)
        elif "row" in entry and len(self.rows) > self.ended:  # not the same row again, with its attribution
            self.ended = len(self.rows)
            self.say(outcome(Row(**entry["row"])))

    def doing(self) -> str:
        """What is running, for a line that says so every few seconds."""
        if not self.running:
            return ""
        phases = list(self.clock.phases)
        return self.line(f"{self.running}: {PHASES.get(phases[-1], phases[-1]) if phases else 'working'}")

    def say(self, text: str) -> None:
        """Print a line with the progress of the run."""
        print(self.line(text), flush=True)

    def line(self, text: str) -> str:
        """A line that starts with the progress of the run and the estimated remaining time."""
        return progress(self.ended, self.total, text, self.seconds_left())

    def seconds_left(self) -> float | None:
        """Estimate of the remaining seconds: each remaining compilation takes the mean time of the earlier ones, and
        each timed step as long as the first steps.

        None if it cannot be estimated yet, and with --attribution, where compiling the variants takes most of the time.
        """
        elapsed, seconds = time.perf_counter() - self.start_seconds, self.clock.seconds
        prepared, timing = len(self.prepared), self.clock.running_seconds("timed")
        if self.settings.attribution or not prepared or self.ended == self.total:
            return None
        compiling = (elapsed - seconds["timed"] - timing) / prepared * max(0, self.total - prepared)
        block_seconds = max(BLOCK_SECONDS, seconds["checked"] / (prepared * CHECKED_STEPS))
        blocks_seconds = self.settings.rounds * block_seconds * (self.total - self.ended)
        return compiling + (0 if self.settings.compile_only else max(0.0, blocks_seconds - timing))


def print_summary(rows: Sequence[Row], clock: Clock, report: Path | None, *, absent: bool) -> None:
    """Print the tables of a run, its noise, the path of its report, and its time by phase.

    Args:
        rows: of the cases that have ended.
        clock: of the run.
        report: path of the report, if there is one.
        absent: whether the cases were compiled for devices that are absent.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PLAIN_WIDTH
    for title, lines in summary(rows, width, absent=absent).items():
        print(f" {title} ".center(width, "="), *lines, sep="\n")
    if report:
        print(f"report: {report}")
    print(f"time: {clock}", flush=True)
