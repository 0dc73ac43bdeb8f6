"""The verdict of the paired gate on step times: how often it raises a false alarm, and how often it misses a change."""

from collections import Counter

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import t as student

from results.gates.paired.decision import Launch, judge, log_ratio, settle
from results.records.launches import Change

EFFECT = 0.05
LAUNCHES, ROUNDS, SIDES = 7, 60, 3


def simulate(random: np.random.Generator, slowdown: float, noise: float = 1.0, count: int = LAUNCHES) -> list[Launch]:
    """Launches on a simulated noisy machine, where HEAD takes `1 + slowdown` times as long as BASE.

    Blocks share a drift (8%, autocorrelation 0.85) and have a deviation of their own (3%), one in twelve is hit by a
    burst, and each process has a constant offset (1.5%). The tails are heavy.
    """
    blocks = count, ROUNDS * SIDES
    drift = 0.08 * np.asarray(lfilter([np.sqrt(1 - 0.85**2)], [1, -0.85], random.standard_normal(blocks)))
    bursts = np.log1p(0.5 * random.pareto(2, blocks)) * (random.random(blocks) < 1 / 12)
    rounds = (drift + bursts + 0.03 * random.standard_t(3, blocks)).reshape(count, ROUNDS, SIDES)
    processes = 0.015 * random.standard_t(3, (count, 1, SIDES))
    seconds = 0.01 * np.exp(noise * (rounds + processes)) * [1, 1 + slowdown, 1]
    return [Launch(*launch.T.tolist()) for launch in seconds]


def compare(slowdown: float, comparisons: int, noise: float = 1.0) -> Counter[str]:
    """Count the verdicts of simulated comparisons, with fresh launches where the gate asks for them."""
    random = np.random.default_rng(0)
    words = Counter()
    for _ in range(comparisons):
        first, fresh = simulate(random, slowdown, noise), simulate(random, slowdown, noise)
        words[settle(first, fresh, EFFECT)] += 1
    return words


def steady(*, head: float = 1.0, canary: float = 1.0, count: int = LAUNCHES) -> list[Launch]:
    """Launches with almost no noise, of a BASE that takes a second."""
    wobble = np.linspace(0.999, 1.001, count)
    return [Launch([1.0] * 5, [head * factor] * 5, [canary * factor] * 5) for factor in wobble.tolist()]


@pytest.mark.parametrize("noise", [1, 3])
def test_identical_code_raises_no_alarm(noise: float) -> None:
    """At most 1% of 400 comparisons of identical code raise an alarm, also with three times the noise."""
    words = compare(0.0, 400, noise)
    assert words["slower"] + words["faster"] <= 4


def test_identical_code_is_mostly_the_same() -> None:
    """At least 95% of comparisons of identical code end in `same`, so few are inconclusive."""
    assert compare(0.0, 200)["same"] >= 190


@pytest.mark.parametrize(("slowdown", "word"), [(0.10, "slower"), (1 / 1.10 - 1, "faster")])
def test_a_change_of_ten_percent_is_found(slowdown: float, word: str) -> None:
    """At least 95% of changes of twice the minimum effect are found, in either direction."""
    assert compare(slowdown, 200)[word] >= 190


def test_a_change_of_the_minimum_effect_is_not_called_the_same() -> None:
    """At most 10% of changes of the minimum effect are called the same, 5% for each of two looks."""
    assert compare(EFFECT, 200)["same"] <= 20


def test_a_canary_as_far_off_as_head_is_inconclusive() -> None:
    """If BASE differs from itself as much as HEAD does, the verdict is inconclusive."""
    assert judge(steady(head=1.2), EFFECT) == "slower"
    assert judge(steady(head=1.2, canary=1.2), EFFECT) == "inconclusive"
    assert judge(steady(head=1 / 1.2), EFFECT) == "faster"
    assert judge(steady(head=1 / 1.2, canary=1 / 1.2), EFFECT) == "inconclusive"


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_launches_say_nothing(count: int) -> None:
    """Fewer than three launches are inconclusive, however large the change."""
    assert judge(steady(head=2.0, count=count), EFFECT) == "inconclusive"
    assert judge(steady(count=count), EFFECT) == "inconclusive"


@pytest.mark.parametrize(
    ("first", "fresh", "word"),
    [
        (steady(head=1.2), steady(head=1.2), "slower"),
        (steady(head=1.2), steady(), "inconclusive"),
        (steady(head=1.2), steady(head=1 / 1.2), "inconclusive"),
        (steady(head=1.2), [], "inconclusive"),
        (steady(), [], "same"),
        (steady(head=1.045, count=3), steady(head=1.045, count=3), "same"),
        (steady(head=1.06, count=3), steady(head=1.0, count=11), "same"),
    ],
)
def test_a_change_must_be_confirmed(first: list[Launch], fresh: list[Launch], word: str) -> None:
    """A change must be confirmed by fresh launches; if all launches together show no change, it is the same."""
    assert settle(first, fresh, EFFECT) == word


def test_bounds_are_student_s() -> None:
    """The one-sided 95% bounds are the two-sided 90% interval of Student's t, as scipy computes it."""
    values = np.random.default_rng(0).normal(size=7)
    low, high = student.interval(0.90, 6, values.mean(), values.std(ddof=1) / np.sqrt(7))
    change = Change.of(values.tolist())
    assert (change.mean, change.low, change.high) == pytest.approx((values.mean(), low, high))


def test_a_burst_does_not_count() -> None:
    """A burst in fewer than half of the rounds does not change a launch's ratio."""
    base = [1.0] * ROUNDS
    assert log_ratio([5.0] * 29 + [1.0] * 31, base) == 0
