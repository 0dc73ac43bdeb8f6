"""Rows in pytest-benchmark's own report: the one place that reaches into pytest-benchmark.

Its public ways, `benchmark(...)` and `benchmark.pedantic(...)`, call a function and time it themselves, and keep no
row of what was not timed. Here steps take turns and are timed in blocks that wait once, every case leaves a row, and
rows of an interrupted run are taken up again.
"""

import argparse
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from pytest_benchmark.stats import Metadata, Stats

from benchmarks.commandline.outputs import Unwritable, require_file, require_folder, special
from benchmarks.row import Row

UNTIMED = "untimed"
"""Where a report has the rows of cases without samples."""
LEAST_FREE_BYTES = 16 * 2**20
"""Room for the report and the journal of thousands of cases."""


class NoStats(Stats):
    """The statistics of a case without samples: the fields of any other, all null."""

    def as_dict(self) -> dict[str, Any]:
        """Every field, unknown."""
        return dict.fromkeys(self.fields)


def publish(config: pytest.Config, rows: Sequence[Row]) -> None:
    """Put rows, and no others, into the report: their samples as the statistics, the rest as `extra_info`."""
    benchmark_session(config).benchmarks.clear()
    for row in rows:
        fixture = SimpleNamespace(
            name=f"test_step[{row.case}]",
            fullname=f"benchmarks/test_step.py::test_step[{row.case}]",
            group=None,
            param=row.case,
            params={"case": row.case},
            extra_info=row.extra_info,
            cprofile_stats=None,
            has_error=False,
        )
        entry = Metadata(fixture, iterations=row.steps_per_block or 1, options={})
        if row.samples:
            entry.stats.data.extend(row.samples)
        else:
            entry.stats = NoStats()
        benchmark_session(config).benchmarks.append(entry)


def set_untimed_apart(report: dict[str, Any]) -> None:
    """Move the rows without samples out of `benchmarks`, where other programs expect numbers in every row.

    `pytest-benchmark compare` formats the statistics of each, and Bencher's adapter for pytest reads `mean` and
    `stddev` as numbers: a null in one row makes them refuse the file.
    """
    rows = report["benchmarks"]
    report[UNTIMED] = [row for row in rows if row["stats"].get("mean") is None]
    report["benchmarks"] = [row for row in rows if row["stats"].get("mean") is not None]


class SoFar:
    """A plugin that writes the report anew whenever cases have ended, for a run that may be ended at any time."""

    def __init__(self, config: pytest.Config, rows: Mapping[str, Row]) -> None:
        self.config, self.rows, self.written = config, rows, 0

    def pytest_runtest_logfinish(self) -> None:
        """A test has ended, and with it all cases that took turns, or none."""
        if len(self.rows) > self.written:
            self.written = len(self.rows)
            publish(self.config, [*self.rows.values()])
            with whole_report(self.config):
                benchmark_session(self.config).handle_saving()


def report_nothing(config: pytest.Config) -> None:
    """Have this process write and print nothing, for another does."""
    option = config.option
    option.benchmark_json = option.benchmark_save = option.benchmark_compare = None
    option.benchmark_autosave = option.benchmark_compare_fail = False
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - pytest's reporter takes it when it starts


def use(benchmark: BenchmarkFixture) -> None:
    """Tell pytest-benchmark that a test's fixture is not forgotten: its row comes with `publish`."""
    benchmark._mode = "publish"


def benchmark_session(config: pytest.Config) -> Any:
    """What pytest-benchmark collects rows in."""
    return config._benchmarksession  # pyright: ignore[reportAttributeAccessIssue]


def quieten(config: pytest.Config) -> None:
    """Leave out pytest-benchmark's table, wide and of times alone, unless one of its display options is given.

    When -k leaves no case it warns of that, which pytest's own words and exit code say already.
    """
    option = config.option
    asked = option.benchmark_columns or option.benchmark_compare or option.benchmark_histogram
    option.benchmark_quiet = not (asked or option.benchmark_verbose)
    warnings.filterwarnings("ignore", "Not saving anything, no benchmarks have been run")


def require_writable(path: Path | None) -> None:
    """See that the report can be written before hours of work are lost; its folder is made if need be.

    Raises:
        pytest.UsageError: the file cannot be written, is no file, or its disk is full.
    """
    if path is None:
        return
    if special(path):
        raise pytest.UsageError(f"--benchmark-json={path} is a device or a pipe; name a file")
    try:
        require_file(path)
        require_file(path.with_name(f"{path.stem}.journal.jsonl~"))  # its name is longer
        free_bytes = shutil.disk_usage(path.parent).free
    except Unwritable as error:
        raise pytest.UsageError(f"--benchmark-json: {error}") from error
    if free_bytes < LEAST_FREE_BYTES:
        problem = f"--benchmark-json={path} has {free_bytes / 2**20:.1f} MiB left on its disk"
        raise pytest.UsageError(f"{problem}; free {LEAST_FREE_BYTES / 2**20:.0f} MiB, or name another")


def require_storage(option: argparse.Namespace) -> None:
    """See that pytest-benchmark's own storage can be written, if it is to be.

    Raises:
        pytest.UsageError: it cannot; with the system's reason.
    """
    where = option.benchmark_storage.removeprefix("file://")
    if not (option.benchmark_save or option.benchmark_autosave) or "://" in where:
        return
    try:
        require_folder(Path(where))
    except Unwritable as error:
        raise pytest.UsageError(f"--benchmark-storage: {error}") from error


@contextmanager
def whole_report(config: pytest.Config) -> Iterator[None]:
    """Have the report that is written inside take its place when it is whole: there is an earlier one, or this.

    Raises:
        OSError: it cannot be written.
    """
    session, report = benchmark_session(config), config.option.benchmark_json
    if report is None:
        yield
        return
    session.json = part = report.with_name(f"{report.name}.part")
    try:
        yield
        if part.exists():  # it is not where no case was selected
            part.replace(report.resolve())
    finally:
        part.unlink(missing_ok=True)
