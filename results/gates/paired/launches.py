"""A launch: fresh processes of BASE, HEAD and the canary (BASE again), which time blocks of steps interleaved."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import get_args

from results.gates.paired.checkouts import Checkout
from results.gates.paired.decision import Launch, Side, change_between
from results.gates.paired.workers import Worker, WorkerFailure

SIDES: tuple[Side, ...] = get_args(Side)
WARM_UP_ROUNDS = 2


@dataclass
class Attempt:
    """Result of one launch of one case.

    Attributes:
        seconds: step times in seconds, one per round, by side.
        losses: losses of the first step, by side.
        failures: failures by side; the launch counts only if there are none.
        died: sides whose processes died in an earlier attempt at this launch.
    """

    seconds: dict[Side, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})
    losses: dict[Side, float] = field(default_factory=dict)
    failures: dict[Side, WorkerFailure] = field(default_factory=dict)
    died: list[Side] = field(default_factory=list)

    @property
    def launch(self) -> Launch:
        """The step times without the warm-up rounds."""
        return Launch(**{side: seconds[WARM_UP_ROUNDS:] for side, seconds in self.seconds.items()})

    def __str__(self) -> str:
        again = f", tried again, for {' and '.join(self.died)} died" if self.died else ""
        if self.failures:
            return ", ".join(f"{side} {failure.status}" for side, failure in self.failures.items()) + again
        launches = [self.launch]
        head, canary = change_between(launches, "head", "base"), change_between(launches, "canary", "base")
        return f"head {head}, canary {canary}{again}"


@contextmanager
def launched(
    base: Checkout, head: Checkout, selection: Sequence[str], patience_seconds: float
) -> Iterator[dict[Side, Worker]]:
    """Yield a fresh worker for each side. They end when the context exits."""
    with ExitStack() as stack:
        yield {
            side: stack.enter_context(Worker(head if side == "head" else base, selection, patience_seconds))
            for side in SIDES
        }


def time_case(workers: Mapping[Side, Worker], case: str, rounds: int, draw: random.Random) -> Attempt:
    """Time a case on all sides. If a process died, try once more, because the machine may have caused it."""
    attempted = attempt(workers, case, rounds, draw)
    died = [side for side, failure in attempted.failures.items() if failure.status == "died"]
    return replace(attempt(workers, case, rounds, draw), died=died) if died else attempted


def attempt(workers: Mapping[Side, Worker], case: str, rounds: int, draw: random.Random) -> Attempt:
    """Prepare a case on all sides at the same time, then time the sides interleaved."""
    attempted = Attempt()
    for worker in workers.values():
        worker.tell("prepare", case=case)
    for side, worker in workers.items():
        try:
            attempted.losses[side] = worker.hear()["loss"]
        except WorkerFailure as failure:
            attempted.failures[side] = failure
    if not attempted.failures:
        take_turns(workers, attempted, rounds, draw)
    return attempted


def take_turns(workers: Mapping[Side, Worker], attempted: Attempt, rounds: int, draw: random.Random) -> None:
    """Time one block of each side per round. BASE chooses the number of steps in a block.

    Each round has its own random order of sides, so that neither drift nor the effect of one block on the next favours
    a side.
    """
    side, order = SIDES[0], list(SIDES)
    try:
        steps = workers[side].ask("size")["steps"]
        for _ in range(WARM_UP_ROUNDS + rounds):
            draw.shuffle(order)
            for side in order:
                seconds = workers[side].ask("block", steps=steps)["seconds"]
                attempted.seconds[side].append(seconds / steps)
    except WorkerFailure as failure:
        attempted.failures[side] = failure
