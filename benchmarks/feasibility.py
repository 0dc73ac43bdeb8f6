"""What could train a model on devices that are not there: every mesh and strategy by formulas, and the best compiled.

python -m benchmarks.feasibility --topology v5p:4x4x4 --preset gpt3-6.7b --batch-size 512 --compile 8
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from benchmarks.cases import Case
from benchmarks.commandline.ending import BROKEN_INPUT
from benchmarks.commandline.ending import run as run_command
from benchmarks.commandline.outputs import Unwritable, require_file, require_folder, save_text
from benchmarks.compile import compile_case
from benchmarks.devices.chips import CHIPS, GIB, Chip
from benchmarks.devices.placement import device_count
from benchmarks.explain.memory import processes_that_fit
from benchmarks.harness.pool import Outcome, work_off
from benchmarks.options import (
    model,
    require_options,
    require_whole,
    unique,
    values_of,
)
from benchmarks.parsers import COMPILED, search
from benchmarks.reporting.terminal import progress
from benchmarks.search import cache
from benchmarks.search.bounds import foremost, ranked
from benchmarks.search.candidates import Space
from benchmarks.search.findings import Finding, compiled_table, left_out, shown, table
from strategies.config import Remat

PROGRESS_SECONDS = 5.0
ROOM = 0.85
"""Of a chip's memory: the most that formulas may say a step takes, for it to be among the first to be compiled.

They are those of XLA's CPU backend. Of what was compiled with gpt3-6.7b, H100's took up to 19% less and 2%
more, and v5p's 3 to 13% more, but zero2 44%.
"""
WORKER_BYTES = 4 * GIB
"""Of the host's memory, for one that compiles: with a GPT of 6.7 billion parameters it took up to 2 GiB."""
THEIR_OWN = ("JaxRuntimeError", "XlaRuntimeError")
"""How compilers fail; with anything else that is raised meanwhile they have nothing to do."""

Outcomes = dict[Case, Outcome[Case]]


def compile_one(case: Case) -> dict[str, Any]:
    """The columns of a case's row, in a process of its own."""
    assert case.topology
    case.topology.prepare()
    return compile_case(case).extra_info


def compiled(
    cases: Sequence[Case], kept: cache.Cache, at_once: int, budget_seconds: float
) -> dict[Case, Outcome[Case]]:
    """What a compiler says of each, read again where it was asked before; each that ends is said on stderr."""
    found = {case: Outcome(case, columns, "", 0.0) for case in cases if (columns := kept.get(case))}
    missing = [case for case in cases if case not in found]
    if found:
        say(f"{len(found)} of {len(cases)} were compiled before")
    if missing:
        say(f"compiling {len(missing)}, {min(at_once, len(missing))} at a time, within {budget_seconds:g} s")
    for outcome in work_off(missing, compile_one, at_once, budget_seconds):
        case, columns = outcome.piece, outcome.result
        found[case] = outcome
        if columns and would_be_said_again(columns):
            keep(kept, case, columns)
        ended = outcome.reason or columns["reason"] or columns["status"]
        say(progress(len(found), len(cases), f"{case} remat={case.remat}: {ended}, {outcome.seconds:.0f} s", None))
    return found


def keep(kept: cache.Cache, case: Case, columns: Mapping[str, Any]) -> None:
    """Keep what a compiler says; where it cannot be written, say so and go on."""
    try:
        kept.put(case, columns)
    except OSError as error:
        say(f"what its compiler says of {case} is not kept, for {kept.folder} cannot be written: {error.strerror}")


def told(cases: Iterable[Case]) -> Iterator[Case]:
    """The same cases; every few seconds how many there have been is said on stderr."""
    said = time.monotonic()
    for number, case in enumerate(cases, start=1):
        yield case
        if time.monotonic() > said + PROGRESS_SECONDS:
            said = time.monotonic()
            say(f"{number} candidates by formulas so far, now {case.strategy} {case.mesh}")


def would_be_said_again(columns: Mapping[str, Any]) -> bool:
    """Whether a compiler has answered: also that it fails, or that a step does not fit, if it says by how much."""
    if columns["status"] == "compile_error":
        return columns["reason"].startswith(THEIR_OWN)
    return columns["status"] in ("ok", "infeasible") or columns["chip.needed_bytes"] is not None


def find(space: Space, chip: Chip, compile_best: int, kept: cache.Cache, at_once: int, budget: float) -> list[Finding]:
    """All candidates, best first; of the best what their compiler says.

    These are the first of each strategy and set of mesh axes, and then what is left: candidates that differ in little
    else tell little else. Those that by formula leave no more than a little room come last.
    """
    begin = time.monotonic()
    candidates = ranked(told(space.cases()), chip)
    findings = [Finding(rank, each, chip) for rank, each in enumerate(candidates, start=1)]
    say(f"{len(findings)} candidates by formulas in {time.monotonic() - begin:.1f} s")
    fitting = [each for each in candidates if each.fits]
    roomy = [each for each in fitting if each.bound and each.bound.needed_bytes <= ROOM * chip.memory_bytes]
    chosen = dict.fromkeys(each.case for each in (*foremost(roomy), *roomy, *fitting))
    outcomes = compiled(list(chosen)[:compile_best], kept, at_once, budget)
    return [
        replace(each, compiled=outcomes[case].result, reason=outcomes[case].reason) if case in outcomes else each
        for each in findings
        for case in [each.candidate.case]
    ]


def report(space: Space, findings: Sequence[Finding], everything: bool) -> str:
    """What a person reads."""
    chip, by_status = findings[0].chip, [each.status for each in findings]
    counts = ", ".join(f"{by_status.count(status)} {text}" for status, text in STATUSES.items())
    what = "by formulas" if everything else "by formulas, the best of each strategy and set of mesh axes"
    parts = [
        [f"{_what(space)}, {chip.memory_bytes / GIB:.1f} GiB each", f"{len(findings)} candidates: {counts}"],
        [what, *table(shown(findings, everything))],
    ]
    if lines := compiled_table(findings):
        parts.append(["as compiled, and how far the formulas are off", *lines])
    if lines := [*left_out(findings), *_without_formulas(space)]:
        parts.append(["left out", *lines])
    return "\n\n".join("\n".join(part) for part in parts)


def _without_formulas(space: Space) -> Iterator[str]:
    for name in space.without_formulas:
        ask = f"python -m benchmarks.compile --topology {space.topology} --strategy {name} asks its compiler"
        yield f"       {name}: there are no formulas of it; {ask}"


STATUSES = {"fits": "fit", "too_large": "are too large", "infeasible": "are infeasible"}


def document(space: Space, findings: Sequence[Finding], chip_name: str) -> dict[str, Any]:
    """What a program reads."""
    return {
        "kind": "feasibility",
        "schema_version": 1,
        "topology": str(space.topology),
        "chip": chip_name,
        "devices": device_count(space.topology),
        "capacity_bytes": findings[0].chip.memory_bytes,
        "preset": space.preset,
        "param_count": space.config.param_count,
        "global_batch_sequences": space.batch_size,
        "sequence_tokens": space.config.sequence,
        "dtype": space.dtype,
        "versions": cache.versions(space.topology),
        "candidates": [each.as_row() for each in findings],
    }


def _what(space: Space) -> str:
    devices = f"{device_count(space.topology)} devices of {space.topology}"
    return f"{space.preset}, {space.batch_size} x {space.config.sequence} tokens, {space.dtype}, on {devices}"


def say(text: str) -> None:
    """Tell what is going on, apart from what is found."""
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was found; 1 if nothing fits, 2 for options that mean nothing, 5 for files that cannot be written."""
    command = search()
    asked = command.parse_args(arguments)
    try:
        chip, compile_best = _chip(asked), _to_compile(asked)
        name, config = model(asked)
        require_whole(asked.topology, asked.mesh)
        space = Space(
            asked.topology,
            name,
            config,
            asked.batch_size,
            asked.dtype,
            unique(asked.strategy),
            unique(asked.mesh),
            unique(asked.microbatches),
            unique(asked.remat) or get_args(Remat),
            values_of(asked.option),
            tuple(dict(asked.compiler_option).items()),
        )
        if not any(True for _ in space.spreads()):
            raise ValueError(f"no candidate: no strategy asked for has such a mesh of {device_count(asked.topology)}")
        require_options(space.options, space.cases())
        if asked.topology.chip and asked.topology.compiler_version:
            asked.topology.prepare()
            asked.topology.devices()
        if compile_best:
            require_folder(asked.cache)
        if asked.json:
            require_file(asked.json)
    except Unwritable as error:
        command.exit(BROKEN_INPUT, f"{error}\n")
    except ValueError as error:
        command.error(str(error))
    at_once = asked.workers or processes_that_fit(WORKER_BYTES)
    findings = find(space, chip, compile_best, cache.Cache(asked.cache, asked.again), at_once, asked.time_budget)
    print(report(space, findings, asked.all), flush=True)
    if asked.json:
        try:
            save_text(asked.json, json.dumps(document(space, findings, asked.chip or asked.topology.kind)))
        except Unwritable as error:
            command.exit(BROKEN_INPUT, f"{error}\n")
    return int(not any(each.status == "fits" for each in findings))


def _chip(asked: argparse.Namespace) -> Chip:
    """Whose figures count.

    Raises:
        ValueError: virtual devices, and no chip that they stand for; or a chip that others were to stand for.
    """
    own = asked.topology.chip
    if own and asked.chip:
        virtual = f"cpu:{device_count(asked.topology)} as {asked.chip}"
        raise ValueError(f"{asked.topology} has figures of its own; leave --chip out, or take {virtual}")
    if own is None and asked.chip is None:
        raise ValueError(f"{asked.topology} has no figures to rank by; say whose, as --chip v5e")
    return own or CHIPS[asked.chip]


def _to_compile(asked: argparse.Namespace) -> int:
    """How many.

    Raises:
        ValueError: some, and their compiler is not installed.
    """
    try:
        asked.topology.require_compiler()
    except ValueError as error:
        if asked.compile:
            raise
        say(f"nothing is compiled: {error}")
        return 0
    return COMPILED if asked.compile is None else asked.compile


if __name__ == "__main__":
    run_command(main)
