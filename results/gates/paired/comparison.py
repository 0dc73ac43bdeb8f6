"""Runs a paired comparison: a check of every case, first launches, then fresh ones of cases not found the same."""

import math
import random
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.cli.child import Server
from results.gates.paired.decision import Launch, Side, Word, judge, settle
from results.gates.paired.launches import Attempt, check_case, time_case
from results.records.launches import MIN_LAUNCHES

Stage = Literal["first", "fresh"]
Launched = Callable[[], AbstractContextManager[Mapping[Side, Server]]]
"""Opens a launch: a context with a fresh server for each side. The servers end when the context exits."""


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

    def word(self, effect: float) -> Word:
        """Return the decision from the launches made so far."""
        return settle(self.first, self.fresh, effect)


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
