"""How several processes agree, which mesh axes cross hosts, and the options with which processes join."""

import argparse
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks.cli.options import JOIN_TIMEOUT, LOST_AFTER, several_processes_requested
from benchmarks.cluster.processes import FailedElsewhere, ProcessLost, _agree, _Group, join
from benchmarks.run.prepare import axes_between


class Service:
    """A stand-in for the key-value service of `jax.distributed`, for threads."""

    def __init__(self, count: int) -> None:
        self.texts: dict[str, str] = {}
        self.barrier = threading.Barrier(count)

    def key_value_set(self, key: str, text: str) -> None:
        """Store a text under a key."""
        self.texts[key] = text

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        """All keys and texts of a folder."""
        return [(key, text) for key, text in self.texts.items() if key.startswith(f"{folder}/")]

    def key_value_delete(self, folder: str) -> None:
        """Delete a folder."""
        for key, _ in self.key_value_dir_get(folder):
            del self.texts[key]

    def wait_at_barrier(self, name: str, timeout_ms: int) -> None:
        """Wait for all threads, or raise JAX's error after the timeout."""
        try:
            self.barrier.wait(timeout_ms / 1000)
        except threading.BrokenBarrierError:
            raise jax.errors.JaxRuntimeError("Some timed out task names:\n1\n") from None


def agree(*functions: Callable[[], Any]) -> list[Any]:
    """Run one function in each process, a thread each; return the value of each with what all have shared, or its
    exception.
    """
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
    """Raise a MemoryError, as a device without room does."""
    raise MemoryError("17 GiB")


def test_all_processes_take_the_same_values() -> None:
    """Every process gets its own value and, to the last bit, those that were shared; the first one's always."""
    shared = {0: 0.1, 1: 2}
    assert agree(lambda: 0.1, lambda: 2, lambda: None) == [(0.1, shared), (2, shared), (None, shared)]
    assert agree(lambda: None, lambda: None) == [(None, {0: None})] * 2


def test_a_failure_in_one_process_is_raised_in_all() -> None:
    """A failure is raised in every process: itself where it happened, elsewhere its status, reason and process."""
    for place in (0, 1):
        ends = agree(*[lambda: 0.1] * place, fail, *[lambda: 0.1] * (2 - place))
        assert isinstance(ends.pop(place), MemoryError)
        for end in ends:
            assert isinstance(end, FailedElsewhere)
            assert (end.status, str(end)) == ("oom", f"process {place} of 3: MemoryError: 17 GiB")


def test_a_missing_process_raises_lost_after_the_patience() -> None:
    """A process that does not come within the patience raises Lost, which no handler takes for a failed case."""
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
    """The mesh axes that cross hosts are those along which the host of a device changes."""
    assert axes_between(np.reshape(hosts, tuple(axes.values())), tuple(axes)) == crossing


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"coordinator": "a:1"}, "go together; --processes, --process-id missing"),
        ({"coordinator": "a:1", "processes": 2, "process_id": 2}, "--process-id 2 is too large; it can be 0 to 1"),
        (
            {"coordinator": "node0", "processes": 2, "process_id": 1},
            "--coordinator node0 is not an address; pass HOST:PORT",
        ),
        ({"lost_after": 5.0}, "--join-timeout and --lost-after are of several processes; remove them"),
        ({"distributed": True, "processes": 2}, "--distributed detects --coordinator, --processes"),
    ],
    ids=str,
)
def test_incomplete_process_options_are_refused(given: dict[str, Any], message: str) -> None:
    """Options that leave out which process this is, or state it twice, raise an error that names what is missing."""
    none = {"coordinator": None, "processes": None, "process_id": None, "distributed": False}
    none |= {"join_timeout": JOIN_TIMEOUT, "lost_after": LOST_AFTER}
    assert not several_processes_requested(declared(**none))
    with pytest.raises(ValueError, match=message):
        several_processes_requested(declared(**none | given))


def test_distributed_outside_of_a_cluster_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """--distributed outside of a cluster raises an error that names the schedulers it knows and the options to give."""

    def initialize(*arguments: Any, **options: Any) -> None:
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    none = {"coordinator": None, "processes": None, "process_id": None}
    with pytest.raises(ValueError, match=r"no cluster .*SLURM, Open MPI or Kubernetes, .* name --coordinator, --proc"):
        join(declared(distributed=True, lost_after=3, join_timeout=3, case_timeout=3, **none))


def declared(**given: Any) -> Any:
    """A namespace of options."""
    return argparse.Namespace(**given)
