"""Rows in pytest-benchmark's own report: the one place that reaches into pytest-benchmark.

Its public ways, `benchmark(...)` and `benchmark.pedantic(...)`, call a function and time it themselves, and keep no
row of what was not timed. Here steps are timed in blocks that wait once, and every case leaves a row.
"""

import warnings
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from pytest_benchmark.stats import Metadata, Stats

from benchmarks.record import Record


class NoStats(Stats):
    """The statistics of a case without samples: the fields of any other, all null."""

    def as_dict(self) -> dict[str, Any]:
        """Every field, unknown."""
        return dict.fromkeys(self.fields)


def publish(benchmark: BenchmarkFixture, record: Record) -> None:
    """Put a record into the report: its samples as the statistics, the rest as `extra_info`."""
    benchmark._mode = "publish"  # used, and only once
    benchmark.extra_info.update(record.as_extra_info())
    row = Metadata(benchmark, iterations=record.steps_per_block or 1, options={})
    row.params = {"case": str(record.case)}  # plain text, for JSON
    if record.samples:
        row.stats.data.extend(record.samples)
    else:
        row.stats = NoStats()
    benchmark._add_stats(row)


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
        pytest.UsageError: the file cannot be written.
    """
    if path is None:
        return
    existed = path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
    except OSError as error:
        raise pytest.UsageError(f"--benchmark-json={path} cannot be written: {error.strerror}; name another") from error
    if not existed:
        path.unlink()
