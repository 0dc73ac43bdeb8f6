"""A pytest plugin that says what a run does: a line for each case as it ends, and a summary."""

import time
from contextlib import nullcontext

import pytest

from benchmarks.commandline.tables import PLAIN_WIDTH
from benchmarks.harness.session import Session
from benchmarks.reporting.terminal import absent, noise, outcome, progress, table, where_time_goes
from benchmarks.timing.equality import CHECKED_STEPS
from benchmarks.timing.measure import BLOCK_SECONDS


class Reporter:
    """Takes the place of pytest's dots for the cases of a run; what else is collected is left to pytest."""

    def __init__(self, config: pytest.Config, session: Session) -> None:
        self.config, self.session = config, session
        self.said: set[str] = set()
        self.start = time.perf_counter()
        session.say = self.say

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Begin to estimate."""
        self.said = set(self.session.rows)  # of a run that is gone on with
        self.start = time.perf_counter()
        self.terminal.showfspath = False

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Say on a terminal what goes on; the line is written over when the case has ended."""
        if self.terminal.isatty:
            doing = "compiling" if "test_equals" in nodeid else "timing"
            self.terminal.rewrite(self.line(f"{case_of(nodeid)}: {doing}"), erase=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Say which cases have ended."""
        for case, row in self.session.rows.items():
            if case not in self.said:
                self.said.add(case)
                self.say(outcome(row))

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Count the test as pytest does, and print no dot."""
        return (report.outcome, "", "") if report.when == "call" else None

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The table, how noisy it was, where the report is, and where the time went."""
        if not self.session.rows:
            return
        terminalreporter.section("steps")
        rows = list(self.session.rows.values())
        width = self.config.get_terminal_writer().fullwidth if terminalreporter.isatty else PLAIN_WIDTH
        absent_devices = self.config.option.topology
        for line in absent(rows, width) if absent_devices else [*table(rows, width), *noise(rows)]:
            terminalreporter.write_line(line)
        if lines := where_time_goes(rows, width):
            terminalreporter.section("where the time of a step goes")
            for line in lines:
                terminalreporter.write_line(line)
        if path := self.config.option.benchmark_json:
            terminalreporter.write_line(f"report: {path}")
        terminalreporter.write_line(f"time: {self.session.clock}")

    def say(self, text: str) -> None:
        """Write a line, past the capturing of output."""
        capture = self.config.pluginmanager.get_plugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            if self.terminal.isatty:
                self.terminal.rewrite(self.line(text), erase=True)
                self.terminal.line("")
            else:
                self.terminal.write_line(self.line(text))

    def line(self, text: str) -> str:
        """A line with the place in the run and the time that is left."""
        return progress(len(self.said), len(self.session.cases), text, self.seconds_left())

    def seconds_left(self) -> float | None:
        """An estimate: cases still to be compiled take as long as those that were, and steps as long as the first ones.

        There is none where variants are compiled, too: these take most of the time.
        """
        elapsed, plan, clock = time.perf_counter() - self.start, self.session.plan, self.session.clock.seconds
        prepared = self.session.prepared
        if plan.attribution or not prepared or len(self.said) == len(self.session.cases):
            return None
        compiling = (elapsed - clock["timed"]) / prepared * max(0, len(self.session.cases) - prepared)
        block_seconds = max(BLOCK_SECONDS, clock["checked"] / (prepared * CHECKED_STEPS))
        waiting = len(self.session.cases) - len(self.said)
        return compiling + (0 if plan.compile_only else plan.rounds * block_seconds * waiting)

    @property
    def terminal(self) -> pytest.TerminalReporter:
        """Pytest's own, which writes past the capturing of output."""
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(reporter, pytest.TerminalReporter)
        return reporter


def case_of(nodeid: str) -> str:
    """The id of a case.

    >>> case_of("benchmarks/test_step.py::test_step[fsdp-fsdp=8-b16]")
    'fsdp-fsdp=8-b16'
    """
    return nodeid.partition("[")[2].removesuffix("]")
