"""A pytest plugin that reports progress: a line for each case as it ends, and a summary."""

import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.commandline.tables import PLAIN_WIDTH
from benchmarks.run.alive import Alive
from benchmarks.run.equality import CHECKED_STEPS
from benchmarks.run.measure import BLOCK_SECONDS
from benchmarks.run.session import Session
from benchmarks.run.terminal import (
    absent,
    checkpoints,
    noise,
    outcome,
    progress,
    resolution,
    table,
    unpredicted,
    where_time_goes,
)

PHASES = {"compile": "compiling", "checked": "comparing its first steps with one device", "timed": "timing"}
"""Phases of the clock in words; others keep their names."""


class Reporter:
    """Replaces pytest's dots for the cases of a run. Other tests are reported by pytest as usual."""

    def __init__(self, config: pytest.Config, session: Session) -> None:
        self.config, self.session = config, session
        self.reported: set[str] = set()
        self.start_seconds = time.perf_counter()
        session.say = self.say
        self.running = ""
        self.alive = Alive(self.doing)  # made before pytest captures what a case prints

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Start the estimate of the remaining time."""
        self.reported = set(self.session.rows)  # rows of an earlier process of this run
        self.start_seconds = time.perf_counter()
        self.terminal.showfspath = False
        if not self.config.option.collectonly:
            self.alive.__enter__()

    def pytest_unconfigure(self) -> None:
        """Stop to say what is running."""
        self.alive.close()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """On a terminal, show what is running. The line is overwritten when the case has ended."""
        self.running = case_of(nodeid)
        if self.terminal.isatty:
            doing = "compiling" if "test_equals" in nodeid else "timing"
            self.terminal.rewrite(self.line(f"{case_of(nodeid)}: {doing}"), erase=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Report the cases that have ended."""
        for case, row in self.session.rows.items():
            if case not in self.reported:
                self.reported.add(case)
                self.say(outcome(row))

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Count the test as pytest does, but print no dot."""
        return (report.outcome, "", "") if report.when == "call" else None

    @pytest.hookimpl(trylast=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Say that the run was stopped and how it goes on, instead of the place in the sources, as pytest would."""
        if isinstance(excinfo.value, KeyboardInterrupt):
            advice = "; continue with --resume" if self.config.option.benchmark_json else ""
            said: Any = SimpleNamespace(reprcrash=SimpleNamespace(message=f"stopped{advice}"))
            self.terminal._keyboardinterrupt_memo = said

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table of rows, how noisy the run was, the path of the report, and the time by phase."""
        if not self.session.rows:
            return
        terminalreporter.section("steps")
        rows = list(self.session.rows.values())
        width = self.config.get_terminal_writer().fullwidth if terminalreporter.isatty else PLAIN_WIDTH
        absent_devices = self.config.option.topology
        measured = [*resolution(rows), *table(rows, width), *unpredicted(rows), *noise(rows)]
        for line in absent(rows, width) if absent_devices else measured:
            terminalreporter.write_line(line)
        others = {"where the time of a step goes": where_time_goes, "checkpoints": checkpoints}
        for title, lines_of in others.items():
            if lines := lines_of(rows, width):
                terminalreporter.section(title)
                for line in lines:
                    terminalreporter.write_line(line)
        if path := self.config.option.benchmark_json:
            terminalreporter.write_line(f"report: {path}")
        terminalreporter.write_line(f"time: {self.session.clock}")

    def doing(self) -> str:
        """What is running, for a line that says so every few seconds."""
        if not self.running:
            return ""
        phases = list(self.session.clock.phases)
        return self.line(f"{self.running}: {PHASES.get(phases[-1], phases[-1]) if phases else 'working'}")

    def say(self, text: str) -> None:
        """Print a line, bypassing pytest's output capture."""
        capture = self.config.pluginmanager.get_plugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            if self.terminal.isatty:
                self.terminal.rewrite(self.line(text), erase=True)
                self.terminal.line("")
            else:
                self.terminal.write_line(self.line(text))

    def line(self, text: str) -> str:
        """A line that starts with the progress of the run and the estimated remaining time."""
        return progress(len(self.reported), len(self.session.cases), text, self.seconds_left())

    def seconds_left(self) -> float | None:
        """Estimate of the remaining seconds: each remaining compilation takes the mean time of the earlier ones, and
        each timed step as long as the first steps.

        None if it cannot be estimated yet, and with --attribution, where compiling the variants takes most of the time.
        """
        elapsed, settings, clock = (
            time.perf_counter() - self.start_seconds,
            self.session.settings,
            self.session.clock.seconds,
        )
        prepared, timing = self.session.prepared, self.session.clock.running_seconds("timed")
        if settings.attribution or not prepared or len(self.reported) == len(self.session.cases):
            return None
        compiling = (elapsed - clock["timed"] - timing) / prepared * max(0, len(self.session.cases) - prepared)
        block_seconds = max(BLOCK_SECONDS, clock["checked"] / (prepared * CHECKED_STEPS))
        waiting = len(self.session.cases) - len(self.reported)
        return compiling + (
            0 if settings.compile_only else max(0.0, settings.rounds * block_seconds * waiting - timing)
        )

    @property
    def terminal(self) -> pytest.TerminalReporter:
        """Pytest's terminal reporter, which bypasses the output capture."""
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(reporter, pytest.TerminalReporter)
        return reporter


def case_of(nodeid: str) -> str:
    """The case id in a pytest node id.

    >>> case_of("benchmarks/test_step.py::test_step[fsdp-fsdp=8-b16]")
    'fsdp-fsdp=8-b16'
    """
    return nodeid.partition("[")[2].removesuffix("]")
