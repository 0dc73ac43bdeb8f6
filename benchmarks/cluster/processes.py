"""Several processes that measure together, on one machine or on many: how they start, and how they agree.

`join` makes this process one of them. From then on each does the same in the same order. `together` runs a function in
every process and waits for all: what failed in one has failed in all, and none goes on to a collective that another
does not come to. `of_first` gives all of them what the first one found: whatever a clock, a file or its memory decides.
In a process that is alone the two call the function, and that is all.

Of a failure in the middle of a step nothing can be told: the others wait in its collectives, for a process that has
left them, until `--case-timeout` ends the run.

The first process, number 0, is the one that writes and reports.
"""

import atexit
import json
import math
import os
import re
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

from benchmarks.cluster.joining import patience, processes_asked
from benchmarks.cluster.pulse import Pulse
from benchmarks.failures import CaseFailure, Status, reason_of, status_of

T = TypeVar("T")

PATIENCE = 0.9
"""Of the seconds after which a watchdog ends this process: before it does, who does not come is named."""


class Elsewhere(CaseFailure):
    """Another process failed; its word for it, and its reason."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Lost(BaseException):
    """Another process does not come. It ends the run, as Ctrl-C does, and not a case."""


@dataclass
class _Group:
    """The processes that this one is one of.

    Attributes:
        client: of the service that `jax.distributed.initialize` starts.
        patience_seconds: how long the others are waited for.
        meetings: how often they have agreed: each has done so as often as any other.
    """

    client: Any
    index: int
    count: int
    patience_seconds: float
    meetings: int = 0

    def meet(self, failure: tuple[str, str] | None, word: Any) -> tuple[dict[int, tuple[Status, str]], Any]:
        """Wait for all, and learn which of them have failed, and the word of the first.

        Raises:
            Lost: not all have come.
        """
        self.meetings += 1
        room = f"meshmark/{self.meetings}"
        try:
            if failure:
                self.client.key_value_set(f"{room}/failed/{self.index}", json.dumps(failure))
            if self.index == 0:
                self.client.key_value_set(f"{room}/word", json.dumps(word))
            self.client.wait_at_barrier(room, round(1000 * self.patience_seconds))
            said = {key.removeprefix(f"{room}/"): json.loads(text) for key, text in self.client.key_value_dir_get(room)}
            if self.index == 0:
                self.client.key_value_delete(f"meshmark/{self.meetings - 1}")  # all have read it, for all are here
        except jax.errors.JaxRuntimeError as error:
            raise Lost(_missing(str(error), self.patience_seconds)) from error
        failures = {int(key.partition("/")[2]): text for key, text in said.items() if key != "word"}
        return failures, said["word"]


_group: _Group | None = None
_pulse: Pulse | None = None


def join(option: Namespace) -> None:
    """Become one of the processes that the options ask for, if they do. It comes before anything asks for devices.

    Raises:
        ValueError: the processes do not find each other, or there is no cluster to find them in.
    """
    global _group, _pulse
    if not processes_asked(option):
        return
    try:
        with patience(option):
            jax.distributed.initialize(
                option.coordinator,
                option.processes,
                option.process_id,
                # JAX would end this process, too, but without saying why where it is heard. It comes second.
                initialization_timeout=math.ceil(option.join_timeout) + 30,
                heartbeat_timeout_seconds=math.ceil(3 * option.lost_after),
                shutdown_timeout_seconds=math.ceil(option.lost_after),
            )
    except ValueError as error:
        if not option.distributed:
            raise
        ways = "start it under SLURM, Open MPI or Kubernetes, or on the hosts of a TPU; or, without --distributed, name"
        raise ValueError(f"no cluster is found ({error}): {ways} --coordinator, --processes, --process-id") from error
    except RuntimeError as error:
        raise ValueError(f"the processes do not find each other: {error}") from error
    # The service's client, with its barriers that time out, has no public name. What is public, `multihost_utils` of
    # `jax.experimental`, agrees by a collective of the devices: where one process is missing it waits for ever.
    from jax._src.distributed import global_state

    index, count = global_state.process_id, global_state.num_processes or 1
    _group = _Group(global_state.client, index, count, PATIENCE * option.case_timeout)
    stderr = os.dup(sys.stderr.fileno())  # the real one: in a test pytest captures what is written
    _pulse = Pulse(global_state.client, index, count, option.lost_after, lambda text: write_line(stderr, text))
    beating = threading.Thread(target=_pulse.beat, daemon=True)
    beating.start()
    atexit.register(_part, global_state, _pulse, beating)
    jax.devices()  # in all of them now: a backend that starts waits until it has started in the others


def write_line(descriptor: int, text: str) -> None:
    """Write a line to an open file, past what buffers or captures it."""
    os.write(descriptor, f"{text}\n".encode())


def _part(jax_state: Any, pulse: Pulse, beating: threading.Thread) -> None:
    """End with the others, or without them."""
    pulse.over.set()
    beating.join()  # Python must not end while it is in a call of the client, nor the client while it is called
    if not pulse.finished:
        pulse.leave()
        # JAX would wait for the others, which do not end now, and then abort all. So it would where it destroys the
        # client: a thread that does not end has it.
        kept = jax_state.client, jax_state.service
        threading.Thread(target=lambda _: threading.Event().wait(), args=(kept,), daemon=True).start()
        jax_state.client = jax_state.service = None


def end(*, in_order: bool, why: str | None = None) -> None:
    """Say that this process ends, and whether it has come to the end of what all do together: else the others end, too.

    They say `why`. It is not said again. One that ends without a word has not come to that end.
    """
    if _pulse and not _pulse.over.is_set():
        _pulse.finished, _pulse.why = in_order, why
        _pulse.over.set()


def count() -> int:
    """How many processes measure together."""
    return _group.count if _group else 1


def is_first() -> bool:
    """Whether this is the one that writes and reports."""
    return _group is None or _group.index == 0


def together(function: Callable[[], T]) -> T:
    """What a function returns here, when it has returned in all processes. It may not call `together` itself.

    Raises:
        Exception: what it raised here.
        Elsewhere: it raised something in another process, which is named, and nothing here.
        Lost: a process has not come.
    """
    return function() if _group is None else _ended(_group, function, lambda value: None)[0]


def of_first(function: Callable[[], T]) -> T:
    """As `together`, but it returns what the function returned in the first process: plain values, as in JSON."""
    return function() if _group is None else _ended(_group, function, lambda value: value)[1]


def _ended(group: _Group, function: Callable[[], T], tell: Callable[[T], Any]) -> tuple[T, Any]:
    """What a function returned here, and what was told of it by the first process."""
    try:
        value = function()
    except Exception as error:
        try:
            group.meet((status_of(error), reason_of(error)), None)
        except Lost as lost:  # the others may be in a collective, which this one has left
            raise Lost(f"process {group.index} of {group.count}: {reason_of(error)}; {lost}") from error
        raise
    failures, word = group.meet(None, tell(value))
    if failures:
        index, (status, reason) = min(failures.items())
        raise Elsewhere(status, f"process {index} of {group.count}: {reason}")
    return value, word


def _missing(message: str, seconds: float) -> str:
    """Which process did not come, as the service says it.

    >>> _missing("Barrier timed out. Some timed out task names:\\n/job:jax_worker/replica:0/task:3", 60)
    'process 3 did not come within 60 seconds: it hangs, or has gone another way'
    """
    name = re.search(r"task names:\s+\S*?([0-9]+)\s*$", message, re.MULTILINE)
    if name:
        return f"process {name[1]} did not come within {seconds:g} seconds: it hangs, or has gone another way"
    return f"the other processes are gone: {message.partition(chr(10))[0]}"


def crossing(mesh: Mesh) -> tuple[str, ...]:
    """The axes of a mesh that cross from process to process."""
    process_of = np.vectorize(lambda device: device.process_index, otypes=[int])(mesh.devices)
    return axes_between(process_of, tuple(map(str, mesh.axis_names)))


def axes_between(process_of: Int[np.ndarray, "..."], axes: Sequence[str]) -> tuple[str, ...]:
    """The mesh axes along which devices of different processes lie: what is sent over these may go through a network.

    Args:
        process_of: the process of each device of the mesh, a dim for each axis.
        axes: their names.

    >>> axes_between(np.array([[0, 0], [1, 1]]), ("data", "tensor"))
    ('data',)
    """
    return tuple(axis for dim, axis in enumerate(axes) if np.diff(process_of, axis=dim).any())
