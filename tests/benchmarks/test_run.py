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
    """A sweep in which all but the first and the last case go wrong: its process and its rows."""
    report = tmp_path_factory.mktemp("sweep") / "runs" / "sweep.json"
    selected = "single,wrong,uncompilable,broken,tensor,data"
    process = run(f"--strategy={selected}", "--mesh=data=1", f"--benchmark-json={report}", single="")
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


def test_devices_that_are_not_there_are_compiled_for(tmp_path: Path) -> None:
    """More devices than there are, nothing run: what a compiler fails at is a failure, what cannot be spread is not."""
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


def test_options_make_cases_that_begin_as_their_own(tmp_path: Path) -> None:
    """Each value of an option has a row, checked against one device, even where it holds the layers in other places."""
    report = tmp_path / "run.json"
    selected = "--strategy=pipeline", "--mesh=pipeline=2", "--option=schedule=gpipe,interleaved", "--layers=4"
    process = run(*selected, f"--benchmark-json={report}", single="")
    found = {name: row["extra_info"] for name, row in rows(report).items()}
    ids = [f"pipeline-pipeline=2-b4-schedule={schedule}" for schedule in ("gpipe", "interleaved")]
    assert {name: (row["status"], row["matches_single"]) for name, row in found.items()} == dict.fromkeys(
        ids, ("ok", True)
    )
    assert [row["options"] for row in found.values()] == ["schedule=gpipe", "schedule=interleaved"]
    assert "pipeline=2 schedule=interleaved " in process.stdout


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


def test_no_failure_is_a_success(tmp_path: Path) -> None:
    """A case that fails in the turns of another's test fails its own; one whose check is not run fails when it is to be
    timed; and a run in which nothing can be measured has no success either: exit status 1.
    """
    tests_failed = pytest.ExitCode.TESTS_FAILED
    later = run("--strategy=single,diverging", "--mesh=data=1", f"--benchmark-json={tmp_path}/later.json")
    assert (later.returncode, statuses(tmp_path / "later.json")["diverging-data=1-b4"]) == (tests_failed, "nan_loss")
    assert "1 failed, 3 passed" in later.stdout
    unchecked = run("--strategy=single,nan", "--mesh=data=1", "--benchmark-only")
    assert (unchecked.returncode, "1 failed, 1 passed, 2 skipped" in unchecked.stdout) == (tests_failed, True)
    impossible = run("--strategy=data", "--mesh=data=8")
    assert (impossible.returncode, "2 skipped" in impossible.stdout) == (tests_failed, True)


def test_what_is_deselected_is_left_out(tmp_path: Path) -> None:
    """By pytest's own options or by a plugin: the rest is measured."""
    left_out = "--deselect=benchmarks/test_step.py::test_step[single-data=2-b4]"
    dropping = "-p", "tests.benchmarks.dropping"
    process = run("--strategy=single,data", "--devices=1,2", left_out, *dropping)
    assert process.returncode == pytest.ExitCode.OK, process.stdout
    assert "1 passed, 3 deselected" in process.stdout


def test_no_program_is_kept_on_virtual_devices(tmp_path: Path) -> None:
    """Nor read from where JAX keeps programs: one that is read there may hang."""
    command = "--strategy=data", "--mesh=data=2", "--batch-size=8", "--compile-only"
    variables = {"JAX_COMPILATION_CACHE_DIR": tmp_path, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0}
    assert run(*command, single="", **variables).returncode == pytest.ExitCode.OK
    assert not [*tmp_path.iterdir()]


def test_selecting_nothing_is_no_success(tmp_path: Path) -> None:
    """-k that leaves no case ends as pytest ends without tests, and writes no report."""
    report = tmp_path / "nothing.json"
    process = run("-k", "nothing", f"--benchmark-json={report}")
    assert process.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "deselected" in process.stdout
    assert not report.exists()


def test_pytest_benchmark_compares_reports_in_a_checkout(sweep: tuple[Process, Rows]) -> None:
    """Its own command reads our conftest.py and settings there; rows that were not timed do it no harm."""
    (report,) = re.findall(r"^report: (.*)$", sweep[0].stdout, re.M)
    command = [sys.executable, "-m", "pytest_benchmark", "compare", report, "--columns=median"]
    ended = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.count("Traceback")) == (0, 0), ended.stderr
    assert "test_step[data-data=1-b4]" in ended.stdout
