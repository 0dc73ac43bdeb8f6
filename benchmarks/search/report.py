"""What a search found, and the report of it as text: the answer first."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from benchmarks.cases.case import Case
from benchmarks.cli.tables import paragraph, wrapped
from benchmarks.devices.chips import GIB
from benchmarks.devices.placement import device_count
from benchmarks.search import compiled, measured, nearest, rows
from benchmarks.search.candidates import SearchSpace
from benchmarks.search.ranking import Candidate, Ranking, Tried, first_of_each, kind
from benchmarks.search.rows import Column
from benchmarks.simulate.intervals import interval, widths
from benchmarks.simulate.machine import MEMORY_FRACTION, Machine
from strategies import STRATEGIES

SHOWN_LIMITS, LEAST_SHARE = 3, 0.02
"""Bottlenecks that are named, and the least share of a step of one."""
SHOWN = 5
"""Candidates in the table, unless all are asked for."""
SPLITTING = "fsdp", "tensor", "pipeline", "context", "expert"
"""Mesh axes that split a model or its activations."""
COLUMNS = (
    *(rows.RANK, rows.STRATEGY, rows.MESH, Column("GiB", "needed_bytes", *rows.GIBIBYTES)),
    Column("ms", "predicted_seconds", *rows.MILLISECONDS),
    Column("roofline ms", "bound_seconds", *rows.MILLISECONDS),
    *(rows.TOKENS, rows.UTILIZATION, rows.BOTTLENECK, rows.OPTIONS),
)
Scaling = Literal["strong", "weak"]


@dataclass(frozen=True)
class Result:
    """What a search found on some devices. Compiled and measured candidates are the fastest first.

    In a search on several numbers of devices the ranking has the best candidate alone, or one that does not fit.
    """

    space: SearchSpace
    machine: Machine
    ranking: Ranking
    compiled: Sequence[Tried] = ()
    measured: Sequence[Tried] = ()
    scaling: Scaling | None = None

    @property
    def predicted(self) -> bool:
        """Whether the seconds are those of the machine; steps on virtual devices are measured, not predicted."""
        return not self.space.topology.is_virtual

    @cached_property
    def nearest(self) -> list[dict[str, Any]]:
        """Published runs that are near; none of steps that are not predicted."""
        return nearest.nearest(self.space) if self.predicted else []


def report(result: Result, everything: bool, tokens: float | None = None, price: float | None = None) -> list[str]:
    """The lines of the report; of `everything`, with all candidates that fit, and why others are infeasible."""
    ranking = result.ranking
    blocks = [answer(result), heading(result)]
    if ranking.fitting and result.predicted:
        shown = ranking.fitting if everything else first_of_each(ranking.fitting, kind)[:SHOWN]
        blocks += ranked_blocks(shown, ranking)
    if result.compiled:
        blocks.append(compiled.lines(result.compiled, ranking))
    if tokens and ranking.fitting:
        blocks.append(cost_lines(result, tokens, price))
    if result.measured:
        blocks.append([*measured.lines(result.measured, ranking, result.predicted)])
    if result.predicted:
        blocks.append(nearest.lines(result.nearest))
    if everything or not ranking.fitting:
        blocks.append(paragraph(*left_out(ranking)))
    return "\n\n".join("\n".join(lines) for lines in blocks if lines).splitlines()


def answer(result: Result) -> list[str]:
    """The candidate to use, how long its step takes, how fast it is and what it holds: by measuring, if it was."""
    ranking, machine = result.ranking, result.machine
    if not ranking.fitting:
        return nothing_fits(result) if ranking.too_large else ["no candidate is feasible; the reasons are below"]
    best, seconds = ranking.fitting[0], ranking.fitting[0].step_seconds
    low, high = interval(machine, best.case.config).around(seconds)
    how = f"{amount(low)} to {amount(high)} with a probability of 80%"
    for tried, words in ((result.compiled, "as compiled"), (result.measured, "measured")):
        if tried and (known := tried[0].seconds):
            best, seconds, how = tried[0].candidate, known, words
    strategy, mesh = best.case.strategy, str(best.case.mesh)
    spread = [] if mesh.startswith(f"{strategy}=") and "," not in mesh else [strategy]
    layout = ", ".join((*spread, mesh, *rows.options_text(rows.layout_row(best.case)).split()))
    tokens = best.case.batch_size * best.case.config.sequence / seconds / best.case.mesh.size
    held = f"{best.needed_bytes / GIB:.1f} of {machine.chip.memory_bytes / GIB:.1f} GiB"
    return wrapped(f"Use {layout}: {amount(seconds)} a step ({how}), {tokens:,.0f} tokens/s a device, {held}")


def amount(seconds: float) -> str:
    """A time in the unit that suits it.

    >>> amount(0.0123), amount(1.6234)
    ('12.3 ms', '1.62 s')
    """
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def nothing_fits(result: Result) -> list[str]:
    """How much memory the smallest candidate needs, where none fits, and what takes less."""
    space, smallest = result.space, min(result.ranking.too_large, key=lambda candidate: candidate.needed_bytes)
    config, case = space.config, smallest.case
    others = [axis for axis in SPLITTING if axis not in case.mesh.sizes and (axis != "expert" or config.experts)]
    whole = case.batch_size == case.microbatches * STRATEGIES[case.strategy].batch_shards(case.mesh)
    ways = ["more devices"]
    ways += [] if whole else ["a smaller batch"]  # below one sequence a device nothing gets smaller
    ways += [f"meshes with {' or '.join(others)}"] if others and (space.strategies or space.meshes) else []
    ways += [] if "full" in space.remats else ["--remat full"]
    # Without a capacity factor there are rows for the most uneven routing, and not only those that the tokens need.
    ways += ["--model capacity_factor=1.25"] if config.experts and config.capacity_factor is None else []
    way_out = f"take {', '.join(ways[:-1])} or {ways[-1]}" if len(ways) > 1 else f"take {ways[0]}"
    least = f"{smallest.needed_bytes / GIB:.1f} GiB a device, {case.strategy} {case.mesh}"
    return wrapped(f"no candidate fits: the smallest needs {least}; {way_out}")


def heading(result: Result) -> list[str]:
    """The work and the devices, how many candidates there are, and the machine."""
    space, ranking, machine = result.space, result.ranking, result.machine
    work = f"{space.preset}, {space.batch_size} x {space.config.sequence} tokens, {space.dtype}"
    room = f"{machine.usable_bytes / GIB:.1f} of {machine.chip.memory_bytes / GIB:.1f} GiB"
    too_large, infeasible = len(ranking.too_large), len(ranking.infeasible)
    return paragraph(
        f"{work}, on {device_count(space.topology)} devices of {space.topology}",
        f"{len(ranking.fitting)} candidates fit, {too_large} are too large, {infeasible} infeasible",
        f"a candidate fits if it needs at most {room}, a margin of {1 - MEMORY_FRACTION:.0%} for errors of formulas",
        *([f"machine {machine.name}: {machine.source}"] if result.predicted else []),
    )


def ranked_blocks(shown: Sequence[Candidate], ranking: Ranking) -> Iterator[list[str]]:
    """The table of candidates that fit, in which ranks are marked that are tied with the first, and what it means."""
    known = [ranking.row(candidate) for candidate in shown]
    marked = [row | {"rank": f"{row['rank']}{'=' if row['rank'] <= ranking.tied > 1 else ''}"} for row in known]
    yield rows.table(COLUMNS, marked)
    if options := max((candidate.cost.plan.run_by_all_stages for candidate in shown), key=len):
        what = f"{', '.join(options)}: every stage of a pipeline runs these layers"
        yield wrapped(f"{what}; more stages do not split them")
    apart = f"two candidates within {math.exp(widths().pair) - 1:.0%} of each other may be in any order"
    yield wrapped(f"{apart}; the first {ranking.tied} are tied")
    yield best_lines(ranking.fitting[0])


def best_lines(best: Candidate) -> list[str]:
    """The bottlenecks of the best candidate, and where its time goes."""
    unmeasured = "no source has measured such devices: the range is one that covers 90% on others"
    saved = [(name, share) for name, share in best.limits.items() if share > LEAST_SHARE]
    limits = ", ".join(f"{name} {share:.0%}" for name, share in saved[:SHOWN_LIMITS])
    lines = [unmeasured] if best.machine.assumed else []
    lines += [f"bottlenecks of the best (time saved if infinitely fast): {limits}"] if limits else []
    spent = sorted(best.timeline.parts.items(), key=lambda part: -part[1])
    shares = ((name, seconds / best.step_seconds) for name, seconds in spent)
    parts = ", ".join(f"{name} {share:.0%}" for name, share in shares if share > 0.005)
    return paragraph(*lines, f"where its time goes: {parts}")


def cost_lines(result: Result, tokens: float, price: float | None) -> list[str]:
    """Ranges of days, device-hours and money to train on tokens with the best candidate, as compiled if it was."""
    space, machine = result.space, result.machine
    compiled_seconds = result.compiled[0].seconds if result.compiled else None
    step_seconds = compiled_seconds or result.ranking.fitting[0].step_seconds
    seconds = step_seconds * tokens / (space.batch_size * space.config.sequence)
    days, hours = seconds / 86_400, seconds * device_count(space.topology) / 3600
    amounts = [(days, ",.1f", " days"), (hours, ",.0f", " device-hours")]
    amounts += [] if price is None else [(hours * price, ",.0f", f" in all at {price:g} a device-hour")]
    low, high = interval(machine, space.config)
    ranges = ", ".join(f"{amount * low:{spec}} to {amount * high:{spec}}{unit}" for amount, spec, unit in amounts)
    exact = ", ".join(f"{amount:{spec}}{unit}" for amount, spec, unit in amounts)
    how = f"as {'compiled' if compiled_seconds else 'predicted'}: {exact}; the ranges have a probability of 80%"
    return paragraph(f"{tokens:.3g} tokens take {ranges}", how)


def left_out(ranking: Ranking) -> Iterator[str]:
    """Lines with the number of infeasible cases for each reason, with an example."""
    examples: dict[str, list[tuple[Case, str]]] = {}
    for case, reason in ranking.infeasible:
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
