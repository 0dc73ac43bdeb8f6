"""A timing server with a single virtual device, in which `single` is timed as if it had the machine for itself.

The virtual devices of a process share one thread pool, and XLA partitions the work of each device for all of its
threads. With eight virtual devices in its process, `single` takes a fifth longer than alone. So it is timed,
traced and attributed in another process with one device, interleaved with the steps of this process.

This process compiles `single` as well, like every other case, for the facts of its program and to train the reference
for losses and gradients. The other one compiles at the same time.
"""

import atexit
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from benchmarks.cases import case as cases
from benchmarks.cases.case import Case
from benchmarks.cases.failures import CaseFailure, ProcessDied
from benchmarks.cli.child import Server, ServerFailure
from benchmarks.cluster import processes
from benchmarks.cluster.processes import FailedElsewhere
from benchmarks.run.corpus import Corpus, corpus_source
from strategies.backends.backend import are_virtual
from strategies.checking import FirstSteps
from strategies.single import SINGLE

server = Server(environment={"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"})
"""The single-device server of this process. It is started on first use, and again if it has died."""
atexit.register(server.end)


def has_single_device_server() -> bool:
    """Whether this process times `single` in a single-device server: it has several virtual devices and is the first
    process.

    The server knows only registered strategies, so a `single` that was replaced is timed here.
    """
    return are_virtual(jax.local_devices()) and processes.is_first() and cases.STRATEGIES["single"] is SINGLE


def ask(do: str, **arguments: Any) -> Any:
    """Send a request to the single-device server and return the answer."""
    try:
        return server.ask(do, **arguments)
    except ServerFailure as failure:
        if failure.of_process:
            raise died(failure.reason) from failure
        raise FailedElsewhere(failure.status, failure.reason) from failure  # pyright: ignore[reportArgumentType]


def died(how: str) -> ProcessDied:
    """The error of a request to a server that has died."""
    return ProcessDied(f"the single-device process was ended by {how}")


def train(case: Case, corpus_N: Corpus) -> "RemoteTraining":
    """Compile a case in the single-device server, train its first steps, and return the training run."""
    answer = ask("prepare", case=case, corpus=corpus_source(corpus_N))
    return RemoteTraining(answer["training"], answer["first_steps"], len(server.deaths))


def matmul_rate(dtype: str) -> float | None:
    """FLOPs per second of a matmul in the single-device server; None, with a warning, if that process died."""
    if not has_single_device_server():
        return None
    try:
        return ask("matmul", dtype=dtype)
    except CaseFailure as error:
        warnings.warn(f"no matmul throughput: {error}; rows have no model_flops_utilization", stacklevel=2)
        return None


@dataclass
class RemoteTraining:
    """A training run in the single-device server. It can be timed interleaved with local ones."""

    number: int
    first_steps: FirstSteps
    deaths: int  # of servers, before it began
    dispatch_seconds: float = 0.0

    def block(self, steps: int) -> float:
        """Run some consecutive steps and return their seconds."""
        answer = self._ask("block", steps=steps)
        self.dispatch_seconds = answer["dispatch_seconds"]
        return answer["seconds"]

    def require_finite(self, when: str) -> None:
        """Do nothing: each block has checked it."""

    def trace(self, folder: Path, steps: int) -> None:
        """Record a profiler trace of a block of this many steps, as `measure.trace`."""
        self._ask("trace", folder=folder, steps=steps)

    def attribute(self, case: Case, seconds: float, rounds: int, begin: Callable[[], None]) -> dict[str, float]:
        """Attribute the time of a step, as `attribution.attribute`."""
        return self._ask("attribute", begin=begin, case=case, seconds=seconds, rounds=rounds)

    def drop(self) -> None:
        """Free its memory."""
        self._ask("drop")

    def _ask(self, do: str, **arguments: Any) -> Any:
        """Send a request about it. It has died with its server: the next one does not know it."""
        if self.deaths < len(server.deaths):
            raise died(server.deaths[self.deaths])
        return ask(do, training=self.number, **arguments)
