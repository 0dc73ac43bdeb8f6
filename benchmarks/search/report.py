"""The report of a search as text, and its document of JSON values."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.cases.case import Case
from benchmarks.cli.tables import aligned, wrapped
from benchmarks.devices.chips import GIB
from benchmarks.devices.placement import device_count
from benchmarks.search import compiled, improvements, measured
from benchmarks.search.candidates import MEMORY_FRACTION, SearchSpace
from benchmarks.search.compiled import CompiledCandidate
from benchmarks.search.compiling import versions
from benchmarks.search.improvements import LEAST_SHARE, Improvement
from benchmarks.search.measured import MeasuredCandidate
from benchmarks.search.ranking import (
    Candidate,
    Ranking,
    layout_cells,
    layout_row,
    usable_bytes,
)
from benchmarks.simulate.intervals import interval, widths
from benchmarks.simulate.machine import Machine
from strategies.model.gpt import param_count

SCHEMA_VERSION = 3
DAY_SECONDS = 86_400
SHOWN_LIMITS = 3


@dataclass(frozen=True)
class Result:
    """What a search found on some devices.

    Attributes:
        space: what was searched.
        machine: predicted the seconds.
        ranking: all candidates.
        improvements: of the best of each strategy and set of mesh axes.
        compiled: candidates that were compiled, fastest first.
        measured: candidates that were measured, fastest first.
        scaling: of a search on several numbers of devices, whether the batch is the same on all of them or grows with
            them. The ranking has the best candidate alone, or one that says why nothing fits.
    """

    space: SearchSpace
    machine: Machine
    ranking: Ranking
    improvements: Mapping[Case, Improvement | None]
    compiled: Sequence[CompiledCandidate] = ()
    measured: Sequence[MeasuredCandidate] = ()
    scaling: Literal["strong", "weak"] | None = None

    @property
    def predicted(self) -> bool:
        """Whether the seconds are those of the machine; steps on virtual devices are measured, not predicted."""
        return not self.space.topology.is_virtual


def report(result: Result, everything: bool, tokens: float | None = None, price: float | None = None) -> list[str]:
    """The lines of the report.

    Args:
        result: what was found.
        everything: whether to list all candidates that fit, instead of the best of each strategy and set of mesh axes,
            and why others are infeasible.
        tokens: to train on, for days and device-hours.
        price: of a device-hour.
    """
    ranking, machine = result.ranking, result.machine
    blocks = [heading(result)]
    if result.measured and not result.predicted:
        blocks.append([*measured.table(result.measured, predicted=False)])
    elif ranking.fitting:
        shown = ranking.fitting if everything else ranking.best_per_layout
        blocks += [
            table(shown, ranking, machine),
            dense_layers(shown),
            certainty(ranking),
            best_lines(ranking.fitting[0]),
            improvements.table(result.improvements),
        ]
    elif ranking.too_large:
        blocks.append(nothing_fits(result))
    if result.compiled:
        blocks.append(compiled.table(result.compiled, ranking))
    if tokens and ranking.fitting:
        blocks.append(cost_lines(result, tokens, price))
    if result.measured and result.predicted:
        blocks.append([*measured.table(result.measured)])
    if everything or not ranking.fitting:
        blocks.append([part for line in left_out(result) for part in wrapped(line)])
    return "\n\n".join("\n".join(lines) for lines in blocks if lines).splitlines()


def nothing_fits(result: Result) -> list[str]:
    """How much memory the smallest candidate needs, where none fits, and what takes less."""
    least, config = min(candidate.needed_bytes for candidate in result.ranking.too_large) / GIB, result.space.config
    ways = ["more devices", "a smaller batch"]
    ways += [] if "full" in result.space.remats else ["--remat full"]
    # Without a capacity factor there are rows for the most uneven routing, and not only those that the tokens need.
    ways += ["--capacity-factor 1.25"] if config.experts and config.capacity_factor is None else []
    way_out = f"take {', '.join(ways[:-1])} or {ways[-1]}"
    return wrapped(f"no candidate fits: the smallest needs {least:.1f} GiB a device; {way_out}")


def heading(result: Result) -> list[str]:
    """The work and the devices, how many candidates there are, and the machine."""
    space, ranking, machine = result.space, result.ranking, result.machine
    work = f"{space.preset}, {space.batch_size} x {space.config.sequence} tokens, {space.dtype}"
    room = f"{usable_bytes(machine) / GIB:.1f} of {machine.chip.memory_bytes / GIB:.1f} GiB"
    too_large, infeasible = len(ranking.too_large), len(ranking.infeasible)
    texts = [
        f"{work}, on {device_count(space.topology)} devices of {space.topology}",
        f"{len(ranking.fitting)} candidates fit, {too_large} are too large, {infeasible} infeasible",
        f"a candidate fits if formulas give it at most {room}; they may be off by {1 - MEMORY_FRACTION:.0%}",
    ]
    texts += [f"machine {machine.name}: {machine.source}"] if result.predicted else []
    return [line for text in texts for line in wrapped(text)]


def table(shown: Sequence[Candidate], ranking: Ranking, machine: Machine) -> list[str]:
    """The lines of the table of candidates that fit."""
    tied = ranking.tied
    rows: list[tuple[str, ...]] = [
        ("rank", "strategy", "mesh", "options", "GiB", "ms", "roofline ms", "tokens/s", "MFU", "bottleneck")
    ]
    for candidate in shown:
        resource, share = next(iter(candidate.limits.items()))
        rank = ranking.ranks[candidate.case]
        rows.append(
            (
                f"{rank}{'=' if rank <= tied > 1 else ''}",
                *layout_cells(candidate.case),
                f"{candidate.needed_bytes / GIB:.1f}",
                f"{1e3 * candidate.step_seconds:,.0f}",
                f"{1e3 * candidate.bound_seconds:,.0f}",
                f"{candidate.tokens_per_second:,.0f}",
                f"{candidate.model_flops_utilization:.0%}",
                f"{resource} {share:.0%}",
            )
        )
    return aligned(rows, [*"<<<<", *">" * 5, "<"])


def dense_layers(shown: Sequence[Candidate]) -> list[str]:
    """What stages of pipelines do with leading dense layers, if both are there."""
    layers = max(candidate.cost.plan.layers_again for candidate in shown)
    said = f"dense_layers={layers}: every stage of a pipeline runs these layers; more stages do not split them"
    return wrapped(said) if layers else []


def certainty(ranking: Ranking) -> list[str]:
    """How far apart predictions of two candidates have to be, and how many are therefore tied."""
    apart = math.exp(widths().pair) - 1
    text = f"two candidates within {apart:.0%} of each other may be in any order; the first {ranking.tied} are tied"
    return wrapped(text)


def best_lines(best: Candidate) -> list[str]:
    """How fast the best candidate is, its bottlenecks, and where its time goes."""
    machine = best.machine
    low, high = (1e3 * seconds for seconds in best.interval_seconds)
    rate = best.tokens_per_second / best.case.mesh.size
    likely = f"{1e3 * best.step_seconds:,.0f} ms, {low:,.0f} to {high:,.0f} ms with a probability of 80%"
    lines = [f"the best takes {likely}; {rate:,.0f} tokens/s a device"]
    if machine.assumed:
        lines.append("no source has measured such devices: the range is one that covers 90% on others")
    saved = [(name, share) for name, share in best.limits.items() if share > LEAST_SHARE]
    limits = ", ".join(f"{name} {share:.0%}" for name, share in saved[:SHOWN_LIMITS])
    lines += [f"bottlenecks (time saved if infinitely fast): {limits}"] if limits else []
    spent = sorted(best.timeline.parts.items(), key=lambda part: -part[1])
    shares = {name: f"{seconds / best.step_seconds:.0%}" for name, seconds in spent}
    parts = ", ".join(f"{name} {share}" for name, share in shares.items() if share != "0%")
    return [line for text in [*lines, f"where its time goes: {parts}"] for line in wrapped(text)]


def cost_lines(result: Result, tokens: float, price: float | None) -> list[str]:
    """Days, device-hours and money to train on so many tokens with the best candidate, as compiled if it was.

    Each is a range by the interval of the prediction.
    """
    space, machine = result.space, result.machine
    compiled_seconds = result.compiled[0].step_seconds if result.compiled else None
    step_seconds = compiled_seconds or result.ranking.fitting[0].step_seconds
    seconds = step_seconds * tokens / (space.batch_size * space.config.sequence)
    days, hours = seconds / DAY_SECONDS, seconds * device_count(space.topology) / 3600
    amounts = [(days, ",.1f", " days"), (hours, ",.0f", " device-hours")]
    amounts += [] if price is None else [(hours * price, ",.0f", f" at {price:g} an hour")]
    low, high = interval(machine, space.config)
    ranges = [f"{amount * low:{spec}} to {amount * high:{spec}}{unit}" for amount, spec, unit in amounts]
    exact = [f"{amount:{spec}}{unit}" for amount, spec, unit in amounts]
    lines = (
        f"{tokens:.3g} tokens take {', '.join(ranges)}",
        f"as predicted: {', '.join(exact)}; the ranges have a probability of 80%",
    )
    return [part for line in lines for part in wrapped(line)]


def left_out(result: Result) -> Iterator[str]:
    """Lines with the number of infeasible cases for each reason, with an example."""
    examples: dict[str, list[tuple[Case, str]]] = {}
    for case, reason in result.ranking.infeasible:
        examples.setdefault(reason_template(reason), []).append((case, reason))
    if examples:
        yield "left out"
    for similar in sorted(examples.values(), key=len, reverse=True):
        case, reason = similar[0]
        yield f"{len(similar):6}, such as {case.strategy} {case.mesh} microbatches={case.microbatches}: {reason}"


def reason_template(reason: str) -> str:
    """A reason without its numbers and remedies, to group similar reasons.

    >>> reason_template("tensor=64 does not divide heads=32; tensor can be 1, 2, 4, 8, 16 or 32")
    'tensor=N does not divide heads=N'
    """
    return re.sub(r"[0-9]+", "N", reason.partition(";")[0])


def document(results: Sequence[Result]) -> dict[str, Any]:
    """What was found as JSON values: facts of the first result, and a row for each candidate of all of them."""
    result = results[0]
    space, machine, ranking = result.space, result.machine, result.ranking
    return {
        "kind": "search",
        "schema_version": SCHEMA_VERSION,
        "topology": str(space.topology),
        "devices": device_count(space.topology),
        "preset": space.preset,
        "param_count": param_count(space.config),
        "global_batch_sequences": space.batch_size,
        "sequence_tokens": space.config.sequence,
        "dtype": space.dtype,
        "machine": machine.name if result.predicted else None,
        "error": machine.error if result.predicted else None,
        "error_assumed": machine.assumed,
        "interval": [*interval(machine, space.config)] if result.predicted else None,
        "capacity_bytes": machine.chip.memory_bytes,
        "usable_bytes": int(usable_bytes(machine)),
        "tied": ranking.tied if result.predicted and not result.scaling else None,
        "versions": versions(space.topology),
        "candidates": [row for found in results for row in _rows(found)],
    }


COLUMNS = (
    *("scaling", "topology", "devices", "global_batch_sequences"),
    *("rank", "status", "reason"),
    *("needed_bytes", "sent_bytes", "bubble"),
    *("predicted_seconds", "tokens_per_second", "model_flops_utilization", "bound_seconds", "parts"),
    *("waits_for", "improvement"),
    *(
        f"compiled.{name}"
        for name in ("seconds", "needed_bytes", "exposed_seconds", "predicted_exposed_seconds", "reason")
    ),
    *(f"measured.{name}" for name in ("seconds", "rounds_seconds", "final", "reason", "unchecked")),
)
"""Columns of a candidate besides those of its layout; None where something is not known."""


def _rows(result: Result) -> Iterator[dict[str, Any]]:
    """Yield a row for each candidate: those that fit, too large ones, infeasible ones."""
    too_large = f"needs more than {int(usable_bytes(result.machine))} bytes"
    yield from (_fitting_row(candidate, result) for candidate in result.ranking.fitting)
    for candidate in result.ranking.too_large:
        yield _row(candidate.case, result, "too_large", too_large, **_formulas(candidate))
    yield from (_row(case, result, "infeasible", reason) for case, reason in result.ranking.infeasible)


def _row(case: Case, result: Result, status: str, reason: str, **known: Any) -> dict[str, Any]:
    devices = {"scaling": result.scaling, "topology": str(result.space.topology), "devices": case.mesh.size}
    facts = {**devices, "global_batch_sequences": case.batch_size, "status": status, "reason": reason}
    return layout_row(case) | dict.fromkeys(COLUMNS) | facts | known


def _formulas(candidate: Candidate) -> dict[str, Any]:
    cost = candidate.cost
    return {"needed_bytes": candidate.needed_bytes, "sent_bytes": float(cost.sent_bytes), "bubble": cost.bubble}


def _fitting_row(candidate: Candidate, result: Result) -> dict[str, Any]:
    """The row of a candidate that fits."""
    case = candidate.case
    known = _formulas(candidate)
    if result.predicted:
        known |= {"rank": result.ranking.ranks[case], **candidate.as_row()}
        known |= {"bound_seconds": candidate.bound_seconds, "parts": dict(candidate.timeline.parts)}
    if result.predicted and case in result.improvements:
        found = result.improvements[case]
        known |= {"waits_for": dict(candidate.limits), "improvement": found and found._asdict()}
    for tried in (*result.compiled, *result.measured):
        known |= tried.as_row() if tried.candidate.case == case else {}
    return _row(case, result, "fits", "", **known)
