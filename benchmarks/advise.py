"""Advises how to spread a model: the search space ranked by predicted seconds, with what limits the best.

python -m benchmarks.advise --preset gpt2-xl --topology h100:1x8 --batch-size 64
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import parsers
from benchmarks.commandline.ending import run as run_command
from benchmarks.commandline.outputs import require_apart, require_file, require_folder, save_text
from benchmarks.commandline.tables import aligned
from benchmarks.devices.chips import GIB
from benchmarks.devices.placement import device_count
from benchmarks.devices.topology import CPU, Topology
from benchmarks.explain.memory import processes_that_fit
from benchmarks.feasibility import WORKER_BYTES, with_progress
from benchmarks.feasibility import compiled as compile_cases
from benchmarks.refusing import refusing
from benchmarks.reporting.trace import trace
from benchmarks.search import as_compiled, measured, scaled
from benchmarks.search.advised import Choice, Choices, advised, limits
from benchmarks.search.as_compiled import AsCompiled
from benchmarks.search.cache import Cache
from benchmarks.search.candidates import SearchSpace
from benchmarks.search.levers import LEAST_SHARE, Advice, Limits, advice_on, lever_lines
from benchmarks.search.request import chosen_machine, search_space, topology_here
from benchmarks.search.scaled import powers_of_two, sized
from benchmarks.seconds.drawn import drawn
from benchmarks.seconds.machine import Machine

DAY_SECONDS = 86_400
SHOWN_LIMITS = 3
OF_ONE = "trace", "compile", "measure", "tokens", "all"
"""Options about the candidates of one topology."""
BELONGING = {"tokens": ("price",), "scaling": ("sequences_per_device",), "compile": ("workers", "again")}
"""Options -> those that do something with them alone."""


def report(
    space: SearchSpace,
    choices: Choices,
    advice: Sequence[Advice],
    its: Machine,
    compiled: Sequence[AsCompiled],
    asked: argparse.Namespace,
) -> list[str]:
    """The lines of the report."""
    devices = device_count(space.topology)
    work = f"{space.preset}, {space.batch_size} x {space.config.sequence} tokens, {space.dtype}"
    counts = f"{len(choices.best)} candidates fit, {choices.too_large} are too large, {choices.infeasible} infeasible"
    lines = [f"{work}, on {devices} devices of {space.topology}", counts, f"machine {its.name}: {its.source}", ""]
    if not choices.best and choices.larger:
        return [*lines, "no candidate fits; take more devices, a smaller batch, or --remat full"]
    if not choices.best:
        return [*lines, *(f"infeasible: {problem}" for problem in dict.fromkeys(choices.problems))]
    shown = list(choices.best) if asked.all else choices.of_each_layout()
    waits = {id(each.choice): each.limits for each in advice}
    waits |= {id(each): limits(each, its, space.topology) for each in shown if id(each) not in waits}
    lines += table(shown, waits, choices, its)
    tied = choices.tied(its.error)
    best = choices.best[0]
    lines += ["", f"predictions are off by {its.error:.0%} on average: the first {tied} of all candidates are tied"]
    lines += ["", *limit_lines(best, waits[id(best)])]
    lines += ["", *lever_lines(advice)]
    if compiled:
        lines += ["", *as_compiled.table(compiled)]
    if asked.tokens:
        fastest = compiled[0].step_seconds if compiled else None
        rate = space.batch_size * space.config.sequence / (fastest or best.step_seconds)
        lines += ["", *cost_lines(rate, devices, asked.tokens, asked.price)]
    return lines


def table(shown: Sequence[Choice], waits: Mapping[int, Limits], choices: Choices, its: Machine) -> list[str]:
    """The lines of the table of choices, of which `waits` has the limits by id."""
    ranks = {id(each): rank for rank, each in enumerate(choices.best, start=1)}
    tied = choices.tied(its.error)
    rows: list[tuple[str, ...]] = [
        (
            *("rank", "strategy", "mesh", "microbatches", "remat", "options"),
            *("GiB", "ms", "least ms", "tokens/s", "MFU", "waits for"),
        )
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
                f"{each.utilization(its):.0%}",
                f"{resource} {share:.0%}",
            )
        )
    return aligned(rows, [*"<<<><<", *">" * 5, "<"])


def limit_lines(best: Choice, waits: Limits) -> list[str]:
    """What limits the best choice, and where its time goes."""
    saved = [(name, share) for name, share in waits.items() if share > LEAST_SHARE]
    lines = [f"without waiting for {name} the best would save {share:.0%}" for name, share in saved[:SHOWN_LIMITS]]
    spent = sorted(best.timeline.parts.items(), key=lambda each: -each[1])
    return [*lines, "of its step: " + ", ".join(f"{name} {seconds / best.step_seconds:.0%}" for name, seconds in spent)]


def cost_lines(tokens_per_second: float, devices: int, tokens: float, price: float | None) -> list[str]:
    """Days, device-hours and money to train on so many tokens."""
    seconds = tokens / tokens_per_second
    hours = seconds * devices / 3600
    money = "" if price is None else f", {hours * price:,.0f} at {price:g} an hour"
    return [f"{tokens:.3g} tokens take {seconds / DAY_SECONDS:,.1f} days and {hours:,.0f} device-hours{money}"]


def document(
    space: SearchSpace, choices: Choices, advice: Sequence[Advice], its: Machine, compiled: Sequence[AsCompiled]
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
        "machine": its.name,
        "error": its.error,
        "tied": choices.tied(its.error),
        "too_large": choices.too_large,
        "infeasible": choices.infeasible,
        "compiled": [each.as_row() for each in compiled],
        "choices": [
            {**row(rank, each, its), **of_layouts.get(id(each), {})} for rank, each in enumerate(choices.best, start=1)
        ],
    }


def row(rank: int, choice: Choice, its: Machine) -> Mapping[str, Any]:
    """One choice as JSON values."""
    return {
        "rank": rank,
        **choice.as_row(its),
        "needed_bytes": choice.needed_bytes,
        "bound_seconds": choice.bound_seconds,
        "parts": dict(choice.timeline.parts),
    }


def write_trace(path: Path, best: Choice, its: Machine) -> None:
    """Write when each stage does what in the predicted step of the best choice."""
    topology = best.case.topology
    assert topology
    save_text(path, json.dumps(trace("prediction", str(best.case), str(topology), drawn(best.cost, its, topology))))
    print(f"{path}: open it at ui.perfetto.dev, or draw it: python -m results.lanes {path}", file=sys.stderr)


def require_schedules(topology: Topology) -> None:
    """Check that a compiler for a topology is installed, and overlaps communication.

    Raises:
        ValueError: it is not, or it does not.
    """
    if topology.kind == CPU:
        raise ValueError(
            f"--compile: on {topology} no communication overlaps, as predictions assume; leave --compile out"
        )
    topology.require_compiler()


def compile_best(choices: Choices, its: Machine, asked: argparse.Namespace) -> list[AsCompiled]:
    """Compile the best choices, for the communication that their schedules leave exposed."""
    cases = [each.case for each in as_compiled.to_compile(choices, asked.compile)]
    stored = Cache(asked.cache / as_compiled.key(its), asked.again)
    at_once = asked.workers or processes_that_fit(WORKER_BYTES)
    work = partial(as_compiled.compile_and_replay, machine=its)
    return as_compiled.found(choices, compile_cases(cases, stored, at_once, asked.time_budget, work).values())


def of_smallest(asked: argparse.Namespace) -> argparse.Namespace:
    """The options with the topology of the smallest size of --scaling, and of remat those that save memory.

    Raises:
        ValueError: a mesh is named, or a size is not possible.
    """
    if asked.mesh:
        raise ValueError("--scaling chooses a mesh for each number of devices; leave --mesh out")
    for devices in powers_of_two(*asked.scaling):
        sized(asked.topology, devices)
    others = {"topology": sized(asked.topology, asked.scaling[0]), "remat": asked.remat or ["dots", "full"]}
    return argparse.Namespace(**{**vars(asked), **others})


def scaling(space: SearchSpace, asked: argparse.Namespace, its: Machine) -> int:
    """Print and write the best on each number of devices; the exit status is that of `main`."""
    begin = time.monotonic()
    sizes = powers_of_two(*asked.scaling)
    each = asked.sequences_per_device or max(1, space.batch_size // sizes[0])
    found = list(scaled.points(space, asked.topology, sizes, each, its))
    print(f"{len(found)} searches in {time.monotonic() - begin:.1f} s", file=sys.stderr)
    if asked.json:
        save_text(asked.json, json.dumps(scaled.document(space, found, its), indent=1))
    print("\n".join(scaled.report(space, found, its)))
    return 0 if any(point.choice for point in found) else 1


def require_together(asked: argparse.Namespace) -> None:
    """Check that no option is without effect.

    Raises:
        ValueError: an option is given without the one that it belongs to, or one of a single topology with --scaling.
    """
    if asked.measure and not asked.devices:
        raise ValueError("--measure times steps on the devices of this machine; give --devices here")
    if asked.scaling and (given := [name for name in OF_ONE if getattr(asked, name)]):
        raise ValueError(f"--{given[0]} is of one topology; leave --scaling out")
    for name, others in BELONGING.items():
        if not getattr(asked, name) and (given := [other for other in others if getattr(asked, other)]):
            raise ValueError(f"--{given[0].replace('_', '-')} is of --{name}; give --{name}, too")


def prepared(asked: argparse.Namespace) -> tuple[SearchSpace, Machine]:
    """The search space and the machine that the options ask for.

    Raises:
        ValueError: what is asked for is not possible.
        Unwritable: a file cannot be written.
    """
    require_together(asked)
    if asked.devices:
        asked.topology = topology_here()
    largest = sized(asked.topology, powers_of_two(*asked.scaling)[-1]) if asked.scaling else asked.topology
    its = chosen_machine(asked, largest)
    space = search_space(of_smallest(asked) if asked.scaling else asked)
    outputs = {f"--{name}": path for name in ("json", "trace") if (path := getattr(asked, name))}
    require_apart(outputs, [Path(asked.machine)] if asked.machine else [])
    for path in outputs.values():
        require_file(path)
    if asked.compile:
        require_schedules(asked.topology)
        require_folder(asked.cache)
    return space, its


def main(arguments: Sequence[str] | None = None) -> int:
    """Rank the search space by predicted seconds and print the advice.

    Returns:
        The exit status: 1 if nothing fits. It is 2 for invalid options, and 5 for files that cannot be written.
    """
    command = parsers.advise()
    asked = command.parse_args(arguments)
    with refusing(command):
        space, its = prepared(asked)
    if asked.scaling:
        return scaling(space, asked, its)
    begin = time.monotonic()
    choices = advised(with_progress(space.cases()), its, space.topology)
    candidates = len(choices.best) + choices.too_large + choices.infeasible
    print(f"{candidates} candidates in {time.monotonic() - begin:.1f} s", file=sys.stderr)
    compiled = compile_best(choices, its, asked) if asked.compile else []
    timed = measured.measured(choices, asked.measure) if asked.measure else []
    advice = advice_on(choices, its, space.topology)
    if asked.json:
        told = {**document(space, choices, advice, its, compiled), "measured": [each.as_row() for each in timed]}
        save_text(asked.json, json.dumps(told, indent=1))
    print("\n".join(report(space, choices, advice, its, compiled, asked)))
    if timed:
        print("\n".join(["", *measured.report(timed)]))
    if asked.trace and choices.best:
        write_trace(asked.trace, choices.best[0], its)
    elif asked.trace:
        print(f"{asked.trace} is not written: no candidate fits", file=sys.stderr)
    return 0 if choices.best else 1


if __name__ == "__main__":
    run_command(main)
