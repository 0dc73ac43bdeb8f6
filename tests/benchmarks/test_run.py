"""`pytest benchmarks`, from the command line to the report, with cases that go wrong."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TINY = ("--layers=2", "--embed=16", "--heads=2", "--sequence=16", "--batch-size=4", "--case-seconds=0.05")

Process = subprocess.CompletedProcess[str]
Rows = dict[str, dict[str, Any]]


COMMAND = (sys.executable, "-m", "pytest", "-p", "tests.benchmarks.planted", "benchmarks", *TINY)
"""The benchmarks on tiny sizes, with the planted strategies on offer."""


def environment(**variables: str) -> dict[str, str]:
    """That of a process of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ours = {"PYTHONPATH": str(ROOT), "XLA_FLAGS": "--xla_backend_optimization_level=0"}  # compiles faster
    return inherited | ours | variables


def run(*options: str, **variables: str) -> Process:
    """Run the benchmarks in a process of their own, with options and environment variables."""
    command, env = [*COMMAND, *options], environment(**variables)
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
    """Pytest counts the check and the timing of each case, and its exit code says that some failed."""
    process, _ = sweep
    assert process.returncode == pytest.ExitCode.TESTS_FAILED
    assert "3 failed, 4 passed, 5 skipped" in process.stdout


def test_run_says_how_it_goes(sweep: tuple[Process, Rows]) -> None:
    """There is a line for each case, a table, and the split of the time; pytest-benchmark's table is left out."""
    process, found = sweep
    for name, row in found.items():
        assert re.search(
            rf"^\[\d/6\] {re.escape(name)}: ({row['extra_info']['status']}: |[\d,]+ tokens/s)", process.stdout, re.M
        )
    assert "loss check" in process.stdout
    assert "noise: the same step timed twice differed by" in process.stdout
    assert "time: " in process.stdout
    assert "Rounds" not in process.stdout


def test_journal_goes_when_the_report_is_written(sweep: tuple[Process, Rows]) -> None:
    """A report that is whole needs no journal beside it."""
    process, _ = sweep
    (report,) = re.findall(r"^report: (.*)$", process.stdout, re.M)
    assert [path.name for path in Path(report).parent.iterdir()] == ["sweep.json"]


def test_interrupt_in_the_first_case_leaves_a_whole_report(tmp_path: Path) -> None:
    """Ctrl-C in the very first case: exit status 130, a whole report, and its one row says interrupted."""
    report = tmp_path / "first.json"
    process = run("--strategy=stopped,data", "--mesh=data=1", f"--benchmark-json={report}")
    assert process.returncode == 130
    assert {name: row["extra_info"]["status"] for name, row in rows(report).items()} == {
        "stopped-data=1-b4": "interrupted"
    }


def statuses(report: Path) -> dict[str, str]:
    """How the cases of a report ended."""
    return {name: row["extra_info"]["status"] for name, row in rows(report).items()}


def test_interrupt_in_a_later_case_keeps_those_before_and_is_gone_on_with(tmp_path: Path) -> None:
    """Ctrl-C in a later case: the report has what was measured; --resume measures the rest, and nothing twice."""
    report, once = tmp_path / "later.json", {"ONCE": str(tmp_path / "once")}
    command = ("--strategy=single,stopped_once", "--mesh=data=1", "--batch-size=8", f"--benchmark-json={report}")
    process = run(*command, **once)
    assert process.returncode == 130
    assert statuses(report) == {
        "single-data=1-b4": "ok",
        "stopped_once-data=1-b4": "mismatch",  # a toy, beside a real `single`
        "single-data=1-b8": "interrupted",
        "stopped_once-data=1-b8": "interrupted",
    }
    before = rows(report)
    assert run(*command, "--resume", **once).returncode == pytest.ExitCode.TESTS_FAILED
    after = rows(report)
    assert list(statuses(report).values()) == ["ok", "mismatch"] * 2
    assert list(after) == list(before)
    assert all(after[name] == row for name, row in before.items() if name.endswith("b4"))
    assert run(*command, "--resume").returncode == pytest.ExitCode.USAGE_ERROR  # there is nothing left to go on with


def test_kill_in_mid_sweep_loses_no_finished_row(tmp_path: Path) -> None:
    """kill -9 of all processes: the journal has the rows, no report is needed, and --resume measures the rest."""
    report, journal = tmp_path / "killed.json", tmp_path / "killed.journal.jsonl"
    command = ("--strategy=single,hanging", "--mesh=data=1", f"--benchmark-json={report}")
    with subprocess.Popen(COMMAND + command, cwd=ROOT, env=environment(), start_new_session=True) as process:
        while b'"began": "hanging-data=1-b4"' not in (journal.read_bytes() if journal.exists() else b""):
            assert process.poll() is None
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
    assert not report.exists()
    # Long enough to compile on a busy machine.
    assert run(*command, "--resume", "--case-timeout=10").returncode == pytest.ExitCode.TESTS_FAILED
    assert statuses(report) == {"single-data=1-b4": "ok", "hanging-data=1-b4": "timeout"}


def test_case_that_kills_its_process_does_not_end_the_sweep(tmp_path: Path) -> None:
    """A backend that aborts takes its process with it, twice; then the others are measured, and the row says so."""
    report = tmp_path / "aborting.json"
    process = run("--strategy=single,aborting,data", "--mesh=data=1", f"--benchmark-json={report}")
    assert process.returncode == pytest.ExitCode.TESTS_FAILED
    assert statuses(report) == {"single-data=1-b4": "ok", "aborting-data=1-b4": "error", "data-data=1-b4": "ok"}
    assert rows(report)["aborting-data=1-b4"]["extra_info"]["reason"].endswith("died while it ran, the last of SIGABRT")


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
