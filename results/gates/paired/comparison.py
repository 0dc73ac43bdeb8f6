"""The course of a paired comparison: launch after launch, and fresh ones of what the first leave open."""

import math
import random
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal

from results.gates.paired.decision import Launch, Side, Word, judge, settle
from results.gates.paired.launches import Attempt, time_case
from results.gates.paired.workers import Worker
from results.records.launches import MIN_LAUNCHES

Stage = Literal["first", "fresh"]
Launched = Callable[[], AbstractContextManager[Mapping[Side, Worker]]]
"""Begins a launch: a fresh worker for each side. They end with the context."""


@dataclass(frozen=True)
class Design:
    """How a comparison is made.

    Attributes:
        launches: of every case; of those that are not the same after them, as many fresh ones.
        rounds: in a launch.
        effect: the least change that matters: 0.05 is 5%.
        budget_seconds: for all of it; what does not fit lowers `launches`.
        seed: of the order of turns.
    """

    launches: int
    rounds: int
    effect: float
    budget_seconds: float = math.inf
    seed: int = 0


@dataclass
class Course:
    """What has been learnt of a case so far.

    Attributes:
        key: the id that its workers know it by.
        first: launches that every case gets.
        fresh: launches that it got because the first did not say the same.
        last: what its latest launch showed. If that failed, there is no further one.
    """

    key: str
    first: list[Launch] = field(default_factory=list)
    fresh: list[Launch] = field(default_factory=list)
    last: Attempt = field(default_factory=Attempt)

    def word(self, effect: float) -> Word:
        """What the launches made so far say."""
        return settle(self.first, self.fresh, effect)


class Comparison:
    """Two checkouts, timed against each other.

    Attributes:
        courses: what has been learnt, by case.
        design: as it was given.
        launches: how many are made; fewer than planned where the time budget says so, none if it is too small.
        launch_seconds: that the first took.
    """

    def __init__(self, launched: Launched, cases: Mapping[str, str], design: Design) -> None:
        self.courses = {case: Course(key) for case, key in cases.items()}
        self.design, self.launches, self.launch_seconds = design, design.launches, 0.0
        self._launched, self._draw = launched, random.Random(design.seed)

    def run(self) -> None:
        """Make all launches. `courses` fills as they go on, and keeps what it has after Ctrl-C."""
        started = time.monotonic()
        self._launch("first", 1, give_up=started + self.design.budget_seconds / (2 * MIN_LAUNCHES))
        self.launch_seconds = time.monotonic() - started
        self.launches = launches_within(self.design.budget_seconds, self.launch_seconds, most=self.design.launches)
        for number in range(2, self.launches + 1):
            self._launch("first", number)
        for number in range(1, self.launches + 1):
            self._launch("fresh", number)

    def _launch(self, stage: Stage, number: int, give_up: float = math.inf) -> None:
        """Launch every case that needs it; stop where the clock passes `give_up`."""
        courses = [course for course in self.courses.values() if self._needs(stage, course)]
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

    def _needs(self, stage: Stage, course: Course) -> bool:
        """Whether a case that has not failed is launched at this stage."""
        return not course.last.failures and (stage == "first" or judge(course.first, self.design.effect) != "same")


def launches_within(budget_seconds: float, launch_seconds: float, most: int) -> int:
    """How many launches, and then as many fresh ones, a budget holds; none where it holds fewer than three.

    >>> [launches_within(budget, launch_seconds=30, most=7) for budget in (math.inf, 600, 300, 170)]
    [7, 7, 5, 0]
    """
    fit = min(most, budget_seconds // (2 * launch_seconds))
    return int(fit) if fit >= MIN_LAUNCHES else 0


def say(line: str) -> None:
    """Tell someone who waits."""
    print(line, file=sys.stderr, flush=True)
