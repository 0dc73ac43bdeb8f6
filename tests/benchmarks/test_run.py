"""`pytest benchmarks`, from the command line to the report, with cases that go wrong."""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.conftest import pytest_cmdline_main
from benchmarks.harness.journal import journal_path
from benchmarks.harness.stopping import StopSignals
from benchmarks.harness.supervise import RESUMED, supervise
from benchmarks.reporting.publish import UNTIMED
from benchmarks.statuses import TIMED_OUT, UNWRITTEN
from tests.processes import LIMIT_SECONDS, ROOT, environment

TINY = ("--layers=2", "--embed=16", "--heads=2", "--sequence=16", "--batch-size=4", "--rounds=6")
HANG = "--case-timeout=20"
"""Longer than `single` is silent on a busy machine."""

Process = subprocess.CompletedProcess[str]
Rows = dict[str, dict[str, Any]]


FAST = ("-p", "no:hypothesispytest", "-p", "no:jaxtyping", "--assert=plain")
"""Without what is slow to load, and not used here."""
PLUGINS = ("-p", "tests.benchmarks.planting", *FAST)
COMMAND = (sys.executable, "-m", "pytest", *PLUGINS, "benchmarks", *TINY)
"""The benchmarks on tiny sizes, with the planted strategies on offer."""


def start(*options: str, single: str = "single", alone: bool = False, **variables: Any) -> subprocess.Popen[str]:
    """Start the benchmarks in a process of their own, with options and environment variables.

    Args:
        options: of pytest.
        single: the planted strategy that takes the place of one device; "" leaves the real ones in theirs.
        alone: out of reach of what is pressed, in a group of processes that can be killed at once.
        variables: of the environment.
    """
    env, command = environment(SINGLE=single, **variables), [*COMMAND, *options]
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=-1, stderr=-1, text=True, start_new_session=alone)


def finish(process: subprocess.Popen[str]) -> Process:
    """Wait for what was started."""
    with process:
        try:
            output, errors = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise
    return Process(process.args, process.returncode, output, errors)


def run(*options: str, **variables: Any) -> Process:
    """Run the benchmarks from start to finish."""
    return finish(start(*options, **variables))


def rows(report: Path) -> Rows:
    """The rows of a report by id; one that is not strict JSON is refused."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    content = json.loads(report.read_text(), parse_constant=refuse)
    # What Bencher's adapter for pytest reads of each row; it refuses a file in which one is no number.
    assert {"machine_info", "commit_info"} <= content.keys()
    for row in content["benchmarks"]:
        assert {type(row["stats"][name]) for name in ("mean", "median", "stddev", "iqr")} <= {float, int}, row[
            "fullname"
        ]
    benchmarks = [*content["benchmarks"], *content[UNTIMED]]
    return {row["name"].partition("[")[2].removesuffix("]"): row for row in benchmarks}


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


def test_run_that_is_stopped_is_gone_on_with(tmp_path: Path) -> None:
    """Ctrl-C in a later case, and SIGTERM to the first process alone in one later still: the report has what was
    measured until then, and --resume measures the rest, and nothing twice.
    """
    report = tmp_path / "later.json"
    command = ("--strategy=single,stopped_once", "--mesh=data=1", "--batch-size=8,16", f"--benchmark-json={report}")
    assert run(*command, ONCE=tmp_path).returncode == 130
    assert list(statuses(report).values()) == ["ok", "ok", "interrupted", "interrupted"]
    first = rows(report)
    assert run(*command, "--resume", ONCE=tmp_path).returncode == 130
    assert list(statuses(report).values()) == ["ok", "ok", "ok", "ok", "interrupted", "interrupted"]
    second = rows(report)
    assert run(*command, "--resume", ONCE=tmp_path).returncode == pytest.ExitCode.OK
    assert statuses(report) == {
        f"{name}-data=1-b{size}": "ok" for size in (4, 8, 16) for name in ("single", "stopped_once")
    }
    last = rows(report)
    assert list(last)[:4] == list(second)[:4] == list(first)
    assert all(last[name] == second[name] == first[name] for name in first if name.endswith("b4"))
    assert all(last[name] == second[name] for name in first)
    assert not report.with_name("later.journal.jsonl").exists()


def test_report_that_is_not_written_is_not_lost(tmp_path: Path) -> None:
    """A disk that becomes full, and another Ctrl-C as the report is written: the report that was there stays whole, the
    journal is kept and named, and --resume goes on, where nothing is run, too. If there is room for the report in the
    end, what was measured is in it.
    """
    full, hasty = tmp_path / "full.json", tmp_path / "hasty.json"
    filling = ("--strategy=single,full_once", "--batch-size=8,16", "--mesh=data=1", f"--benchmark-json={full}")
    hurrying = ("--strategy=single,stopped_once", "--batch-size=8", "--mesh=data=1", f"--benchmark-json={hasty}")
    filled, stopped = tmp_path / "filled", tmp_path / "stopped"
    for report, once in ((full, filled), (hasty, stopped)):
        report.write_text("an earlier report")
        once.mkdir()
    processes = start(*filling, ONCE=filled), start(*hurrying, "--compile-only", ONCE=stopped, TWICE=1)
    ends = (full, 74, r"\[Errno 27\] File too large", 2), (hasty, 130, "Ctrl-C", 3)
    for process, (report, status, why, ended) in zip(map(finish, processes), ends, strict=True):
        journal = journal_path(report)
        assert process.returncode == status
        assert re.search(rf"the report was not written \({why}\); the rows in {journal} are not lost", process.stderr)
        assert report.read_text() == "an earlier report"
        assert journal.read_text().count('{"row": ') == ended
    resumed = (
        start(*filling, "--resume", ONCE=filled, ROOM=1),
        start(*hurrying, "--compile-only", "--resume", ONCE=stopped),
    )
    again, completed = map(finish, resumed)
    assert again.returncode == 74
    assert f"{journal_path(full)} cannot be written: File too large; its rows are not lost" in again.stdout
    assert list(statuses(full).values()) == ["ok", "ok", "ok", "ok", "interrupted", "interrupted"]
    assert completed.returncode == pytest.ExitCode.OK
    assert list(statuses(hasty).values()) == ["ok"] * 4
    files = {"filled", "stopped", "full.json", "full.journal.jsonl", "hasty.json"}
    assert {path.name for path in tmp_path.iterdir()} == files


SMALL_DISK = "mount -t tmpfs -o size=20m tmpfs {disk} && "
MOUNTS = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
"""In a namespace of its own, which needs no rights where the system lets users have one."""


def can_mount(folder: Path) -> bool:
    """Whether a test can have a small disk."""
    try:
        return not subprocess.run(
            [*MOUNTS, f"{SMALL_DISK.format(disk=folder)} true"], check=False, stderr=-1
        ).returncode
    except FileNotFoundError:
        return False


def test_a_disk_that_becomes_full_loses_no_row(tmp_path: Path) -> None:
    """A real one, in the middle of the sweep: the journal takes a part of a row, and the report nothing. The earlier
    report stays; exit status 74; and --resume, when there is room again, measures the rest and nothing twice.
    """
    disk, out = tmp_path / "disk", tmp_path / "out"
    for folder in (disk, out):
        folder.mkdir()
    if not can_mount(disk):
        pytest.skip("no disk can be mounted here; the test of a limited file size above goes the same way")
    report, filler = disk / "run.json", disk / "filler"
    options = "--strategy=single,full_once", "--batch-size=4,8", "--mesh=data=1", f"--benchmark-json={report}"
    measure = shlex.join([*COMMAND, *options])
    script = f"""{SMALL_DISK.format(disk=disk)} printf 'an earlier report' > {report}
        {measure} 2> {out}/errors; echo $? > {out}/status
        cp {disk}/run.json {out}/earlier.json; cp {disk}/run.journal.jsonl {out}; rm {filler}
        {measure} --resume; status=$?; cp {disk}/run.json {out}; ls {disk} > {out}/left; exit $status"""
    variables = environment(SINGLE="single", ONCE=out, FILLER=filler)
    resumed = subprocess.run([*MOUNTS, script], cwd=ROOT, env=variables, stdout=-1, stderr=-1, text=True, check=False)
    assert (out / "status").read_text().strip() == "74"
    said = (out / "errors").read_text()
    assert "the report was not written ([Errno 28] No space left on device" in said
    assert f"the rows in {journal_path(report)} are not lost: continue with --resume" in said
    assert "Traceback" not in said
    assert (out / "earlier.json").read_text() == "an earlier report"
    lines = (out / "run.journal.jsonl").read_bytes().splitlines()
    ended = {row["case"]: row["samples"] for line in lines if line.startswith(b'{"row"') for row in whole(line)}
    assert len(ended) >= 2
    assert resumed.returncode == pytest.ExitCode.OK, resumed.stderr
    assert list(statuses(out / "run.json").values()) == ["ok"] * 4
    assert ended.items() <= {name: row["stats"]["data"] for name, row in rows(out / "run.json").items()}.items()
    assert (out / "left").read_text() == "run.json\n"


def whole(line: bytes) -> list[dict[str, Any]]:
    """The row of a line of a journal; none of one that is cut short."""
    try:
        return [json.loads(line)["row"]]
    except ValueError:
        return []


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


def test_hang_and_death_end_no_sweep(tmp_path: Path) -> None:
    """What hangs in its first steps, aborts while it is compiled or is killed in its turns is a row that says so, and
    the others are measured.
    """
    report = tmp_path / "crashing.json"
    strategies = "single,hanging,aborting,killed_later,data"
    process = run(f"--strategy={strategies}", "--mesh=data=1", HANG, f"--benchmark-json={report}")
    assert process.returncode == pytest.ExitCode.TESTS_FAILED
    assert statuses(report) == {
        "single-data=1-b4": "ok",
        "hanging-data=1-b4": "timeout",
        "aborting-data=1-b4": "error",
        "killed_later-data=1-b4": "oom",
        "data-data=1-b4": "ok",
    }
    reasons = {name.partition("-")[0]: row["extra_info"]["reason"] for name, row in rows(report).items()}
    assert reasons["hanging"].startswith("it made no progress for 20 seconds")
    assert reasons["aborting"] == "2 processes died while it ran, the last of SIGABRT"
    killed = "2 processes died while it ran, the last of SIGKILL, usually sent when memory"
    assert reasons["killed_later"].startswith(killed)
    assert process.stderr.count("continuing with the remaining cases") == 5


def test_a_held_lock_ends_no_sweep(tmp_path: Path) -> None:
    """A case that hangs with the interpreter's lock, so that no watchdog of its process runs, is ended by the
    supervisor: its row says `timeout`, after one trial, and the others are measured.
    """
    report = tmp_path / "held.json"
    process = run("--strategy=single,held,data", "--mesh=data=1", HANG, f"--benchmark-json={report}")
    assert process.returncode == pytest.ExitCode.TESTS_FAILED, process.stderr
    assert statuses(report) == {"single-data=1-b4": "ok", "held-data=1-b4": "timeout", "data-data=1-b4": "ok"}
    reason = rows(report)["held-data=1-b4"]["extra_info"]["reason"]
    assert reason == "it made no progress for 20 seconds; --case-timeout sets how long to wait"
    assert process.stderr.count("ended by a case that timed out; continuing with the remaining cases") == 1


def test_no_program_is_kept_on_virtual_devices(tmp_path: Path) -> None:
    """Nor read from where JAX keeps programs: one that is read there may hang."""
    command = "--strategy=data", "--mesh=data=2", "--batch-size=8", "--compile-only"
    variables = {"JAX_COMPILATION_CACHE_DIR": tmp_path, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0}
    assert run(*command, single="", **variables).returncode == pytest.ExitCode.OK
    assert not [*tmp_path.iterdir()]


def test_kill_in_mid_sweep_loses_no_finished_row(tmp_path: Path) -> None:
    """kill -9 of all processes: the journal has the rows, no report is needed, and --resume measures the rest.

    While they run, another run is not let into the same files; nor is one later that allocates memory in another way,
    for its times are no others' times. What hangs here is `single`, in its turns: it is waited for once, and the others
    are timed without it.
    """
    folder, once = tmp_path / "runs", tmp_path / "once"
    once.mkdir()
    report, journal = folder / "killed.json", folder / "killed.journal.jsonl"
    command = ("--strategy=single,data", "--mesh=data=1", "--batch-size=8", f"--benchmark-json={report}")
    with start(*command, single="hanging_later", alone=True, ONCE=once) as process:
        try:
            while not (once / "hanging").exists():
                assert process.poll() is None
                time.sleep(0.1)
            written = journal.read_bytes()
            other = run(*command, HANG, single="hanging_later", ONCE=once)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert other.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"another run is writing {journal}; name another --benchmark-json" in other.stderr
    assert journal.read_bytes() == written
    assert [path.name for path in folder.iterdir()] == [journal.name]
    found = [json.loads(line)["row"] for line in written.splitlines() if line.startswith(b'{"row"')]
    tunables = "glibc.malloc.hugetlb=1"
    other = run(*command, "--resume", HANG, single="hanging_later", ONCE=once, GLIBC_TUNABLES=tunables)
    assert other.returncode == pytest.ExitCode.USAGE_ERROR
    assert (
        f"belongs to another run: glibc_tunables was '' and is '{tunables}'; run again without --resume" in other.stderr
    )
    process = run(*command, "--resume", HANG, single="hanging_later", ONCE=once)
    assert process.returncode == pytest.ExitCode.TESTS_FAILED
    assert list(statuses(report).values()) == ["ok", "ok", "ok", "timeout"]  # those without samples come last
    after = rows(report)
    assert [(row["case"], row["samples"]) for row in found] == [
        (name, row["stats"]["data"]) for name, row in after.items() if name.endswith("b4")
    ]
    reason = after["data-data=1-b8"]["extra_info"]["reason"]
    assert reason.startswith("not checked, for single was given up: it made no progress for 20 seconds")
    assert process.stderr.count("continuing with the remaining cases") == 1


def test_selecting_nothing_is_no_success(tmp_path: Path) -> None:
    """-k that leaves no case ends as pytest ends without tests, and writes no report."""
    report = tmp_path / "nothing.json"
    process = run("-k", "nothing", f"--benchmark-json={report}")
    assert process.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "deselected" in process.stdout
    assert not report.exists()


def test_what_cannot_work_is_refused_at_once(tmp_path: Path) -> None:
    """A bad option ends the run before its first case, with a line that says what is wrong."""
    refused = {
        "--strategy=ddp": "argument --strategy: 'ddp' is no strategy; there are single, data, ",
        "--vocab=100": "vocab=100 does not hold the 256 byte values of text; use 256 or more",
        f"--benchmark-json={tmp_path}": "cannot be written: Is a directory; name another",
        f"--benchmark-json={tmp_path}/{'x' * 245}.json": "cannot be written: File name too long; name another",
        f"--benchmark-json={tmp_path}/file/run.json": "cannot be written: ",
        "tests/test_readme.py": "the benchmarks run alone: pytest benchmarks, without tests/test_readme.py",
        "--coordinator=localhost:1": "go together; --processes, --process-id missing",
    }
    (tmp_path / "file").touch()
    unstorable = start(f"--benchmark-storage={tmp_path}/file/folder", "--benchmark-autosave")
    several = [(start(option), message) for option, message in refused.items()]
    environments: dict[str, tuple[Any, str]] = {
        "JAX_PLATFORMS": ("tpu", "JAX finds no devices where JAX_PLATFORMS is tpu: RuntimeError: Unable to initialize"),
        "JAX_NUM_CPU_DEVICES": ("zero", "JAX_NUM_CPU_DEVICES=zero is not a count; give a whole number of at least 1"),
        "JAX_ENABLE_X64": ("maybe", "JAX cannot be loaded: invalid truth value 'maybe'"),
    }
    for name, (value, message) in environments.items():
        several.append((bare(**{name: value}), message))
    several.append((unstorable, f"--benchmark-storage: {tmp_path}/file/folder cannot be written to: "))
    for process, message in several:
        ended = finish(process)
        assert ended.returncode == pytest.ExitCode.USAGE_ERROR
        assert message in ended.stderr
        assert "Traceback" not in ended.stderr + ended.stdout
        assert "collected" not in ended.stdout


def bare(*arguments: str, folder: Path = ROOT, **variables: Any) -> subprocess.Popen[str]:
    """Start the benchmarks, by whatever names them, without what is planted."""
    command = [sys.executable, "-m", "pytest", *FAST, *(arguments or ["benchmarks"])]
    return subprocess.Popen(command, cwd=folder, env=environment(**variables), stdout=-1, stderr=-1, text=True)


@pytest.mark.parametrize("folder", [ROOT, None], ids=["checkout", "elsewhere"])
def test_the_package_is_found_by_its_name(tmp_path: Path, folder: Path | None) -> None:
    """In a checkout and away from it the options are known, and what is wrong with them is said in a line."""
    plugin = "-p", "no:meshmark", "-p", "benchmarks.plugin"  # as its entry point has it, installed or not
    ended = finish(bare(*plugin, "--pyargs", "benchmarks", "--strategy=ddp", folder=folder or tmp_path))
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert ended.stderr.startswith("ERROR: argument --strategy: 'ddp' is no strategy; there are single, data, ")


def test_a_misspelt_folder_is_a_line(tmp_path: Path) -> None:
    """As pytest says it, with options of ours, and a report that is not begun."""
    ended = finish(bare("benchmark", "--strategy=data", f"--benchmark-json={tmp_path}/run.json"))
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert ended.stderr.strip() == "ERROR: file or directory not found: benchmark"


def test_found_among_other_tests_they_are_refused() -> None:
    """`pytest .` ends in a line, before any test."""
    for folder in (".", str(ROOT)):
        ended = finish(bare(folder))
        assert ended.returncode == pytest.ExitCode.USAGE_ERROR
        assert ended.stderr.startswith("ERROR: the benchmarks run alone: pytest benchmarks; leave them out with --ign")
        assert "Traceback" not in ended.stdout


def test_a_worker_that_finds_them_among_other_tests_says_so() -> None:
    """`pytest . -n 2` ends in an error of that folder, not in silence."""
    ended = finish(bare(".", "-n1", "--ignore=tests"))
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED
    assert ended.stdout.count("\nthe benchmarks run alone: pytest benchmarks; leave them out with --ignore=") == 1
    assert "Traceback" not in ended.stdout


def test_pytest_benchmark_compares_reports_in_a_checkout(sweep: tuple[Process, Rows]) -> None:
    """Its own command reads our conftest.py and settings there; rows that were not timed do it no harm."""
    (report,) = re.findall(r"^report: (.*)$", sweep[0].stdout, re.M)
    command = [sys.executable, "-m", "pytest_benchmark", "compare", report, "--columns=median"]
    ended = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.count("Traceback")) == (0, 0), ended.stderr
    assert "test_step[data-data=1-b4]" in ended.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"numprocesses": 2}, "cases are timed one at a time, because they would slow each other down; leave out -n"),
        ({"resume": True}, "--resume continues a run that was stopped; give the --benchmark-json of that run"),
        ({"resume": True, "benchmark_json": Path("/never/run.json")}, "--resume continues a run that was stopped"),
    ],
)
def test_nothing_is_started_for_what_is_refused(options: dict[str, Any], message: str) -> None:
    """What can be seen to be wrong without a backend is refused before there is a process to start one."""
    offered = {"help": False, "version": False, "collectonly": False, "resume": False, "benchmark_json": None}
    offered |= {"benchmark_storage": "file://./.benchmarks", "benchmark_save": None, "benchmark_autosave": False}
    offered |= {"distributed": False, "coordinator": None, "processes": None, "process_id": None}
    invocation = SimpleNamespace(dir=ROOT)
    config: Any = SimpleNamespace(
        option=argparse.Namespace(**offered | options), stash={}, args=["benchmarks"], invocation_params=invocation
    )
    with pytest.raises(pytest.UsageError, match=message):
        pytest_cmdline_main(config)


BEGAN, STOPPED = '{"began": "single"}\n', '{"stopped": true}\n'


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ([(1, False, BEGAN + STOPPED)], 1),
        ([(-signal.SIGABRT, False, "")], 134),  # before there was a case to blame
        ([(-signal.SIGABRT, False, BEGAN), (0, False, BEGAN + STOPPED)], 0),
        ([(-signal.SIGSEGV, False, BEGAN + STOPPED)], 139),  # when all had been measured
        ([(TIMED_OUT, False, BEGAN), (TIMED_OUT, True, BEGAN)], 130),  # Ctrl-C, and nobody there to hear
        ([(130, True, BEGAN + STOPPED)], 130),
        ([(-signal.SIGUSR1, True, "")], 130),  # before it could listen
        ([(-signal.SIGKILL, True, BEGAN)], 130),  # told twice
        ([(1, True, BEGAN + STOPPED)], 130),  # a traceback at the end
        ([(0, True, BEGAN + STOPPED)], 0),  # too late: all had been measured
        ([(UNWRITTEN, False, BEGAN)], UNWRITTEN),
        ([(pytest.ExitCode.USAGE_ERROR, False, BEGAN)], pytest.ExitCode.USAGE_ERROR),  # that another run wrote
    ],
)
def test_process_that_died_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: list[tuple[int, bool, str]], status: int
) -> None:
    """One that has ended is not, nor is any after somebody has stopped the run; an old journal is no sign of life."""
    journal, left = tmp_path / "journal", list(ends)
    journal.write_text(BEGAN)

    def ended(command: Any, environment: dict[str, str], **_: Any) -> tuple[int, bool]:
        assert (RESUMED in environment) == (len(left) < len(ends))
        status, told, written = left.pop(0)
        journal.write_text(journal.read_text() + written)
        return status, told

    monkeypatch.setattr("benchmarks.harness.supervise.run", ended)
    assert supervise([], journal) == status
    assert not left


def stops(*numbers: signal.Signals, writing: bool = False, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What becomes of a process that hears these signals."""
    heard, ends = StopSignals(), list[str]()
    monkeypatch.setattr("os._exit", lambda status: ends.append(f"exit {status}"))
    for number in numbers:
        with heard.while_writing() if writing else nullcontext():
            try:
                heard.handle(number, None)
            except KeyboardInterrupt:
                ends.append("interrupt")
    return ends


def test_a_stop_that_is_heard_twice_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal tells the process that measures, and so does its supervisor; who tells one of them stops it, too."""
    once = [signal.SIGINT], [signal.SIGUSR1], [signal.SIGINT, signal.SIGUSR1], [signal.SIGUSR1, signal.SIGTERM]
    assert [stops(*numbers, monkeypatch=monkeypatch) for numbers in once] == [["interrupt"]] * 4


def test_the_second_stop_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, whoever tells it; but the writing of a report in an orderly way, which no third one disturbs."""
    twice = [signal.SIGINT, signal.SIGUSR1] * 2
    assert stops(*twice, monkeypatch=monkeypatch) == ["interrupt", "exit 130"]
    assert stops(*twice, *twice, writing=True, monkeypatch=monkeypatch) == ["interrupt", "interrupt"]
