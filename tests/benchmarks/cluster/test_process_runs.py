"""Benchmark runs over several processes: they measure together, and none waits for ever for another."""

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cli.statuses import PEER_LOST
from benchmarks.program.compiled import KINDS
from tests.benchmarks.running import PLUGINS, TINY, rows
from tests.processes import Ended, finish_together, free_port, start_together
from tests.strategies.sampling import nightly

TOYS: dict[str, Any] = {"SINGLE": "single"}


@pytest.mark.parametrize(
    ("index", "awaited"),
    [(0, "the other 1 of 2 processes to connect to {}"), (1, "process 0 at {}, or processes that it waits for")],
)
def test_waiting_for_other_processes_ends_with_an_error(index: int, awaited: str) -> None:
    """A process that waits for others says so, and ends after --join-timeout with a usage error."""
    where = f"127.0.0.1:{free_port()}"
    by_hand = f"--coordinator={where}", "--processes=2", f"--process-id={index}", "--join-timeout=2"
    command = "-m", "pytest", *PLUGINS, "benchmarks", *TINY, "--strategy=data", *by_hand
    (ended,) = finish_together(start_together(1, 1, *command, **TOYS))
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    first, last = ended.stderr.splitlines()
    words = awaited.format(where)
    assert re.fullmatch(f"waiting for {words}, 2 seconds at most", first)
    assert re.fullmatch(f"ERROR: waited 2 seconds for {words}; start all processes .*, or raise --join-timeout", last)


def test_a_process_that_dies_ends_all_and_loses_no_finished_row(tmp_path: Path) -> None:
    """When a process is killed, the others end within seconds, name it, and report the finished rows.

    A failure in one process alone is a row that names the process, and the cases after it are measured.
    """
    report, port = tmp_path / "run.json", free_port()
    selected = "--strategy=elsewhere,data,killed_elsewhere", "--devices=2", "--batch-size=8", "--lost-after=3"
    by_hand = f"--coordinator=127.0.0.1:{port}", "--processes=2", "--process-id={}", f"--benchmark-json={report}"
    command = "-m", "pytest", *PLUGINS, "benchmarks", *TINY, *selected, *by_hand
    start = time.monotonic()
    first, second = finish_together(start_together(2, 2, *command, **TOYS))
    assert time.monotonic() - start < 120
    assert (first.returncode, second.returncode) == (PEER_LOST, 137)
    assert "process 1 of 2 has sent no heartbeat for 3 seconds: it died, or cannot be reached" in first.stderr
    assert f"the loss of another process, and so were all other processes; {tmp_path}" in first.stderr
    assert second.stdout == ""
    found = {name: (row["extra_info"]["status"], row["extra_info"]["reason"]) for name, row in rows(report).items()}
    assert found == {
        "elsewhere-data=2-b4": ("compile_error", "process 1 of 2: ValueError: no such instruction"),
        "elsewhere-data=2-b8": ("compile_error", "process 1 of 2: ValueError: no such instruction"),
        "data-data=2-b4": ("ok", None),
        "killed_elsewhere-data=2-b4": ("ok", None),
    }
    journal = (tmp_path / "run.journal.jsonl").read_text().splitlines()
    assert sum("row" in json.loads(line) for line in journal) == 4


def part(count: int, who: int, way: str, lost_after: float = 3, case_timeout: float = 600) -> list[Ended]:
    """Run `tests.benchmarks.party`: processes that meet, of which one leaves; how each has ended."""
    arguments = f"127.0.0.1:{free_port()}", count, "{}", lost_after, case_timeout, who, way
    return finish_together(start_together(count, 1, "-m", "tests.benchmarks.party", *map(str, arguments)), 60)


@pytest.mark.parametrize(
    ("who", "way", "status", "words"),
    [
        (2, "killed", -9, "has sent no heartbeat for 3 seconds: it died, or cannot be reached"),
        *nightly((2, "leaves", 3, "ended before the others"), (0, "leaves", 3, "ended before the others")),
    ],
)
def test_remaining_processes_name_the_one_that_is_gone(who: int, way: str, status: int, words: str) -> None:
    """Each remaining process names the one that is gone and why, and says nothing else."""
    ended = part(3, who, way)
    gone = ended.pop(who)
    assert (gone.returncode, gone.stderr) == (status, "")
    assert [(each.returncode, each.stderr) for each in ended] == [(PEER_LOST, f"process {who} of 3 {words}\n")] * 2


def test_a_missing_process_is_named_before_the_timeout_of_a_case() -> None:
    """A process that does not come is named before the timeout of a waiting one ends it, and is told so itself."""
    first, late = part(2, 1, "sleeps", case_timeout=4)
    words = "process 1 did not arrive within 3.6 seconds: it hangs, or took another code path\n"
    assert first.stderr.endswith(f"Lost: {words}")
    assert (late.returncode, late.stderr) == (PEER_LOST, words)


@pytest.mark.processes  # every day a process dies, and training in several processes is stopped
def test_ctrl_c_in_one_process_ends_all_and_resume_goes_on(tmp_path: Path) -> None:
    """Ctrl-C in one process ends all; finished rows are written, and --resume measures the others.

    Only the first process writes files.
    """
    selected = "--strategy=data,stopped_elsewhere_once", "--devices=2", "--batch-size=8", "--lost-after=10"
    report = f"--benchmark-json={tmp_path}/{{}}/run.json"
    command = "-m", "pytest", *PLUGINS, "benchmarks", *TINY, *selected, report, "--processes=2", "--process-id={}"
    for resume, statuses in ((), [PEER_LOST, 130]), (("--resume",), [0, 0]):
        where = f"--coordinator=127.0.0.1:{free_port()}"
        ended = finish_together(start_together(2, 2, *command, where, *resume, ONCE=tmp_path, **TOYS), 300)
        assert [each.returncode for each in ended] == statuses, [each.stderr for each in ended]
        assert ("process 1 of 2 ended before the others" in ended[0].stderr) == (not resume)
        found = {name: row["extra_info"]["status"] for name, row in rows(tmp_path / "0" / "run.json").items()}
        late = ["data-data=2-b8", "stopped_elsewhere_once-data=2-b8"] if resume else []
        assert found == dict.fromkeys(["data-data=2-b4", "stopped_elsewhere_once-data=2-b4", *late], "ok")
    assert [path.name for path in tmp_path.glob("1/*")] == []


def test_launched_processes_measure_together(tmp_path: Path) -> None:
    """Launched processes share a mesh; the first one prints and reports, including the bytes sent between processes.

    It alone starts a process of one device, in which `single` is timed while the others wait. Device counts that the
    processes cannot share equally are infeasible rows. They are launched from any folder.
    """
    report, elsewhere = tmp_path / "runs" / "run.json", tmp_path / "elsewhere"
    elsewhere.mkdir()
    launch = "-m", "benchmarks", "launch", "--processes=2", "--devices-per-process=2", "--"
    selected = "--strategy=three_d", "--mesh=data=2,tensor=2", "--mesh=data=3", f"--benchmark-json={report}"
    command = *launch, *PLUGINS, *TINY, *selected
    (ended,) = finish_together(start_together(1, 2, *command, folder=elsewhere, SINGLE=""))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("test session starts") == 1
    row, unequal = (row["extra_info"] for row in rows(report).values())
    few = "3 devices cannot be divided equally among 2 processes; take one device, or a multiple of 2"
    assert (unequal["status"], unequal["reason"]) == ("infeasible", few)
    assert (row["status"], row["devices"], row["processes"]) == ("ok", 4, 2)
    assert (row["matches_single"], row["single_in_own_process"]) == (True, True)
    assert row["relative_to_single"] > 0
    assert row["model_flops_utilization"] > 0
    sent = {axis: row[f"between_processes.sent_bytes.{axis}"] for axis in ("data", "tensor", "several")}
    assert row["between_processes.axes"] == "data"
    assert sent["tensor"] == 0
    assert sent["data"] == sum(row[f"compiled.sent_bytes.{kind}.data"] for kind in KINDS) > 0
    assert row["between_processes.sent_bytes"] == sum(sent.values()) < row["compiled.sent_bytes"]
    assert [path.name for path in report.parent.iterdir()] == ["run.json"]


@pytest.mark.processes
def test_processes_find_each_other_in_a_cluster(tmp_path: Path) -> None:
    """With --distributed, processes join by SLURM's environment variables alone."""
    report, job = tmp_path / "run.json", {"SLURM_JOB_ID": os.getpid(), "SLURM_STEP_NODELIST": "localhost"}
    selected = "--distributed", "--strategy=data", "--mesh=data=4", f"--benchmark-json={report}"
    started = [
        process
        for task in range(2)
        for process in start_together(
            *(1, 2, "-m", "pytest", *PLUGINS, "benchmarks", *TINY, *selected),
            **{**TOYS, **job, "SLURM_NTASKS": 2, "SLURM_PROCID": task, "SLURM_LOCALID": task},
        )
    ]
    first, second = finish_together(started)
    assert (first.returncode, second.returncode) == (0, 0), first.stdout + first.stderr + second.stderr
    assert second.stdout == ""
    (row,) = rows(report).values()
    assert (row["extra_info"]["status"], row["extra_info"]["processes"]) == ("ok", 2)
