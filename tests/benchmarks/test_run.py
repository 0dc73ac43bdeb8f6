"""`pytest benchmarks`, from the command line to the report, with cases that go wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TINY = ("--layers=2", "--embed=16", "--heads=2", "--sequence=16", "--batch-size=4", "--case-seconds=0.05")

Process = subprocess.CompletedProcess[str]
Rows = dict[str, dict[str, Any]]


def run(*options: str) -> Process:
    """Run the benchmarks in a process of their own, on tiny sizes, with the planted strategies on offer."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.benchmarks.planted", "benchmarks", *TINY, *options]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env |= {"PYTHONPATH": str(ROOT), "XLA_FLAGS": "--xla_backend_optimization_level=0"}  # compiles faster
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)


def rows(report: Path) -> Rows:
    """The rows of a report by id; one that is not strict JSON is refused."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    benchmarks = json.loads(report.read_text(), parse_constant=refuse)["benchmarks"]
    return {row["name"].partition("[")[2].removesuffix("]"): row for row in benchmarks}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Process, Rows]:
    """A sweep in which all but the first and the last case go wrong: its process and its rows."""
    report = tmp_path_factory.mktemp("sweep") / "runs" / "sweep.json"
    selected = "single,wrong,uncompilable,broken,tensor,data"
    process = run(f"--strategy={selected}", "--mesh=data=1", f"--benchmark-json={report}")
    return process, rows(report)


def test_every_case_leaves_its_row(sweep: tuple[Process, Rows]) -> None:
    """The sweep goes on after each failure, and the report holds every case in order, good or bad."""
    _, found = sweep
    assert {name: row["extra_info"]["status"] for name, row in found.items()} == {
        "single-data=1-b4": "ok",
        "wrong-data=1-b4": "mismatch",
        "uncompilable-data=1-b4": "compile_error",
        "broken-data=1-b4": "error",
        "tensor-data=1-b4": "infeasible",
        "data-data=1-b4": "ok",
    }


def test_rows_have_equal_keys(sweep: tuple[Process, Rows]) -> None:
    """A row differs from another in values alone, in its statistics too."""
    _, found = sweep
    for part in ("extra_info", "stats"):
        assert len({tuple(row[part]) for row in found.values()}) == 1


def test_samples_are_the_statistics_data(sweep: tuple[Process, Rows]) -> None:
    """Seconds per step are where pytest-benchmark's tools look for them, and null where nothing was timed."""
    _, found = sweep
    for row in found.values():
        stats, info = row["stats"], row["extra_info"]
        assert stats["median"] == info["step_seconds_median"]
        assert bool(stats["data"]) == (info["status"] == "ok")
        assert row["params"] == {"case": row["param"]}


def test_failures_fail_and_the_infeasible_is_skipped(sweep: tuple[Process, Rows]) -> None:
    """Pytest counts the cases by how they ended, and its exit code says that some failed."""
    process, _ = sweep
    assert process.returncode == pytest.ExitCode.TESTS_FAILED
    assert "3 failed, 2 passed, 1 skipped" in process.stdout


def test_run_says_how_it_goes(sweep: tuple[Process, Rows]) -> None:
    """There is a line for each case, a table, and the split of the time; pytest-benchmark's table is left out."""
    process, found = sweep
    for number, name in enumerate(found, start=1):
        assert f"[{number}/6] {name}: " in process.stdout
    assert "loss check" in process.stdout
    assert "time: " in process.stdout
    assert "Rounds" not in process.stdout


def test_interrupt_in_the_first_case_leaves_a_whole_report(tmp_path: Path) -> None:
    """Ctrl-C in the very first case: the report is whole, and its one row says interrupted."""
    report = tmp_path / "first.json"
    process = run("--strategy=stopped,data", "--mesh=data=1", f"--benchmark-json={report}")
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert {name: row["extra_info"]["status"] for name, row in rows(report).items()} == {
        "stopped-data=1-b4": "interrupted"
    }


def test_interrupt_in_a_later_case_keeps_those_before(tmp_path: Path) -> None:
    """Ctrl-C in a later case: what was measured is in the report, then the interrupted case, and nothing after it."""
    report = tmp_path / "later.json"
    process = run("--strategy=single,stopped,data", "--mesh=data=1", f"--benchmark-json={report}")
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert [row["extra_info"]["status"] for row in rows(report).values()] == ["ok", "interrupted"]


def test_selecting_nothing_is_no_success(tmp_path: Path) -> None:
    """-k that leaves no case ends as pytest ends without tests, and writes no report."""
    report = tmp_path / "nothing.json"
    process = run("-k", "nothing", f"--benchmark-json={report}")
    assert process.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "deselected" in process.stdout
    assert not report.exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--strategy=ddp", "argument --strategy: 'ddp' is no strategy; there are single, data, fsdp, tensor"),
        ("--vocab=100", "vocab=100 does not hold the 256 byte values of text; use 256 or more"),
        (f"--benchmark-json={ROOT}", "cannot be written: Is a directory; name another"),
        ("-n2", "cases are timed one at a time, or they would slow each other down; leave out -n"),
    ],
)
def test_what_cannot_work_is_refused_at_once(option: str, message: str) -> None:
    """A bad option ends the run before its first case, with a line that says what is wrong."""
    process = run(option)
    assert process.returncode == pytest.ExitCode.USAGE_ERROR
    assert message in process.stderr
    assert "collected" not in process.stdout
