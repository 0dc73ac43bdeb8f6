"""Several processes that measure together: they agree on all that is decided, and none waits for ever for another."""

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks.cluster.joining import several_processes_requested
from benchmarks.cluster.liveness import PEER_LOST
from benchmarks.cluster.processes import FailedElsewhere, ProcessLost, _agree, _Group, axes_between, join
from benchmarks.launch import environment, main, visible_gpus, wait
from benchmarks.program.compiled import KINDS
from tests.benchmarks.test_run import PLUGINS, TINY, rows
from tests.processes import Ended, finish_together, free_port, start_together

TOYS: dict[str, Any] = {"SINGLE": "single"}


class Service:
    """What `jax.distributed` starts, for threads."""

    def __init__(self, count: int) -> None:
        self.texts: dict[str, str] = {}
        self.barrier = threading.Barrier(count)

    def key_value_set(self, key: str, text: str) -> None:
        """Keep a text."""
        self.texts[key] = text

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        """All in a folder."""
        return [(key, text) for key, text in self.texts.items() if key.startswith(f"{folder}/")]

    def key_value_delete(self, folder: str) -> None:
        """Forget a folder."""
        for key, _ in self.key_value_dir_get(folder):
            del self.texts[key]

    def wait_at_barrier(self, name: str, timeout_ms: int) -> None:
        """Wait for all, or give up."""
        try:
            self.barrier.wait(timeout_ms / 1000)
        except threading.BrokenBarrierError:
            raise jax.errors.JaxRuntimeError("Some timed out task names:\n1\n") from None


def agree(*functions: Callable[[], Any]) -> list[Any]:
    """What each process takes for the value of the first when it has run its function, or what was raised in it."""
    service, ends = Service(len(functions)), list[Any](functions)

    def run(place: int) -> None:
        group = _Group(service, place, len(functions), timeout_seconds=10)
        try:
            for _ in range(3):
                ends[place] = _agree(group, functions[place], lambda value: value)
        except (Exception, ProcessLost) as error:
            ends[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(service.texts) <= 1 + len(functions)  # what was said in earlier meetings is forgotten
    return ends


def fail() -> None:
    """As a device without memory does."""
    raise MemoryError("17 GiB")


def test_all_take_the_first_ones_value() -> None:
    """Each has its own, and that of the first, to the last bit."""
    assert agree(lambda: 0.1, lambda: 2, lambda: None) == [(0.1, 0.1), (2, 0.1), (None, 0.1)]


def test_what_fails_in_one_has_failed_in_all() -> None:
    """With the word for it, the reason and which process it was; where it failed itself, with its own exception."""
    for place in (0, 1):
        ends = agree(*[lambda: 0.1] * place, fail, *[lambda: 0.1] * (2 - place))
        assert isinstance(ends.pop(place), MemoryError)
        for end in ends:
            assert isinstance(end, FailedElsewhere)
            assert (end.status, str(end)) == ("oom", f"process {place} of 3: MemoryError: 17 GiB")


def test_who_does_not_come_is_not_waited_for_for_ever() -> None:
    """When patience is at its end, the run is, and what says so is taken for no failure of a case."""
    group = _Group(Service(2), 0, 2, timeout_seconds=0.05)
    with pytest.raises(ProcessLost, match=r"process 1 did not arrive within 0\.05 seconds"):
        _agree(group, lambda: 1, lambda value: value)
    with pytest.raises(
        ProcessLost, match=r"process 0 of 2: MemoryError: 17 GiB; process 1 did not arrive within 0\.05 seconds"
    ):
        _agree(_Group(Service(2), 0, 2, timeout_seconds=0.05), fail, lambda value: value)
    assert not issubclass(ProcessLost, Exception)


@pytest.mark.parametrize(
    ("hosts", "axes", "crossing"),
    [
        ([0, 0, 0, 0], {"data": 2, "tensor": 2}, ()),
        ([0, 0, 1, 1], {"data": 2, "tensor": 2}, ("data",)),
        ([0, 1, 0, 1], {"data": 2, "tensor": 2}, ("tensor",)),
        ([0, 1, 2, 3], {"data": 2, "tensor": 2}, ("data", "tensor")),
        ([0, 0, 1, 1], {"fsdp": 4}, ("fsdp",)),
        ([0, 0, 0, 0, 1, 1, 1, 1], {"data": 2, "pipeline": 2, "tensor": 2}, ("data",)),
        ([0, 0, 1, 1, 2, 2, 3, 3], {"data": 2, "pipeline": 2, "tensor": 2}, ("data", "pipeline")),
        ([0, 0, 1, 1], {"data": 1, "pipeline": 4, "tensor": 1}, ("pipeline",)),
    ],
    ids=str,
)
def test_axes_that_cross_hosts_are_those_along_which_hosts_differ(
    hosts: list[int], axes: dict[str, int], crossing: tuple[str, ...]
) -> None:
    """Hosts that have a part of the mesh each are told apart by its outer axes; the inner ones stay inside."""
    assert axes_between(np.reshape(hosts, tuple(axes.values())), tuple(axes)) == crossing


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"coordinator": "a:1"}, "go together; --processes, --process-id missing"),
        ({"coordinator": "a:1", "processes": 2, "process_id": 2}, "--process-id 2 is none of 2 processes, 0 the first"),
        (
            {"coordinator": "node0", "processes": 2, "process_id": 1},
            "--coordinator node0 is not an address; give HOST:PORT",
        ),
        ({"distributed": True, "processes": 2}, "--distributed detects --coordinator, --processes"),
    ],
    ids=str,
)
def test_half_of_the_options_is_refused(given: dict[str, Any], message: str) -> None:
    """What does not say which process this is, or says it twice, is an error with what is missing."""
    none = {"coordinator": None, "processes": None, "process_id": None, "distributed": False}
    assert not several_processes_requested(declared(**none))
    with pytest.raises(ValueError, match=message):
        several_processes_requested(declared(**none | given))


def test_outside_of_a_cluster_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX says only what it misses."""

    def initialize(*arguments: Any, **options: Any) -> None:
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    none = {"coordinator": None, "processes": None, "process_id": None}
    with pytest.raises(ValueError, match=r"no cluster .*SLURM, Open MPI or Kubernetes, .* name --coordinator, --proc"):
        join(declared(distributed=True, lost_after=3, join_timeout=3, case_timeout=3, **none))


def declared(**given: Any) -> Any:
    """Options."""
    return argparse.Namespace(**given)


@pytest.mark.parametrize(
    ("index", "awaited"),
    [(0, "the other 1 of 2 processes to connect to {}"), (1, r"process 0 at {} \(Connection refused\)")],
)
def test_who_waits_for_the_others_says_so_and_ends(index: int, awaited: str) -> None:
    """Where a process does not come it is said early, and what ends the wait is no stack of C++."""
    where = f"127.0.0.1:{free_port()}"
    by_hand = f"--coordinator={where}", "--processes=2", f"--process-id={index}", "--join-timeout=2"
    command = "-m", "pytest", *PLUGINS, "benchmarks", *TINY, "--strategy=data", *by_hand
    (ended,) = finish_together(start_together(1, 1, *command, **TOYS))
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    first, last = ended.stderr.splitlines()
    words = awaited.format(where)
    assert re.fullmatch(f"waiting for {words}, 2 seconds at most", first)
    assert re.fullmatch(f"ERROR: waited 2 seconds for {words}; start all processes .*, or raise --join-timeout", last)


def test_devices_that_processes_cannot_share_are_rows(tmp_path: Path) -> None:
    """Launched from any folder: what cannot be is infeasible, with the numbers, and the rest is measured."""
    report = tmp_path / "run.json"
    launch = "-m", "benchmarks.launch", "--processes=2", "--devices-per-process=1", "--"
    selected = "--strategy=data", "--devices=2,3", f"--benchmark-json={report}"
    (ended,) = finish_together(start_together(1, 1, *launch, *PLUGINS, *TINY, *selected, folder=tmp_path, **TOYS))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = {name: (row["extra_info"]["status"], row["extra_info"]["reason"]) for name, row in rows(report).items()}
    few = "2 processes do not have equal parts of 3 devices; take one device, or a multiple of 2"
    assert found == {"data-data=2-b4": ("ok", None), "data-data=3-b4": ("infeasible", few)}


def test_a_process_that_dies_ends_all_and_loses_no_finished_row(tmp_path: Path) -> None:
    """Killed in its turn, it is named in all others in good time, and the report of the rows before is whole.

    What failed in one process alone before that is a row that says where, and the cases after it were measured.
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
    """Processes that meet, one of which does not; how each has ended."""
    arguments = f"127.0.0.1:{free_port()}", count, "{}", lost_after, case_timeout, who, way
    return finish_together(start_together(count, 1, "-m", "tests.benchmarks.party", *map(str, arguments)), 60)


@pytest.mark.parametrize(
    ("who", "way", "status", "words"),
    [
        (2, "killed", -9, "has sent no heartbeat for 3 seconds: it died, or cannot be reached"),
        (2, "leaves", 3, "ended before the others"),
        (0, "leaves", 3, "ended before the others"),
    ],
)
def test_all_others_say_who_is_gone(who: int, way: str, status: int, words: str) -> None:
    """Each of them, in these words and no others, and who has left ends as it meant to."""
    ended = part(3, who, way)
    gone = ended.pop(who)
    assert (gone.returncode, gone.stderr) == (status, "")
    assert [(each.returncode, each.stderr) for each in ended] == [(PEER_LOST, f"process {who} of 3 {words}\n")] * 2


def test_who_does_not_come_is_named_before_a_watchdog_ends_the_others() -> None:
    """A watchdog, whose time begins no later, would end this process without a word of the other. That is told, too."""
    first, late = part(2, 1, "sleeps", case_timeout=4)
    words = "process 1 did not arrive within 3.6 seconds: it hangs, or took another code path\n"
    assert first.stderr.endswith(f"Lost: {words}")
    assert (late.returncode, late.stderr) == (PEER_LOST, words)


def test_a_process_that_is_stopped_ends_all_and_the_run_is_gone_on_with(tmp_path: Path) -> None:
    """The first has written whatever had ended, and goes on from its journal; the others have no file of its."""
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
    """Each has its devices, the first has the terminal and writes the report: what is sent between processes, too.

    It alone has a process of one device, in which `single` is timed while the others wait.
    """
    report = tmp_path / "run.json"
    launch = "-m", "benchmarks.launch", "--processes=2", "--devices-per-process=2", "--"
    selected = "--strategy=three_d", "--mesh=data=2,tensor=2", f"--benchmark-json={report}"
    (ended,) = finish_together(start_together(1, 2, *launch, *PLUGINS, *TINY, *selected, SINGLE=""))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("test session starts") == 1
    (row,) = (row["extra_info"] for row in rows(report).values())
    assert (row["status"], row["devices"], row["processes"]) == ("ok", 4, 2)
    assert (row["matches_single"], row["single_in_own_process"]) == (True, True)
    assert row["relative_to_single"] > 0
    assert row["model_flops_utilization"] > 0
    sent = {axis: row[f"between_processes.sent_bytes.{axis}"] for axis in ("data", "tensor", "several")}
    assert row["between_processes.axes"] == "data"
    assert sent["tensor"] == 0
    assert sent["data"] == sum(row[f"compiled.sent_bytes.{kind}.data"] for kind in KINDS) > 0
    assert row["between_processes.sent_bytes"] == sum(sent.values()) < row["compiled.sent_bytes"]
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.processes
def test_processes_find_each_other_in_a_cluster(tmp_path: Path) -> None:
    """By what SLURM tells each of its tasks, and nothing else."""
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


def sleeper(seconds: float, status: int = 0) -> subprocess.Popen[str]:
    """A process that ends after a while."""
    command = [sys.executable, "-c", f"import time; time.sleep({seconds}); exit({status})"]
    return subprocess.Popen(command, text=True, process_group=0)


def test_launcher_ends_the_others_when_one_ends_badly() -> None:
    """At once, and its exit status is that of the one; failed tests, which all have, are waited for."""
    start = time.monotonic()
    assert wait([sleeper(60), sleeper(0, 77)]) == 77
    assert time.monotonic() - start < 20
    assert wait([sleeper(0.5, 1), sleeper(0, 1)]) == 1
    killed = sleeper(60)
    killed.kill()
    assert wait([sleeper(60), killed]) == 137


def test_each_launched_process_has_its_own_gpus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next ones each time; too few are an error with both numbers."""
    assert [environment(place, 1, ["4", "6"])["CUDA_VISIBLE_DEVICES"] for place in (0, 1)] == ["4", "6"]
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(SystemExit):
        main(["--processes=2"])
    assert "2 processes of 1 GPUs need 2, and there are 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("platforms", "plugins", "gpus"),
    [(None, ["xla_cuda13"], ["0", "1"]), (None, ["tpu"], []), ("cuda", [], ["0", "1"]), ("cpu", ["xla_cuda13"], [])],
    ids=str,
)
def test_gpus_are_taken_where_jax_takes_them(
    monkeypatch: pytest.MonkeyPatch, platforms: str | None, plugins: list[str], gpus: list[str]
) -> None:
    """A machine may have GPUs that JAX has no plugin for: its processes are told to take CPUs then."""
    if platforms is None:
        monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    else:
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    named = [argparse.Namespace(name=name) for name in plugins]
    monkeypatch.setattr("benchmarks.launch.entry_points", lambda group: named if group == "jax_plugins" else [])
    assert visible_gpus() == gpus
