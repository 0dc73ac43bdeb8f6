"""Advises how to spread a model: the search space ranked by predicted seconds, with what limits the best.

meshmark advise --preset gpt2-xl --topology h100:1x8 --batch-size 64
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.cases.case import Case
from benchmarks.cli import parsers
from benchmarks.cli.refusing import refusing
from benchmarks.commandline.ending import run as run_command
from benchmarks.commandline.outputs import require_apart, require_file, require_folder, save_text, short
from benchmarks.devices.placement import device_count
from benchmarks.devices.topology import CPU, Topology
from benchmarks.explain.memory import processes_that_fit
from benchmarks.explain.trace import trace
from benchmarks.explain.trials import Trial, trial_lines, trials
from benchmarks.feasibility import WORKER_BYTES, with_progress
from benchmarks.feasibility import compiled as compile_cases
from benchmarks.search import as_compiled, measured, scaled
from benchmarks.search.advice_report import cost_lines, document, report
from benchmarks.search.advised import Choice, Choices, advised, predicted_case
from benchmarks.search.as_compiled import AsCompiled
from benchmarks.search.cache import Cache
from benchmarks.search.candidates import Doublings, SearchSpace
from benchmarks.search.levers import advice_on
from benchmarks.search.request import chosen_machine, search_space, topology_here
from benchmarks.search.scaled import powers_of_two, sized
from benchmarks.seconds.drawn import drawn
from benchmarks.seconds.machine import Machine

OF_ONE = "trace", "compile", "measure", "tokens", "all"
"""Options about the candidates of one topology."""
BELONGING = {"tokens": ("price",), "scaling": ("sequences_per_device",), "compile": ("workers", "again")}
"""Options -> those that do something with them alone."""


def write_trace(path: Path, best: Choice, its: Machine) -> None:
    """Write when each stage does what in the predicted step of the best choice."""
    topology = best.case.topology
    assert topology
    save_text(path, json.dumps(trace("prediction", str(best.case), str(topology), drawn(best.cost, its, topology))))
    print(f"{short(path)}: open it at ui.perfetto.dev, or draw it: meshmark lanes {short(path)}", file=sys.stderr)


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


def option_trials(
    compiled: Sequence[AsCompiled], its: Machine, asked: argparse.Namespace, budget: float
) -> list[Trial]:
    """Trials of other options of the fastest candidate as compiled; none if its time is not known."""
    begin, stored = time.monotonic(), Cache(asked.cache / as_compiled.key(its), asked.again)
    work = partial(as_compiled.compile_and_replay, machine=its)

    def compile_all(cases: Sequence[Case]) -> Iterator[tuple[Case, float | None, int | None, str]]:
        at_once, left = asked.workers or processes_that_fit(WORKER_BYTES), budget - (time.monotonic() - begin)
        others = [predicted_case(case, its, asked.topology) for case in cases]
        outcomes = compile_cases(cases, stored, at_once, max(0.0, left), work).values()
        for each in as_compiled.found(Choices(tuple(others), (), ()), outcomes):
            yield each.choice.case, each.step_seconds, each.needed_bytes, each.reason

    if not compiled or (seconds := compiled[0].step_seconds) is None:
        return []
    return trials(compiled[0].choice.case, seconds, compile_all, dict(asked.option))


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
    """Check that every option has an effect.

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
    choices = advised(with_progress(space.cases()), its, space.topology, Doublings(every=bool(asked.microbatches)))
    candidates = len(choices.best) + choices.too_large + choices.infeasible
    print(f"{candidates} candidates in {time.monotonic() - begin:.1f} s", file=sys.stderr)
    if space.topology.is_virtual:
        timed = measured.measured(choices, asked.measure)
        print("\n".join(measured.report_unpredicted(timed, candidates, space.topology)))
        if asked.json:
            with refusing(command):
                save_text(asked.json, json.dumps(measured.document_unpredicted(timed, space), indent=1))
        return 0 if any(each.seconds for each in timed) else 1
    compiled = compile_best(choices, its, asked) if asked.compile else []
    tried = option_trials(compiled, its, asked, asked.time_budget - (time.monotonic() - begin))
    timed = measured.measured(choices, asked.measure) if asked.measure else []
    advice = advice_on(choices, its, space.topology)
    if asked.json:
        told = {**document(space, choices, advice, its, compiled), "measured": [each.as_row() for each in timed]}
        told["trials"] = [each.as_row(compiled[0].step_seconds or 0.0) for each in tried]
        with refusing(command):
            save_text(asked.json, json.dumps(told, indent=1))
    print("\n".join(report(space, choices, advice, its, compiled, asked.all)))
    if tried:
        best = compiled[0]
        print("\n".join(["", *trial_lines(best.choice.case, best.step_seconds or 0.0, tried)]))
    if asked.tokens and choices.best:
        fastest = compiled[0].step_seconds if compiled else None
        rate = space.batch_size * space.config.sequence / (fastest or choices.best[0].step_seconds)
        print("\n".join(["", *cost_lines(rate, device_count(space.topology), asked.tokens, asked.price, its)]))
    if timed:
        print("\n".join(["", *measured.report(timed)]))
    if asked.trace and choices.best:
        with refusing(command):
            write_trace(asked.trace, choices.best[0], its)
    elif asked.trace:
        print(f"{short(asked.trace)} is not written: no candidate fits", file=sys.stderr)
    return 0 if choices.best else 1


if __name__ == "__main__":
    run_command(main)
