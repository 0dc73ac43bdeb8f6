"""Runs a paired comparison: a check of every case, first launches, then fresh ones of cases not found the same.

A launch has fresh processes of BASE, HEAD and the canary (BASE again), which time blocks of steps interleaved.
"""

import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from benchmarks.cli.child import Server, ServerFailure
from results.gates.paired.checkouts import Checkout, worker
from results.gates.paired.decision import Launch, Side, change_between, judge
from results.records.launches import MIN_LAUNCHES

SIDES: tuple[Side, ...] = get_args(Side)
WARM_UP_ROUNDS = 2
MISMATCH = "mismatch"
Stage = Literal["first", "fresh"]
Launched = Callable[[], AbstractContextManager[Mapping[Side, Server]]]
"""Opens a launch: a context with a fresh server for each side. The servers end when the context exits."""


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


@dataclass(frozen=True)
class Design:
    """Settings of a comparison: first launches of every case, timed rounds in each, and the least change that matters.

    Cases not found the same get the same number of fresh launches. Fewer are made if not all fit the time budget.
    """

    launches: int
    rounds: int
    effect: float
    budget_seconds: float = math.inf
    seed: int = 0


@dataclass
class Course:
    """The launches of a case so far: the first ones, and fresh ones if those did not find it the same.

    Its key is its id in the workers. `unchecked` says by side why it was not compared with one device. A case whose
    last launch failed is not launched again.
    """

    key: str
    unchecked: Mapping[Side, str] = field(default_factory=dict)
    first: list[Launch] = field(default_factory=list)
    fresh: list[Launch] = field(default_factory=list)
    last: Attempt = field(default_factory=Attempt)


class Comparison:
    """Two checkouts, timed against each other.

    `cases` are ids in the workers, by the cases' names in reports. `courses` has the launches so far, by case, and
    `launches` their number per stage: fewer than planned if the time budget is short, 0 if it is too short.
    """

    def __init__(self, launched: Launched, cases: Mapping[str, str], design: Design) -> None:
        self.courses = {case: Course(key) for case, key in cases.items()}
        self.design, self.launches, self.launch_seconds = design, design.launches, 0.0
        self._launched, self._draw = launched, random.Random(design.seed)

    def run(self) -> None:
        """Make all launches. `courses` is filled after each case, so it keeps the results so far after Ctrl-C."""
        begun = time.monotonic()
        self._check(give_up=begun + self.design.budget_seconds / (2 * MIN_LAUNCHES))
        started = time.monotonic()
        left_seconds = self.design.budget_seconds - (started - begun)
        self._launch("first", 1, give_up=started + left_seconds / (2 * MIN_LAUNCHES))
        self.launch_seconds = time.monotonic() - started
        self.launches = launches_within(left_seconds, self.launch_seconds, most=self.design.launches)
        for number in range(2, self.launches + 1):
            self._launch("first", number)
        for number in range(1, self.launches + 1):
            self._launch("fresh", number)

    def _check(self, give_up: float) -> None:
        """Compare the first steps of every case with one device's, in processes of their own, until `give_up`."""
        with self._launched() as workers:
            for done, course in enumerate(self.courses.values(), start=1):
                if time.monotonic() > give_up:
                    course.unchecked = dict.fromkeys(("base", "head"), "the time budget is too short")
                    continue
                course.last.failures, course.unchecked = check_case(workers, course.key)
                found = course.last.failures or course.unchecked
                words = ", ".join(f"{side} {why}" for side, why in found.items()) or "equal"
                say(f"check, case {done}/{len(self.courses)}, {course.key}: {words}")

    def _launch(self, stage: Stage, number: int, give_up: float = math.inf) -> None:
        """Launch every case that needs this stage; stop after a case if the time `give_up` has passed."""
        courses = [course for course in self.courses.values() if not course.last.failures]
        if stage == "fresh":
            courses = [course for course in courses if judge(course.first, self.design.effect) != "same"]
        if not courses:
            return
        started = time.monotonic()
        with self._launched() as workers:
            for done, course in enumerate(courses, start=1):
                course.last = time_case(workers, course.key, self.design.rounds, self._draw)
                if not course.last.failures:
                    getattr(course, stage).append(course.last.launch)
                now = time.monotonic()
                left_seconds = (now - started) / done * (len(courses) * (self.launches - number + 1) - done)
                where = f"{stage} launch {number}/{self.launches}, case {done}/{len(courses)}, {course.key}"
                say(f"{where}: {course.last}; {left_seconds:.0f} s left")
                if now > give_up:
                    return


def launches_within(budget_seconds: float, launch_seconds: float, most: int) -> int:
    """Return how many first launches, followed by as many fresh ones, fit a budget; 0 if fewer than three fit.

    >>> [launches_within(budget, launch_seconds=30, most=7) for budget in (math.inf, 600, 300, 170)]
    [7, 7, 5, 0]
    """
    fit = min(most, budget_seconds // (2 * launch_seconds))
    return int(fit) if fit >= MIN_LAUNCHES else 0


def say(line: str) -> None:
    """Print a line of progress to stderr."""
    print(line, file=sys.stderr, flush=True)
