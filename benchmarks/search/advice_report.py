"""The report of the advice as text, and its document of JSON values."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.commandline.tables import aligned, wrapped
from benchmarks.devices.chips import GIB
from benchmarks.devices.placement import device_count
from benchmarks.search import as_compiled
from benchmarks.search.advised import Choice, Choices, limits, plausible, usable_bytes
from benchmarks.search.as_compiled import AsCompiled
from benchmarks.search.candidates import MEMORY_FRACTION, SearchSpace
from benchmarks.search.levers import LEAST_SHARE, Advice, Limits, lever_lines
from benchmarks.seconds.machine import Machine

DAY_SECONDS = 86_400
SHOWN_LIMITS = 3


def report(
    space: SearchSpace,
    choices: Choices,
    advice: Sequence[Advice],
    machine: Machine,
    compiled: Sequence[AsCompiled],
    everything: bool,
) -> list[str]:
    """The lines of the report; `everything` lists all candidates instead of the best of each layout."""
    lines = heading(space, choices, machine)
    if not choices.best and choices.larger:
        least = min(cost.needed_bytes for _, cost in choices.larger) / GIB
        way_out = "take more devices, a smaller batch, or --remat full"
        return [*lines, *wrapped(f"no candidate fits: the smallest needs {least:.1f} GiB a device; {way_out}")]
    if not choices.best:
        return [*lines, *(line for each in dict.fromkeys(choices.problems) for line in wrapped(f"infeasible: {each}"))]
    shown = list(choices.best) if everything else choices.of_each_layout()
    waits = {id(each.choice): each.limits for each in advice}
    waits |= {id(each): limits(each, machine, space.topology) for each in shown if id(each) not in waits}
    lines += table(shown, waits, choices, machine)
    best = choices.best[0]
    tied = f"the first {choices.tied(machine.error)} of all candidates are tied"
    lines += ["", *wrapped(f"predictions are {machine.error_text}: {tied}")]
    if machine.assumed:
        lines += wrapped("times, rates and MFU are assumed, too; compare one of them with a measured or published step")
    lines += ["", *best_lines(best, waits[id(best)], machine), "", *lever_lines(advice)]
    return [*lines, "", *as_compiled.table(compiled)] if compiled else lines


def heading(space: SearchSpace, choices: Choices, machine: Machine) -> list[str]:
    """What is asked, how many candidates there are, and the machine."""
    work = f"{space.preset}, {space.batch_size} x {space.config.sequence} tokens, {space.dtype}"
    room = f"{usable_bytes(machine) / GIB:.1f} of {machine.chip.memory_bytes / GIB:.1f} GiB"
    margin = f"a candidate fits if it needs {room} by formulas, which may be off by {1 - MEMORY_FRACTION:.0%}"
    texts = (
        f"{work}, on {device_count(space.topology)} devices of {space.topology}",
        f"{len(choices.best)} candidates fit, {choices.too_large} are too large, {choices.infeasible} infeasible",
        margin,
        f"machine {machine.name}: {machine.source}",
    )
    return [*(line for text in texts for line in wrapped(text)), ""]


def table(shown: Sequence[Choice], waits: Mapping[int, Limits], choices: Choices, machine: Machine) -> list[str]:
    """The lines of the table of choices, of which `waits` has the limits by id."""
    ranks = {id(each): rank for rank, each in enumerate(choices.best, start=1)}
    tied = choices.tied(machine.error)
    rows: list[tuple[str, ...]] = [
        ("rank", "strategy", "mesh", "options", "GiB", "ms", "least ms", "tokens/s", "MFU", "waits for")
    ]
    for each in shown:
        resource, share = next(iter(waits[id(each)].items()))
        rank = ranks[id(each)]
        rows.append(
            (
                f"{rank}{'=' if rank <= tied > 1 else ''}",
                *each.cells,
                f"{each.needed_bytes / GIB:.1f}",
                f"{1e3 * each.step_seconds:,.0f}",
                f"{1e3 * each.bound_seconds:,.0f}",
                f"{each.tokens_per_second:,.0f}",
                f"{each.utilization(machine):.0%}",
                f"{resource} {share:.0%}",
            )
        )
    return aligned(rows, [*"<<<<", *">" * 5, "<"])


def best_lines(best: Choice, waits: Limits, machine: Machine) -> list[str]:
    """How fast the best choice is, what limits it, and where its time goes."""
    low, high = (1e3 * best.step_seconds * factor for factor in plausible(machine.error))
    rate = best.tokens_per_second / best.case.mesh.size
    assumed = "assumed" if machine.assumed else "measured"
    lines = [f"the best takes {low:,.0f} to {high:,.0f} ms, by the {assumed} error; {rate:,.0f} tokens/s a device"]
    saved = [(name, share) for name, share in waits.items() if share > LEAST_SHARE]
    lines += [f"without waiting for {name} the best would save {share:.0%}" for name, share in saved[:SHOWN_LIMITS]]
    spent = sorted(best.timeline.parts.items(), key=lambda each: -each[1])
    parts = ", ".join(f"{name} {seconds / best.step_seconds:.0%}" for name, seconds in spent)
    return [line for text in [*lines, f"of its step: {parts}"] for line in wrapped(text)]


def cost_lines(
    tokens_per_second: float, devices: int, tokens: float, price: float | None, machine: Machine
) -> list[str]:
    """Days, device-hours and money to train on so many tokens, each as a range by the error of predictions."""
    seconds = tokens / tokens_per_second
    days, hours = seconds / DAY_SECONDS, seconds * devices / 3600
    amounts = [(days, ",.1f", " days"), (hours, ",.0f", " device-hours")]
    amounts += [] if price is None else [(hours * price, ",.0f", f" at {price:g} an hour")]
    low, high = plausible(machine.error)
    ranges = [f"{amount * low:{spec}} to {amount * high:{spec}}{unit}" for amount, spec, unit in amounts]
    exact = [f"{amount:{spec}}{unit}" for amount, spec, unit in amounts]
    lines = f"{tokens:.3g} tokens take {', '.join(ranges)}", f"as predicted: {', '.join(exact)}; {machine.error_text}"
    return [part for line in lines for part in wrapped(line)]


def document(
    space: SearchSpace, choices: Choices, advice: Sequence[Advice], machine: Machine, compiled: Sequence[AsCompiled]
) -> dict[str, Any]:
    """All choices as JSON values, with what limits the best of each layout and what lifts that."""
    of_layouts = {id(each.choice): each.as_row() for each in advice}
    return {
        "kind": "advice",
        "schema_version": 1,
        "topology": str(space.topology),
        "preset": space.preset,
        "batch_size": space.batch_size,
        "dtype": space.dtype,
        "machine": machine.name,
        "error": machine.error,
        "error_assumed": machine.assumed,
        "usable_bytes": int(usable_bytes(machine)),
        "tied": choices.tied(machine.error),
        "too_large": choices.too_large,
        "infeasible": choices.infeasible,
        "compiled": [each.as_row() for each in compiled],
        "choices": [
            {**row(rank, each, machine), **of_layouts.get(id(each), {})}
            for rank, each in enumerate(choices.best, start=1)
        ],
    }


def row(rank: int, choice: Choice, machine: Machine) -> Mapping[str, Any]:
    """One choice as JSON values."""
    return {
        "rank": rank,
        **choice.as_row(machine),
        "needed_bytes": choice.needed_bytes,
        "bound_seconds": choice.bound_seconds,
        "parts": dict(choice.timeline.parts),
    }
