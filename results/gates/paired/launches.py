"""A launch: fresh processes of BASE, HEAD and the canary (BASE again), which time blocks of steps interleaved."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import get_args

from benchmarks.cli.child import Server, ServerFailure
from results.gates.paired.checkouts import Checkout, worker
from results.gates.paired.decision import Launch, Side, change_between

SIDES: tuple[Side, ...] = get_args(Side)
WARM_UP_ROUNDS = 2
MISMATCH = "mismatch"


@dataclass
class Attempt:
    """Result of one launch of one case: step times in seconds, one per round, by side, and losses of the first step.

    It counts only if there are no failures. `died` has the sides whose processes died in an earlier attempt at it.
    """

    seconds: dict[Side, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})
    losses: dict[Side, float] = field(default_factory=dict)
    failures: dict[Side, ServerFailure] = field(default_factory=dict)
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
) -> Iterator[dict[Side, Server]]:
    """Yield a fresh worker for each side. They end when the context exits."""
    with ExitStack() as stack:
        yield {
            side: stack.enter_context(worker(head if side == "head" else base, selection, patience_seconds))
            for side in SIDES
        }


def check_case(workers: Mapping[Side, Server], case: str) -> tuple[dict[Side, ServerFailure], dict[Side, str]]:
    """Compare the first steps of a case with those of one device, in both checkouts. The canary runs the code of BASE.

    Returns:
        The sides on which it computes something else, and why it was not compared on others. A step that cannot be
        built or trained fails in the same way when it is prepared, so it counts as not compared here.
    """
    failures, unchecked = dict[Side, ServerFailure](), dict[Side, str]()
    checked: dict[Side, Server] = {side: workers[side] for side in SIDES if side != "canary"}
    for server in checked.values():
        server.tell("check", case=case)
    for side, server in checked.items():
        try:
            unchecked[side] = server.hear()["unchecked"]
        except ServerFailure as failure:
            if failure.status == MISMATCH:
                failures[side] = failure
            else:
                unchecked[side] = str(failure)
    return failures, {side: why for side, why in unchecked.items() if why}


def time_case(workers: Mapping[Side, Server], case: str, rounds: int, draw: random.Random) -> Attempt:
    """Time a case on all sides. If a process died, try once more, because the machine may have caused it."""
    attempted = attempt(workers, case, rounds, draw)
    died = [side for side, failure in attempted.failures.items() if failure.status == "died"]
    return replace(attempt(workers, case, rounds, draw), died=died) if died else attempted


def attempt(workers: Mapping[Side, Server], case: str, rounds: int, draw: random.Random) -> Attempt:
    """Prepare a case on all sides at the same time, then time the sides interleaved."""
    attempted, trainings = Attempt(), dict[Side, int]()
    for server in workers.values():
        server.tell("prepare", case=case, alone=True)
    for side, server in workers.items():
        try:
            answer = server.hear()
            attempted.losses[side], trainings[side] = answer["losses"][0], answer["training"]
        except ServerFailure as failure:
            attempted.failures[side] = failure
    if not attempted.failures:
        take_turns(workers, trainings, attempted, rounds, draw)
    return attempted


def take_turns(
    workers: Mapping[Side, Server],
    trainings: Mapping[Side, int],
    attempted: Attempt,
    rounds: int,
    draw: random.Random,
) -> None:
    """Time one block of each side per round. BASE chooses the number of steps in a block.

    Each round has its own random order of sides, so that neither drift nor the effect of one block on the next favours
    a side.
    """
    side, order = SIDES[0], list(SIDES)
    try:
        steps = workers[side].ask("size", training=trainings[side])["steps"]
        for _ in range(WARM_UP_ROUNDS + rounds):
            draw.shuffle(order)
            for side in order:
                answer = workers[side].ask("block", training=trainings[side], steps=steps)
                attempted.seconds[side].append(answer["seconds"] / steps)
    except ServerFailure as failure:
        attempted.failures[side] = failure
