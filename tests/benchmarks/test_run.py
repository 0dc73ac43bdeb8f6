"""`pytest benchmarks`, from the command line to the report: a row for each case, good or bad."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.running import Process, Rows, rows, run, statuses
from tests.processes import ROOT, environment


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Process, Rows]:
    """The process and the rows of a sweep in which only the first and the last case succeed."""
    report = tmp_path_factory.mktemp("sweep") / "runs" / "sweep.json"
    selected = "single,wrong,uncompilable,broken,tensor,data"
    process = run(f"--strategy={selected}", "--mesh=data=1", f"--benchmark-json={report}", single="")
    return process, rows(report)


def test_every_case_leaves_its_row(sweep: tuple[Process, Rows]) -> None:
    """A sweep continues after each failure, and its report holds every case in order with its status."""
    _, found = sweep
    assert {name: row["extra_info"]["status"] for name, row in found.items()} == {
        "single-data=1-b4": "ok",
        "wrong-data=1-b4": "mismatch",
        "uncompilable-data=1-b4": "compile_error",
        "broken-data=1-b4": "error",
        "tensor-data=1-b4": "infeasible",
        "data-data=1-b4": "ok",
    }


def test_a_topology_compiles_and_runs_nothing(tmp_path: Path) -> None:
    """With a topology nothing runs: a compiler's failure fails the run, an infeasible case does not."""
    report = tmp_path / "run.json"
    selected = "--strategy=fsdp,tensor,uncompilable", "--topology=cpu:16", "--batch-size=16"
    process = run(*selected, f"--benchmark-json={report}", single="")
    assert process.returncode == 1
    found = {name: row["extra_info"] for name, row in rows(report).items()}
    assert {row["strategy"]: row["status"] for row in found.values()} == {
        "fsdp": "ok",
        "tensor": "infeasible",
        "uncompilable": "compile_error",
    }
    fsdp = next(row for row in found.values() if row["strategy"] == "fsdp")
    assert (fsdp["kind"], fsdp["topology"], fsdp["mesh"], fsdp["loss_first"]) == ("compiled", "cpu:16", "fsdp=16", None)
    machine = json.loads(report.read_text())["machine_info"]
    assert (machine["topology"], machine["device_count"]) == ("cpu:16", 16)


@pytest.mark.factorisations  # every day checkpoints are restored with layers in another order
def test_each_value_of_an_option_has_a_row(tmp_path: Path) -> None:
    """Each value of an option has a row that matches `single`, even if it stores the layers in another order."""
    report = tmp_path / "run.json"
    selected = "--strategy=pipeline", "--mesh=pipeline=2", "--option=schedule=gpipe,interleaved", "--model=layers=4"
    process = run(*selected, f"--benchmark-json={report}", single="")
    found = {name: row["extra_info"] for name, row in rows(report).items()}
    ids = [f"pipeline-pipeline=2-b4-schedule={schedule}" for schedule in ("gpipe", "interleaved")]
    assert {name: (row["status"], row["matches_single"]) for name, row in found.items()} == dict.fromkeys(
        ids, ("ok", True)
    )
    assert [row["options"] for row in found.values()] == ["schedule=gpipe", "schedule=interleaved"]
    assert {"schedule=gpipe", "schedule=interleaved"} <= {*process.stdout.split()}


def test_rows_have_equal_keys(sweep: tuple[Process, Rows]) -> None:
    """All rows have the same keys, in their facts and in their statistics."""
    _, found = sweep
    for part in ("extra_info", "stats"):
        assert len({tuple(row[part]) for row in found.values()}) == 1


def test_samples_are_the_statistics_data(sweep: tuple[Process, Rows]) -> None:
    """Seconds per step are in pytest-benchmark's statistics, which are null for a case that was not timed."""
    _, found = sweep
    for row in found.values():
        stats, info = row["stats"], row["extra_info"]
        assert stats["median"] == info["step_seconds_median"]
        assert bool(stats["data"]) == (info["status"] == "ok")
        assert row["params"] == {"case": row["param"]}


def test_failures_fail_and_the_infeasible_is_skipped(sweep: tuple[Process, Rows]) -> None:
    """A failed check or timing fails its test, an infeasible case is skipped, and the exit code reports failures."""
    process, _ = sweep
    assert process.returncode == pytest.ExitCode.TESTS_FAILED
    assert "3 failed, 2 passed, 1 skipped" in process.stdout


def test_failures_begin_with_their_reason(sweep: tuple[Process, Rows]) -> None:
    """pytest's summary has the reason. Below it is the traceback of what the code of a step raises, traced or run, and
    none of a mismatch.
    """
    said = sweep[0].stdout
    assert re.search(r"^FAILED .*\[wrong-data=1-b4\] - mismatch: s", said, re.MULTILINE)
    assert re.search(r"^ZeroDivisionError: no weights\n\nTraceback", said, re.MULTILINE)
    assert re.search(r", in lower\n", said)
    assert re.search(r"^step 1: loss [^\n]+\n_+ test_step", said, re.MULTILINE)


def test_terminal_shows_each_case_and_a_table(sweep: tuple[Process, Rows]) -> None:
    """The terminal shows a line for each case, a table, the noise and the time spent, not pytest-benchmark's table."""
    process, found = sweep
    for name, row in found.items():
        assert re.search(
            rf"^\[\d/6\] {re.escape(name)}: ({row['extra_info']['status']}: |[\d,]+ tokens/s)", process.stdout, re.M
        )
    assert re.search("^strategy +mesh ", process.stdout, re.M)
    assert "noise: the same step timed twice differed by" in process.stdout
    assert "95% intervals cover this launch alone" in process.stdout
    assert "time: " in process.stdout
    assert "Rounds" not in process.stdout


def test_journal_is_deleted_when_the_report_is_written(sweep: tuple[Process, Rows]) -> None:
    """The journal is deleted when the report has been written."""
    process, _ = sweep
    (report,) = re.findall(r"^report: (.*)$", process.stdout, re.M)
    assert [path.name for path in Path(report).parent.iterdir()] == ["sweep.json"]


def test_no_failure_is_a_success(tmp_path: Path) -> None:
    """The exit status is 1 if timing a case fails, with or without its check, or if nothing was measured."""
    tests_failed = pytest.ExitCode.TESTS_FAILED
    report = tmp_path / "run.json"
    selected = "--strategy=single,diverging,nan", "--mesh=data=1", "--benchmark-only"
    failing = run(*selected, f"--benchmark-json={report}")
    assert (failing.returncode, "2 failed, 1 passed" in failing.stdout) == (tests_failed, True)
    ends = statuses(report)
    assert [ends[f"{name}-data=1-b4"] for name in ("single", "diverging", "nan")] == ["ok", "nan_loss", "nan_loss"]
    impossible = run("--strategy=data", "--mesh=data=8")
    assert (impossible.returncode, "1 skipped" in impossible.stdout) == (tests_failed, True)


def test_what_is_deselected_is_left_out(tmp_path: Path) -> None:
    """A case deselected by pytest's option or by a plugin is not measured, and the others are.

    On virtual devices JAX's persistent compilation cache is off: a program that is read from it may hang.
    """
    left_out = "--deselect=benchmarks/test_step.py::test_step[single-data=2-b8]"
    dropping = "-p", "tests.benchmarks.dropping"
    cache = {"JAX_COMPILATION_CACHE_DIR": tmp_path, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0}
    process = run("--strategy=single,data", "--devices=2", "--batch-size=8", left_out, *dropping, **cache)
    assert process.returncode == pytest.ExitCode.OK, process.stdout
    assert "1 passed, 3 deselected" in process.stdout
    assert not [*tmp_path.iterdir()]


def test_selecting_nothing_is_no_success(tmp_path: Path) -> None:
    """A -k that matches no case ends with pytest's NO_TESTS_COLLECTED and writes no report."""
    report = tmp_path / "nothing.json"
    process = run("-k", "nothing", f"--benchmark-json={report}")
    assert process.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "deselected" in process.stdout
    assert not report.exists()


def test_pytest_benchmark_compares_reports_in_a_checkout(sweep: tuple[Process, Rows]) -> None:
    """`pytest-benchmark compare` reads a report that has rows without timings, in a checkout with our conftest.py."""
    (report,) = re.findall(r"^report: (.*)$", sweep[0].stdout, re.M)
    command = [sys.executable, "-m", "pytest_benchmark", "compare", report, "--columns=median"]
    ended = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.count("Traceback")) == (0, 0), ended.stderr
    assert "test_step[data-data=1-b4]" in ended.stdout
