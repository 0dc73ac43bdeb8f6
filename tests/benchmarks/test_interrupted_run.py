"""Runs that are interrupted, killed or out of disk space lose no finished row, and `--resume` goes on with them."""

import json
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.run.journal import journal_path
from tests.benchmarks.running import COMMAND, finish, rows, run, start, statuses
from tests.processes import ROOT, environment

HANG = "--case-timeout=20"
"""A timeout longer than `single` is silent on a busy machine."""


def test_interrupt_in_the_first_case_leaves_a_whole_report(tmp_path: Path) -> None:
    """Ctrl-C in the first case: exit status 130, how to go on, and a complete report whose one row is `interrupted`."""
    report = tmp_path / "first.json"
    process = run("--strategy=stopped,data", "--mesh=data=1", f"--benchmark-json={report}")
    assert process.returncode == 130
    assert "stopped; continue with --resume" in process.stdout
    assert "KeyboardInterrupt" not in process.stdout + process.stderr
    assert {name: row["extra_info"]["status"] for name, row in rows(report).items()} == {
        "stopped-data=1-b4": "interrupted"
    }


def test_resume_measures_what_a_stopped_run_left(tmp_path: Path) -> None:
    """After Ctrl-C or SIGTERM the report has the finished rows, and --resume measures only the others."""
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
    """If a full disk or a second Ctrl-C prevents writing the report, the earlier report stays whole, the journal is
    kept and named, and --resume goes on, also where nothing is run. If there is room for the report in the end, it has
    what was measured.
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
"""Mount in a namespace of the test's own, which needs no privileges where the system grants users namespaces."""


def can_mount(folder: Path) -> bool:
    """Whether a small file system can be mounted here."""
    try:
        return not subprocess.run(
            [*MOUNTS, f"{SMALL_DISK.format(disk=folder)} true"], check=False, stderr=-1
        ).returncode
    except FileNotFoundError:
        return False


@pytest.mark.factorisations  # the test of a limited file size above goes the same way
def test_a_disk_that_becomes_full_loses_no_row(tmp_path: Path) -> None:
    """A disk that fills up during the sweep cuts off a journal row and the report: exit status 74, the earlier report
    stays, and --resume measures the remaining cases only, once there is room again.
    """
    disk, out = tmp_path / "disk", tmp_path / "out"
    for folder in (disk, out):
        folder.mkdir()
    if not can_mount(disk):
        pytest.skip("no disk can be mounted here")
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
    """The row in a line of a journal, in a list; an empty list if the line is cut short."""
    try:
        return [json.loads(line)["row"]]
    except ValueError:
        return []


def test_hang_and_death_end_no_sweep(tmp_path: Path) -> None:
    """A case that hangs, aborts or is killed becomes a row that says so, and the other cases are measured.

    One that hangs while it holds the GIL, where no thread of its own can run, is ended by the supervisor after one
    attempt.
    """
    report = tmp_path / "crashing.json"
    strategies = "single,hanging,held,aborting,killed_later,data"
    process = run(f"--strategy={strategies}", "--mesh=data=1", HANG, f"--benchmark-json={report}")
    assert process.returncode == pytest.ExitCode.TESTS_FAILED
    assert statuses(report) == {
        "single-data=1-b4": "ok",
        "hanging-data=1-b4": "timeout",
        "held-data=1-b4": "timeout",
        "aborting-data=1-b4": "error",
        "killed_later-data=1-b4": "oom",
        "data-data=1-b4": "ok",
    }
    reasons = {name.partition("-")[0]: row["extra_info"]["reason"] for name, row in rows(report).items()}
    assert reasons["hanging"].startswith("it made no progress for 20 seconds")
    assert reasons["held"] == "it made no progress for 20 seconds; --case-timeout sets how long to wait"
    assert process.stderr.count("ended by a case that timed out; continuing with the remaining cases") == 2
    assert reasons["aborting"] == "2 processes died while it ran, the last of SIGABRT"
    killed = "2 processes died while it ran, the last of SIGKILL, usually sent when memory"
    assert reasons["killed_later"].startswith(killed)
    assert process.stderr.count("continuing with the remaining cases") == 6


def test_kill_in_mid_sweep_loses_no_finished_row(tmp_path: Path) -> None:
    """After SIGKILL of all processes the journal has the finished rows, and --resume measures the others.

    While the run goes on, a second run cannot write the same files; later, --resume refuses an environment with another
    memory allocator, whose times would not compare. Here `single` hangs when it is timed: it gets one timeout, and the
    other cases are timed without it.
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
