"""Progress of a run on the terminal: lines for each case that ends, every few seconds while it runs, and a summary."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.cases.row import Row
from benchmarks.cli.tables import minutes, screen_width
from benchmarks.run.compilation import Clock
from benchmarks.run.measure import BLOCK_SECONDS
from benchmarks.run.states import RunSettings
from benchmarks.run.summary import summary
from strategies.checking import CHECKED_STEPS

PHASES = {"compile": "compiling", "checked": "comparing its first steps with one device", "timed": "timing"}
"""Phases of the clock in words; others keep their names."""


SILENT_SECONDS = 15.0
"""Longest time without a line."""


@contextmanager
def say_regularly(doing: Callable[[], str], every_seconds: float = SILENT_SECONDS) -> Iterator[None]:
    """While the body runs, write a line to standard error every few seconds: what is done, for how long, what is left.

    `doing` says what is done and what is left; "" is no line.
    """
    try:
        descriptor = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)  # also while it is captured
    except OSError:  # closed: nobody reads it
        yield
        return
    ended = threading.Event()

    def say() -> None:
        before, begin = doing(), time.monotonic()
        with suppress(OSError):  # the reader has gone, which the work itself reports
            while not ended.wait(every_seconds):
                text = doing()
                if text != before:  # it began some time after the line before
                    begin = time.monotonic()
                duration = f", {minutes(time.monotonic() - begin)} so far" if text == before else ""
                if text:
                    os.write(descriptor, f"{text}{duration}\n".encode())
                before = text

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        os.close(descriptor)


class Progress:
    """Prints what is running, what has ended, and the estimated remaining time.

    `rows` are those of the cases that have ended, which grow, and `total` is the number of cases.
    """

    def __init__(self, settings: RunSettings, clock: Clock, rows: Mapping[str, Row], total: int) -> None:
        self.settings, self.clock, self.rows, self.total = settings, clock, rows, total
        self.ended, self.prepared, self.running = len(rows), set[str](), ""
        self.start_seconds = time.perf_counter()

    def hear(self, entry: Mapping[str, Any]) -> None:
        """A line of the journal: a case begins or makes progress, or it has ended and its row is among the rows."""
        if "said" in entry:
            self.say(entry["said"])
        elif "began" in entry:
            self.running = entry["began"]
            self.prepared.add(self.running)
        elif "row" in entry and len(self.rows) > self.ended:  # not the same row again, with its attribution
            self.ended = len(self.rows)
            self.say(outcome(Row(**entry["row"])))

    def doing(self) -> str:
        """What is running, for a line that says so every few seconds."""
        if not self.running:
            return ""
        phases = list(self.clock.running)
        phase = PHASES.get(phases[-1], phases[-1]) if phases else "working"
        return progress(self.ended, self.total, f"{self.running}: {phase}", self.seconds_left())

    def say(self, text: str) -> None:
        """Print a line with the progress of the run and the estimated remaining time."""
        print_if_read(progress(self.ended, self.total, text, self.seconds_left()))

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


def progress(done: int, total: int, text: str, seconds_left: float | None) -> str:
    """Format the progress line of a case, such as `[ 7/46] fsdp-fsdp=8-b16: 11,000 tokens/s, about 3:20 left`."""
    left = "" if seconds_left is None else f", about {minutes(seconds_left)} left"
    return f"[{done:{len(str(total))}}/{total}] {text}{left}"


def outcome(row: Row) -> str:
    """Describe the outcome of a case in a few words."""
    info: dict[str, Any] = row.extra_info
    if info["status"] != "ok":
        return f"{row.case}: {info['status']}: {info['reason']}"
    if info["kind"] == "compiled":
        return f"{row.case}: compiled in {info['compile_seconds']:.1f} s"
    return f"{row.case}: {info['tokens_per_second']:,.0f} tokens/s"


def print_summary(rows: Sequence[Row], clock: Clock, report: Path | None, *, absent: bool) -> None:
    """Print the tables of a run, its noise, the path of its report, and its time by phase.

    `absent` says whether the cases were compiled for devices that are absent.
    """
    print_if_read("")  # pytest has not ended the line of its percentage
    for title, lines in summary(rows, absent=absent).items():
        print_if_read(f" {title} ".center(screen_width(), "="), *lines)
    if report:
        print_if_read(f"report: {report}")
    print_if_read(f"time: {clock}")


def print_if_read(*lines: str) -> None:
    """Print lines. A run goes on and saves its rows where its output cannot be printed, as after `| head`."""
    with suppress(OSError):
        print(*lines, sep="\n", flush=True)
