"""Writes rows into pytest-benchmark's report. This is the only module that uses its internals.

Its public API, `benchmark(...)` and `benchmark.pedantic(...)`, calls and times a function itself and keeps no row for
anything that was not timed. Here, steps are timed interleaved, in blocks that synchronise once; every case leaves a
row; and rows of an interrupted run are continued.
"""

import argparse
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from pytest_benchmark.logger import Logger
from pytest_benchmark.session import PerformanceRegression
from pytest_benchmark.stats import Metadata, Stats
from pytest_benchmark.utils import load_storage

from benchmarks.cases.row import Row
from benchmarks.cli.options import dashed
from benchmarks.cli.outputs import Unwritable, require_apart, require_file, require_folder, special
from benchmarks.run.journal import fingerprint

UNTIMED = "untimed"
"""Key of the report under which rows without samples are stored."""
LEAST_FREE_BYTES = 16 * 2**20
"""Disk space for the report and the journal of thousands of cases."""
WITHOUT_EFFECT = {
    f"--benchmark-{name}"
    for name in (
        *("min-time", "max-time", "min-rounds", "timer", "calibration-precision", "warmup", "warmup-iterations"),
        *("disable-gc", "disable", "skip", "cprofile", "cprofile-loops", "cprofile-top", "cprofile-dump"),
    )
}
"""Options of pytest-benchmark that say how a function is called."""
NOT_DECISIVE = "matmul_flops_per_second", "counters_fingerprint", "virtual_devices"
"""Facts of the machine that are measured, or follow from others."""


class NoStats(Stats):
    """Statistics of a case without samples: the usual fields, all null."""

    def as_dict(self) -> dict[str, Any]:
        """All fields with value None."""
        return dict.fromkeys(self.fields)


def publish(config: pytest.Config, rows: Sequence[Row]) -> None:
    """Make the report consist of exactly these rows: samples as statistics, everything else as `extra_info`."""
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


def move_untimed_rows(report: dict[str, Any]) -> None:
    """Move the rows without samples from `benchmarks` to `untimed`.

    Other programs expect numbers in every row of `benchmarks`: `pytest-benchmark compare` formats the statistics, and
    Bencher's adapter for pytest reads `mean` and `stddev` as numbers. A null in one row makes them reject the file.
    """
    rows = report["benchmarks"]
    report[UNTIMED] = [row for row in rows if row["stats"].get("mean") is None]
    report["benchmarks"] = [row for row in rows if row["stats"].get("mean") is not None]


def describe_machine(info: dict[str, Any], facts: Mapping[str, Any]) -> None:
    """Replace pytest-benchmark's machine information by one that runs can be compared by.

    The processor keeps its name and core count, without the long list of flags and without its clock rate, which varies
    from second to second. `fingerprint` identifies everything that decides what is compiled and how fast it can be:
    processor, devices, versions, flags and memory allocation settings, but not the measured speed.
    """
    info["cpu"] = {key: info["cpu"].get(key) for key in ("arch", "brand_raw", "count")}
    info |= facts
    decisive = {name: value for name, value in facts.items() if name not in NOT_DECISIVE}
    info["fingerprint"] = fingerprint({"cpu": info["cpu"]} | decisive)


def disable_output(config: pytest.Config) -> None:
    """Make this process write and print nothing, because the first process does."""
    option = config.option
    option.benchmark_json = option.benchmark_save = option.benchmark_compare = None
    option.benchmark_autosave = option.benchmark_compare_fail = False
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - pytest's reporter uses it


class WhileRead:
    """A stream that drops what cannot be printed, as after `| head`, so that the report is still written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._error: OSError | None = None

    def write(self, text: str) -> int:
        """Write characters, or drop them."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._error = error
            return len(text)

    def flush(self) -> OSError | None:
        """Flush what was written; why anything was dropped, if it was."""
        try:
            self._stream.flush()
        except OSError as error:
            self._error = error
        return self._error

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stream's."""
        return getattr(self._stream, name)


def mark_used(benchmark: BenchmarkFixture) -> None:
    """Mark a `benchmark` fixture as used, so that pytest-benchmark does not warn. `publish` adds the row."""
    benchmark._mode = "publish"


def benchmark_session(config: pytest.Config) -> Any:
    """The object in which pytest-benchmark collects rows."""
    return config._benchmarksession  # pyright: ignore[reportAttributeAccessIssue]


def hide_timing_table(config: pytest.Config) -> None:
    """Hide pytest-benchmark's table, which is wide and shows times only, unless one of its display options is given.

    Its warning about a run without benchmarks is hidden as well: pytest's own message and exit code already say so.
    """
    option = config.option
    shown = option.benchmark_columns or option.benchmark_compare or option.benchmark_histogram
    option.benchmark_quiet = not (shown or option.benchmark_verbose)
    warnings.filterwarnings("ignore", "Not saving anything, no benchmarks have been run")


@contextmanager
def usage_errors(prefix: str = "") -> Iterator[None]:
    """Make what cannot be written a usage error."""
    try:
        yield
    except Unwritable as error:
        raise pytest.UsageError(f"{prefix}{error}") from error


def require_different(option: argparse.Namespace) -> None:
    """Check that the report and the folders of profiles are different paths."""
    given = {f"--{dashed(name)}": getattr(option, name) for name in ("benchmark_json", "trace_dir", "memory_profile")}
    with usage_errors():
        require_apart({name: path for name, path in given.items() if path})


def require_writable(path: Path | None) -> None:
    """Check that the report can be written, before hours of measurement are lost. Its folder is created if needed."""
    if path is None:
        return
    if special(path):
        raise pytest.UsageError(f"--benchmark-json={path} is a device or a pipe; name a file")
    with usage_errors("--benchmark-json: "):
        require_file(path)
        require_file(path.with_name(f"{path.stem}.journal.jsonl~"))  # a longer name, which may exceed a limit
    free_bytes = shutil.disk_usage(path.parent).free
    if free_bytes < LEAST_FREE_BYTES:
        problem = f"--benchmark-json={path} has {free_bytes / 2**20:.1f} MiB left on its disk"
        raise pytest.UsageError(f"{problem}; free {LEAST_FREE_BYTES / 2**20:.0f} MiB, or name another")


def require_storage(option: argparse.Namespace) -> None:
    """Check that pytest-benchmark's storage can be written, if it is used."""
    where = option.benchmark_storage.removeprefix("file://")
    if not (option.benchmark_save or option.benchmark_autosave) or "://" in where:
        return
    with usage_errors("--benchmark-storage: "):
        require_folder(Path(where))


def require_effect(arguments: Sequence[str]) -> None:
    """Refuse options by which pytest-benchmark calls and times a function."""
    for word in arguments:
        if word.partition("=")[0] in WITHOUT_EFFECT:
            raise pytest.UsageError(f"{word} has no effect: steps are timed interleaved; --rounds sets how often")


def require_comparison(option: argparse.Namespace) -> None:
    """Check what `--benchmark-compare` and `--benchmark-histogram` need, before anything is measured."""
    if option.benchmark_histogram and not (find_spec("pygal") and find_spec("pygaljs")):
        raise pytest.UsageError("--benchmark-histogram needs pygal: pip install 'pytest-benchmark[histogram]'")
    if option.benchmark_compare in ([], None):
        if option.benchmark_compare_fail:
            raise pytest.UsageError("--benchmark-compare-fail needs a run to compare with; add --benchmark-compare")
        return
    names = [] if option.benchmark_compare is True else [option.benchmark_compare]
    problem = "" if names else "it has no run; save one with --benchmark-autosave"
    with warnings.catch_warnings(record=True, action="always") as said:
        try:
            storage = load_storage(option.benchmark_storage, logger=Logger(Logger.QUIET), netrc=option.benchmark_netrc)
            found = [*storage.load(*names)] if names != [""] else []  # of which pytest-benchmark would compare none
        except (ValueError, OSError, ImportError) as error:  # a storage may need another package
            found, problem = [], str(error)
    if said:
        problem = str(said[-1].message)
    if said or not found:
        problem = problem or f"no run is named so; `pytest-benchmark list` lists those in {option.benchmark_storage}"
        given = "=".join(["--benchmark-compare", *names])
        raise pytest.UsageError(f"{given} with --benchmark-storage={option.benchmark_storage}: {problem}")


@contextmanager
def ending_with_regressions(session: pytest.Session) -> Iterator[None]:
    """End with status 1 where pytest-benchmark, by `--benchmark-compare-fail`, has listed regressions in the body."""
    try:
        yield
    except PerformanceRegression:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def note_machine(info: Mapping[str, Any], compared: dict[str, Any], say: Callable[[str], None]) -> None:
    """Say whether a stored run is of another machine or of other versions, by the facts that decide its speed.

    pytest-benchmark's own comparison is silenced: it takes runs of one machine for different, whose measured rates are
    never equal.

    Args:
        compared: the stored run; its machine is replaced by this one.
    """
    there = compared.get("machine_info") or {}
    if there.get("fingerprint") != info["fingerprint"]:
        names = [name for name in info if name not in NOT_DECISIVE and info[name] != there.get(name)]
        differing = ", ".join(name for name in names if name not in ("fingerprint", "node", "release"))
        say(f"the run that is compared is of another machine or other versions; these differ: {differing}")
    compared["machine_info"] = info


@contextmanager
def atomic_report(config: pytest.Config) -> Iterator[None]:
    """Make the report that is written in the body replace the previous one atomically."""
    session, report = benchmark_session(config), config.option.benchmark_json
    if report is None:
        yield
        return
    session.json = partial_path = report.with_name(f"{report.name}.part")
    try:
        yield
        if partial_path.exists():  # it does not if no case was selected
            partial_path.replace(report.resolve())
    finally:
        partial_path.unlink(missing_ok=True)
