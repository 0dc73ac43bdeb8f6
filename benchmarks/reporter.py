"""A pytest plugin that says what a run does: a line for each case as it ends, and a summary."""

import time

import pytest

from benchmarks.session import Session
from benchmarks.terminal import counter, progress, table, time_left


class Reporter:
    """Takes the place of pytest's dots for the cases of a run; what else is collected is left to pytest."""

    def __init__(self, config: pytest.Config, session: Session) -> None:
        self.config = config
        self.session = session
        self.cases: set[str] = set()
        self.running = False
        self.start = time.perf_counter()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the cases that are left after -k, and begin to estimate."""
        self.cases = {item.nodeid for item in session.items if "session" in getattr(item, "fixturenames", ())}
        self.start = time.perf_counter()
        self.running = True
        if self.cases:
            self.terminal.showfspath = False

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Say on a terminal what goes on; the line is written over when the case has ended."""
        if nodeid in self.cases and self.terminal.isatty:
            done, total = len(self.session.records), len(self.cases)
            case = nodeid.partition("[")[2].removesuffix("]")
            left = time_left(done, total, time.perf_counter() - self.start)
            self.terminal.rewrite(f"{counter(done + 1, total)} {case}{left}", erase=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Say how a case ended."""
        if self._ended(report):
            done, elapsed = len(self.session.records), time.perf_counter() - self.start
            text = progress(done, len(self.cases), elapsed, self.session.records[-1])
            if self.terminal.isatty:
                self.terminal.rewrite(text, erase=True)
                self.terminal.line("")
            else:
                self.terminal.write_line(text)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Count the case as pytest does, and print no dot."""
        return (report.outcome, "", "") if self.running and self._ended(report) else None

    def pytest_sessionfinish(self) -> None:
        """Leave the words in the summary of failures to pytest."""
        self.running = False

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The table, where the report is, and where the time went."""
        if not self.session.records:
            return
        terminalreporter.section("steps")
        for row in table(self.session.records):
            terminalreporter.write_line(row)
        if path := self.config.option.benchmark_json:
            terminalreporter.write_line(f"report: {path}")
        terminalreporter.write_line(f"time: {self.session.clock}")

    @property
    def terminal(self) -> pytest.TerminalReporter:
        """Pytest's own, which writes past the capturing of output."""
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(reporter, pytest.TerminalReporter)
        return reporter

    def _ended(self, report: pytest.TestReport) -> bool:
        return report.when == "call" and report.nodeid in self.cases
