"""Processes that measure together, on one machine or several: how they start, synchronise and agree on errors.

After `join`, every process executes the same calls in the same order. `run_in_all` runs a function in every process and
waits for all of them. If it fails in one process it fails in all, so no process enters a collective that another one
never reaches. `broadcast_first` does the same and returns the first process's result everywhere; it is used for
everything that depends on a clock, a file or available memory. `any_of` returns everywhere whether the result is true
anywhere. In a single-process run each just calls the function.

A failure in the middle of a step cannot be shared: the other processes wait in the step's collectives for the process
that has left, until `--case-timeout` ends the run.

Process 0, the first, writes the report and prints.
"""

import atexit
import json
import math
import os
import re
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import jax

from benchmarks.cases.failures import CaseFailure, Status, reason_of, status_of
from benchmarks.cli.options import several_processes_requested
from benchmarks.cli.outputs import log
from benchmarks.cli.statuses import REFUSED
from benchmarks.cluster.liveness import PeerHeartbeat
from strategies.backends.backend import private

T = TypeVar("T")

NOTICE_SECONDS = 5.0
"""Time after which a process says which ones it waits for. JAX alone waits silently, and aborts with a C++ stack."""
EXIT_SECONDS = 60
"""Longest time from the loss of a process to the end of the others, which still write a report on a busy machine."""
BARRIER_FRACTION = 0.9
"""Barrier timeout as a fraction of `--case-timeout`. It expires first, so that the missing process is named."""


class FailedElsewhere(CaseFailure):
    """The function failed in another process; carries that process's status and reason."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class ProcessLost(BaseException):
    """Another process did not arrive. Like Ctrl-C, this ends the run and not just a case."""


@dataclass
class _Group:
    """The group of processes that this process belongs to."""

    client: Any
    index: int
    count: int
    timeout_seconds: float
    barriers: int = 0
    """Number of barriers so far; it is equal in all processes and names the next one."""

    def exchange(self, failure: tuple[str, str] | None, value: Any) -> dict[int, tuple[Any, Any]]:
        """Wait for all processes and exchange results: failure and value of the first process, and of each other one
        that has either, by process number.
        """
        self.barriers += 1
        barrier = f"meshmark/{self.barriers}"
        try:
            if self.index == 0 or failure or value is not None:
                self.client.key_value_set(f"{barrier}/{self.index}", json.dumps([failure, value]))
            self.client.wait_at_barrier(barrier, round(1000 * self.timeout_seconds))
            said = {
                int(key.removeprefix(f"{barrier}/")): tuple(json.loads(text))
                for key, text in self.client.key_value_dir_get(barrier)
            }
            if self.index == 0:
                self.client.key_value_delete(f"meshmark/{self.barriers - 1}")  # everybody has read it by now
        except jax.errors.JaxRuntimeError as error:
            raise ProcessLost(_missing(str(error), self.timeout_seconds)) from error
        return said


_group: _Group | None = None
_heartbeat: PeerHeartbeat | None = None


def join(option: Namespace) -> None:
    """Join the multi-process run that the options ask for, if any. Must be called before JAX starts a backend."""
    global _group, _heartbeat
    if not several_processes_requested(option):
        return
    try:
        with join_timeout(option):
            jax.distributed.initialize(
                option.coordinator,
                option.processes,
                option.process_id,
                # JAX's own timeouts end the process without a readable reason, so they are longer than ours.
                initialization_timeout=math.ceil(option.join_timeout) + 30,
                heartbeat_timeout_seconds=math.ceil(option.lost_after) + EXIT_SECONDS,
                shutdown_timeout_seconds=math.ceil(option.lost_after),
            )
    except ValueError as error:
        if not option.distributed:
            raise
        ways = "start it under SLURM, Open MPI or Kubernetes, or on the hosts of a TPU; or, without --distributed, name"
        raise ValueError(
            f"no cluster is detected ({error}): {ways} --coordinator, --processes, --process-id"
        ) from error
    except RuntimeError as error:
        raise ValueError(f"the processes do not find each other: {error}") from error
    # The client of the service, whose barriers can time out, has no public name. The public alternative,
    # `jax.experimental.multihost_utils`, uses a device collective, which waits forever if a process is missing.
    global_state = private("jax._src.distributed", "global_state")
    index, count = global_state.process_id, global_state.num_processes or 1
    _group = _Group(global_state.client, index, count, BARRIER_FRACTION * option.case_timeout)
    stderr = os.dup(sys.stderr.fileno())  # the real stderr, because pytest captures the other one
    _heartbeat = PeerHeartbeat(
        global_state.client, index, count, option.lost_after, lambda text: os.write(stderr, f"{text}\n".encode())
    )
    beating = threading.Thread(target=_heartbeat.beat, daemon=True)
    beating.start()
    atexit.register(_disconnect, global_state, _heartbeat, beating)
    jax.devices()  # in all processes now, because a backend that starts waits for those of the others


@contextmanager
def join_timeout(option: Namespace) -> Iterator[None]:
    """Limit the time spent in the body to `--join-timeout` seconds.

    When time is up, the process exits with the status of a usage error.
    """
    joined = threading.Event()
    watch = threading.Thread(target=_watch, args=(option, joined), daemon=True)
    watch.start()
    try:
        yield
    finally:
        joined.set()
        watch.join()


def _watch(option: Namespace, joined: threading.Event) -> None:
    notice_seconds = min(NOTICE_SECONDS, option.join_timeout / 2)
    if joined.wait(notice_seconds):
        return
    log(f"waiting for {awaited_processes(option)}, {option.join_timeout:g} seconds at most")
    if not joined.wait(option.join_timeout - notice_seconds):
        problem = f"waited {option.join_timeout:g} seconds for {awaited_processes(option)}"
        advice = "start all processes with the same options, or raise --join-timeout"
        log(f"ERROR: {problem}; {advice}")
        os._exit(REFUSED)


def awaited_processes(option: Namespace) -> str:
    """Describe which processes this one waits for."""
    if option.distributed:
        return "the other processes of the cluster"
    if option.process_id == 0:
        return f"the other {option.processes - 1} of {option.processes} processes to connect to {option.coordinator}"
    return f"process 0 at {option.coordinator}, or processes that it waits for"


def _disconnect(jax_state: Any, heartbeat: PeerHeartbeat, beating: threading.Thread) -> None:
    """Leave the group at exit, in order or without the other processes."""
    heartbeat.over.set()
    beating.join()  # neither Python nor the client may shut down during a call to the client
    if not heartbeat.finished:
        heartbeat.leave()
        # JAX would wait for the other processes, which do not exit now, and then abort all of them. It also does so
        # when it destroys the client, so a thread that never ends keeps a reference to it.
        references = jax_state.client, jax_state.service
        threading.Thread(target=lambda _: threading.Event().wait(), args=(references,), daemon=True).start()
        jax_state.client = jax_state.service = None


def end(*, in_order: bool, why: str | None = None) -> None:
    """Announce that this process ends. Only the first call counts; a process that exits without one ends out of order.

    Args:
        in_order: whether it completed everything that all processes do together. If not, the others end as well.
        why: reason that the others then print.
    """
    if _heartbeat and not _heartbeat.over.is_set():
        _heartbeat.finished, _heartbeat.why = in_order, why
        _heartbeat.over.set()


def count() -> int:
    """Number of processes that measure together."""
    return _group.count if _group else 1


def is_first() -> bool:
    """Whether this process is the one that writes the report and prints."""
    return _group is None or _group.index == 0


def run_in_all(function: Callable[[], T]) -> T:
    """Run a function in every process, wait for all, and return this process's result.

    The function must not call `run_in_all` itself.
    """
    return function() if _group is None else _agree(_group, function, lambda value: None)[0]


def broadcast_first(function: Callable[[], T]) -> T:
    """Like `run_in_all`, but return the first process's result, which must be JSON-serialisable."""
    if _group is None:
        return function()
    return _agree(_group, function, lambda value: value if is_first() else None)[1][0]


def any_of(function: Callable[[], bool]) -> bool:
    """Like `run_in_all`, but return whether the result is true in any process."""
    if _group is None:
        return function()
    return any(_agree(_group, function, lambda value: value or None)[1].values())


def _agree(group: _Group, function: Callable[[], T], shared: Callable[[T], Any]) -> tuple[T, dict[int, Any]]:
    """Return this process's result, and what each process has shared, by process number; None may be omitted."""
    try:
        value = function()
    except Exception as error:
        try:
            group.exchange((status_of(error), reason_of(error)), None)
        except ProcessLost as lost:  # the others may hang in a collective that this one has left
            raise ProcessLost(f"process {group.index} of {group.count}: {reason_of(error)}; {lost}") from error
        raise
    said = group.exchange(None, shared(value))
    if failures := {index: failure for index, (failure, _) in said.items() if failure}:
        index, (status, reason) = min(failures.items())
        raise FailedElsewhere(status, f"process {index} of {group.count}: {reason}")
    return value, {index: shared_value for index, (_, shared_value) in said.items()}


def _missing(message: str, seconds: float) -> str:
    """Name the process that did not arrive, from the service's error message.

    >>> _missing("Barrier timed out. Some timed out task names:\\n/job:jax_worker/replica:0/task:3", 60)
    'process 3 did not arrive within 60 seconds: it hangs, or took another code path'
    """
    name = re.search(r"task names:\s+\S*?([0-9]+)\s*$", message, re.MULTILINE)
    if name:
        return f"process {name[1]} did not arrive within {seconds:g} seconds: it hangs, or took another code path"
    return f"the other processes are gone: {message.partition(chr(10))[0]}"
