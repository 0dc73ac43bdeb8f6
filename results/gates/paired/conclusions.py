"""Report of a paired comparison: its findings, measures and remarks."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from results.gates.paired.checkouts import Introduction
from results.gates.paired.comparison import Comparison, Course
from results.gates.paired.decision import Launch, Side, change_between, judge, settle
from results.gates.verdict import Finding, Measure, Report
from results.records.launches import MIN_LAUNCHES

METRIC = "step_seconds_median"
LOSS_ROUNDING = 0.01
"""Largest relative difference of first losses that rounding explains in any dtype. More is another computation."""


def finding_of(case: str, course: Course, effect: float) -> Finding:
    """Return the finding on a case that is in both checkouts.

    A slowdown or speed-up is estimated from the fresh launches alone. The first launches were selected because they
    showed a change, so they exaggerate it.
    """
    if course.last.failures:
        return failed(case, course)
    word = settle(course.first, course.fresh, effect)
    launches = course.fresh if word in ("slower", "faster") else [*course.first, *course.fresh]
    if not launches:
        return Finding(case, word, note="no launch was finished")
    change = change_between(launches, "head", "base")
    bounds = None if len(launches) < 2 else (math.exp(change.low), math.exp(change.high))
    base, head = (statistics.median(medians(launches, side)) for side in ("base", "head"))
    return Finding(case, word, METRIC, base, head, math.exp(change.mean), bounds, history(course, effect))


def failed(case: str, course: Course) -> Finding:
    """Return the finding on a case that failed on either side."""
    failures = course.last.failures
    head, base = failures.get("head"), failures.get("base") or failures.get("canary")
    if not base:
        return Finding(case, "worse", note=str(head))
    if base.of_process:  # the machine may have caused it, so HEAD did not necessarily fix it
        return Finding(case, "inconclusive", note=f"BASE {base}")
    return (
        Finding(case, "same", note=f"failed in both: {head}") if head else Finding(case, "better", note=f"was {base}")
    )


def history(course: Course, effect: float) -> str:
    """Describe the result of each stage, and by how much BASE differed from itself in the same launches."""
    stages = {"first": course.first, "fresh": course.fresh}
    words = [f"{len(made)} {stage}: {judge(made, effect)}" for stage, made in stages.items() if made]
    canary = change_between([*course.first, *course.fresh], "canary", "base")
    return f"launches {', '.join(words)}; BASE against itself {canary}"


def conclude(title: str, base: Introduction, head: Introduction, comparison: Comparison) -> Report:
    """Return the report on the launches made so far."""
    courses = comparison.courses
    findings = [finding_of(case, course, comparison.design.effect) for case, course in courses.items()]
    failed_in_both = all(finding.word == "same" and not finding.metric for finding in findings)
    reason = f"no case runs in both: {findings[0].case}: {findings[0].note}" if failed_in_both else ""
    findings += [Finding(case, "vanished") for case in base.cases if case not in head.cases]
    findings += [Finding(case, "new") for case in head.cases if case not in base.cases]
    return Report(
        title,
        tuple(findings),
        tuple(measures_of(courses)),
        (*made_of(comparison), *run_with(base, head), *computing_else(courses), *not_compared(courses)),
        "not comparable" if failed_in_both else None,
        reason,
    )


def measures_of(courses: Mapping[str, Course]) -> Iterator[Measure]:
    """Yield HEAD's step time of each case: the median over launches, with the fastest and the slowest launch."""
    for case, course in courses.items():
        if values := medians([*course.first, *course.fresh], "head"):
            yield Measure(case, METRIC, statistics.median(values), min(values), max(values))


def made_of(comparison: Comparison) -> Iterator[str]:
    """Yield remarks on how the comparison was made: launches, blocks, minimum effect, seed and time budget."""
    design, launches = comparison.design, comparison.launches
    effect = f"minimum effect {100 * design.effect:g}%"
    made = max(len(course.first) for course in comparison.courses.values())
    number = f"{made} of {launches}" if made < launches else f"{made}"
    yield f"{number} launches of {design.rounds} timed blocks a side; {effect}, seed {design.seed}"
    if fresh := sum(bool(course.fresh) for course in comparison.courses.values()):
        yield f"{fresh} of {len(comparison.courses)} cases were not the same after these, and had fresh launches"
    if launches < design.launches:
        need = f"{launches or MIN_LAUNCHES} launches and as many fresh ones"
        fit = f"{need} fit" if launches else f"{need} do not fit; select fewer cases, or allow more time"
        left = f"of {design.budget_seconds:.0f} s that were left"
        yield f"{left} the first launch took {comparison.launch_seconds:.0f} s: {fit}"


def run_with(base: Introduction, head: Introduction) -> Iterator[str]:
    """Yield remarks on the versions and devices of the run, one for each checkout if the versions differ."""
    if base.environment == head.environment:
        yield f"{environment_words(head.environment)}, on {head.devices}"
    else:
        yield f"BASE: {environment_words(base.environment)}, on {base.devices}"
        yield f"HEAD: {environment_words(head.environment)}, on {head.devices}"


def environment_words(environment: Mapping[str, str]) -> str:
    """Return versions as one line.

    >>> environment_words({"python": "3.11.7", "jax": "0.10.2"})
    'python 3.11.7, jax 0.10.2'
    """
    return ", ".join(f"{name} {version}" for name, version in environment.items())


def computing_else(courses: Mapping[str, Course]) -> Iterator[str]:
    """Yield a remark on each case whose first losses differ by more than rounding explains."""
    for case, course in courses.items():
        losses = course.last.losses
        if losses.keys() >= {"base", "head"} and abs(losses["head"] / losses["base"] - 1) > LOSS_ROUNDING:
            yield f"{case}: first loss {losses['base']:.6g} -> {losses['head']:.6g}: it computes something else"


def not_compared(courses: Mapping[str, Course]) -> Iterator[str]:
    """Yield a remark for each reason why steps were not compared with one device's before they were timed."""
    cases = defaultdict[str, list[str]](list)
    for case, course in courses.items():
        for side, why in course.unchecked.items():
            cases[f"{side.upper()} was not compared with one device: {why.partition(chr(10))[0]}"].append(case)
    for problem, names in cases.items():
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"{names[0]}{others}: {problem}"


def medians(launches: Sequence[Launch], side: Side) -> list[float]:
    """Return the median step time of each launch in seconds."""
    return [statistics.median(getattr(launch, side)) for launch in launches]
