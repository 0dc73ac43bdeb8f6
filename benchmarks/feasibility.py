"""Search for the best mesh on devices that need not be present: all candidates by formulas, the best compiled.

meshmark search --topology v5p:4x4x4 --preset gpt3-6.7b --batch-size 512 --compile 8
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.cases.case import Case
from benchmarks.cli import parsers
from benchmarks.cli.refusing import refusing
from benchmarks.commandline.ending import run as run_command
from benchmarks.commandline.outputs import require_file, require_folder, save_text
from benchmarks.commandline.tables import wrapped
from benchmarks.compile import compile_case
from benchmarks.devices.chips import GIB
from benchmarks.devices.placement import device_count
from benchmarks.explain.memory import processes_that_fit
from benchmarks.explain.trials import Trial, trial_lines, trials
from benchmarks.run.alive import Alive
from benchmarks.run.pool import Outcome, run_in_processes
from benchmarks.run.terminal import progress
from benchmarks.search import cache
from benchmarks.search.candidates import MEMORY_FRACTION, Doublings, SearchSpace
from benchmarks.search.findings import Finding, compiled_table, displayed, rejections, table
from benchmarks.search.ranking import best_per_layout, ranked
from benchmarks.search.request import chosen_chip, search_space
from benchmarks.seconds.machine import Machine
from benchmarks.seconds.machines import machine_for
from benchmarks.seconds.stack import MESHMARK
from strategies.model.gpt import param_count

PROGRESS_SECONDS = 5.0
WORKER_BYTES = 4 * GIB
"""Host memory per compiling process. A GPT with 6.7 billion parameters took up to 2 GiB."""
COMPILER_ERRORS = ("JaxRuntimeError", "XlaRuntimeError")
"""Names of exceptions that compilers raise. Other exceptions are unrelated to the compiled step."""

Outcomes = dict[Case, Outcome[Case]]


def compile_one(case: Case) -> dict[str, Any]:
    """Compile a case and return the columns of its row. Called in a process of its own."""
    assert case.topology
    case.topology.prepare()
    return compile_case(case).extra_info


def compiled(
    cases: Sequence[Case],
    stored: cache.Cache,
    at_once: int,
    budget_seconds: float,
    work: Callable[[Case], dict[str, Any]] | None = None,
) -> Outcomes:
    """Compilation results, from the cache or computed now. Each one that completes is logged on stderr.

    Args:
        cases: what to compile.
        stored: the cache.
        at_once: number of compiling processes at a time.
        budget_seconds: time for all compilations.
        work: compiles a case; by default `compile_one`.
    """
    found = {case: Outcome(case, columns, "", 0.0) for case in cases if (columns := stored.get(case))}
    missing = [case for case in cases if case not in found]
    if found:
        log(f"{len(found)} of {len(cases)} were compiled before")
    if missing:
        log(f"compiling {len(missing)}, {min(at_once, len(missing))} at a time, within {budget_seconds:g} s")

    def doing() -> str:
        left = [case for case in missing if case not in found]
        names = ", ".join(f"{case} remat={case.remat}" for case in left[:at_once])
        return f"compiling {names}; {len(left)} of {len(cases)} left" if left else ""

    with Alive(doing):
        for outcome in run_in_processes(missing, work or compile_one, at_once, budget_seconds):
            case, columns = outcome.task, outcome.result
            found[case] = outcome
            if columns and is_repeatable(columns):
                store(stored, case, columns)
            ended = outcome.reason or columns["reason"] or columns["status"]
            log(progress(len(found), len(cases), f"{case} remat={case.remat}: {ended}, {outcome.seconds:.0f} s", None))
    return found


def store(stored: cache.Cache, case: Case, columns: Mapping[str, Any]) -> None:
    """Store a compilation result in the cache; log a failure and continue."""
    try:
        stored.put(case, columns)
    except OSError as error:
        log(f"the result of {case} is not cached, because {stored.folder} cannot be written: {error.strerror}")


def with_progress(cases: Iterable[Case]) -> Iterator[Case]:
    """Yield the same cases, and log every few seconds how many were tried; some of them are dropped later."""
    last_log = time.monotonic()
    for count_so_far, case in enumerate(cases, start=1):
        yield case
        if time.monotonic() > last_log + PROGRESS_SECONDS:
            last_log = time.monotonic()
            log(f"{count_so_far} tried so far, now {case.strategy} {case.mesh}")


def is_repeatable(columns: Mapping[str, Any]) -> bool:
    """Whether the result would be the same again: success, the compiler's own failure, or a known lack of memory."""
    if columns["status"] == "compile_error":
        return columns["reason"].startswith(COMPILER_ERRORS)
    return columns["status"] in ("ok", "infeasible") or columns["chip.needed_bytes"] is not None


def search(
    space: SearchSpace, machine: Machine, compile_best: int, stored: cache.Cache, at_once: int, budget: float
) -> list[Finding]:
    """All candidates, best first, with compilation results for the best of them.

    The best candidate of each strategy and set of mesh axes is compiled first, because candidates that differ in little
    else tell little more. Those close to the memory limit by formula come last.

    Args:
        space: the search space.
        machine: the devices, with what meshmark's steps reach of them.
        compile_best: number of candidates to compile.
        stored: the cache of compilation results.
        at_once: number of compiling processes at a time.
        budget: seconds for all compilations.
    """
    begin, chip = time.monotonic(), machine.chip
    doublings = Doublings(every=bool(space.microbatches))
    candidates = ranked(with_progress(space.cases()), chip, machine, doublings)
    findings = [Finding(rank, each, chip) for rank, each in enumerate(candidates, start=1)]
    log(f"{len(findings)} candidates by formulas in {time.monotonic() - begin:.1f} s")
    fitting = [each for each in candidates if each.fits]
    with_headroom = [each for each in fitting if each.has_room]
    to_compile = dict.fromkeys(each.case for each in (*best_per_layout(with_headroom), *with_headroom, *fitting))
    outcomes = compiled(list(to_compile)[:compile_best], stored, at_once, budget)
    return [
        replace(each, compiled=outcomes[case].result, reason=outcomes[case].reason) if case in outcomes else each
        for each in findings
        for case in [each.candidate.case]
    ]


def fastest_compiled(findings: Sequence[Finding]) -> tuple[Case, float] | None:
    """The fastest step that fits as compiled, with its replayed time; None if none was replayed."""
    replayed = [
        (finding.as_row()["compiled.step_seconds"], finding.candidate.case)
        for finding in findings
        if finding.compiled_estimate and finding.compiled_estimate.fits and finding.compiled_estimate.replay
    ]
    seconds, case = min(replayed, key=lambda each: each[0], default=(0.0, None))
    return (case, seconds) if case else None


def option_trials(
    space: SearchSpace, findings: Sequence[Finding], stored: cache.Cache, at_once: int, budget: float
) -> tuple[Case, float, list[Trial]] | None:
    """Trials of other options of the fastest step, with that step and its time; None if none was replayed."""

    def compile_all(cases: Sequence[Case]) -> Iterator[tuple[Case, float | None, int | None, str]]:
        for case, outcome in compiled(cases, stored, at_once, max(0.0, budget - (time.monotonic() - begin))).items():
            columns = outcome.result or {}
            reason = outcome.reason or columns.get("reason") or ""
            fits = columns.get("chip.fits")
            yield case, columns.get("replay.step_seconds") if fits else None, columns.get("chip.needed_bytes"), reason

    begin = time.monotonic()
    if not (best := fastest_compiled(findings)):
        return None
    return *best, trials(*best, compile_all, dict(space.options))


def report(
    space: SearchSpace,
    findings: Sequence[Finding],
    everything: bool,
    tried: tuple[Case, float, list[Trial]] | None = None,
) -> str:
    """The report as text; `tried` are the best step as compiled, its time, and trials of other options."""
    chip, by_status = findings[0].chip, [each.status for each in findings]
    counts = ", ".join(f"{by_status.count(status)} {text}" for status, text in STATUSES.items())
    tight = sum(each.candidate.fits and not each.candidate.has_room for each in findings)
    margin = f"{tight} of those that fit have less room than the {1 - MEMORY_FRACTION:.0%} by which formulas may be off"
    what = "by formulas" if everything else "by formulas, the best of each strategy and set of mesh axes"
    parts = [
        wrapped(f"{_problem(space)}, {chip.memory_bytes / GIB:.1f} GiB each"),
        [*wrapped(f"{len(findings)} candidates: {counts}"), *wrapped(f"{margin}; they are compiled last")],
        [what, *table(displayed(findings, everything))],
    ]
    if lines := compiled_table(findings):
        parts.append(["as compiled, with the relative error of the formulas", *lines])
    if tried and (lines := trial_lines(*tried)):
        parts.append(lines)
    if lines := [*rejections(findings), *_without_formulas(space)]:
        parts.append(["rejected", *(part for line in lines for part in wrapped(line))])
    return "\n\n".join("\n".join(part) for part in [parts[0] + parts[1], *parts[2:]])


def _without_formulas(space: SearchSpace) -> Iterator[str]:
    for name in space.without_formulas:
        ask = f"meshmark compile --topology {space.topology} --strategy {name} compiles it"
        yield f"       {name}: it has no formulas; {ask}"


STATUSES = {"fits": "fit", "too_large": "are too large", "infeasible": "are infeasible"}


def document(space: SearchSpace, findings: Sequence[Finding], chip_name: str) -> dict[str, Any]:
    """The JSON document with all candidates."""
    return {
        "kind": "feasibility",
        "schema_version": 1,
        "topology": str(space.topology),
        "chip": chip_name,
        "devices": device_count(space.topology),
        "capacity_bytes": findings[0].chip.memory_bytes,
        "preset": space.preset,
        "param_count": param_count(space.config),
        "global_batch_sequences": space.batch_size,
        "sequence_tokens": space.config.sequence,
        "dtype": space.dtype,
        "versions": cache.versions(space.topology),
        "candidates": [each.as_row() for each in findings],
    }


def _problem(space: SearchSpace) -> str:
    devices = f"{device_count(space.topology)} devices of {space.topology}"
    return f"{space.preset}, {space.batch_size} x {space.config.sequence} tokens, {space.dtype}, on {devices}"


def log(text: str) -> None:
    """Print a line on stderr, separate from the report."""
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the search and print the report.

    Returns:
        The exit status: 1 if nothing fits. It is 2 for invalid options, and 5 for files that cannot be written.
    """
    command = parsers.search()
    asked = command.parse_args(arguments)
    with refusing(command):
        chip, compile_best, space = chosen_chip(asked), _to_compile(asked), search_space(asked)
        if asked.topology.chip and asked.topology.compiler_version:
            asked.topology.prepare()
            asked.topology.devices()
        if compile_best:
            require_folder(asked.cache)
        if asked.json:
            require_file(asked.json)
    at_once = asked.workers or processes_that_fit(WORKER_BYTES)
    its = replace(machine_for(asked.chip or asked.topology.kind, MESHMARK.name, 1), chip=chip)
    begin, stored = time.monotonic(), cache.Cache(asked.cache, asked.again)
    findings = search(space, its, compile_best, stored, at_once, asked.time_budget)
    left = asked.time_budget - (time.monotonic() - begin)
    tried = option_trials(space, findings, stored, at_once, left) if compile_best else None
    print(report(space, findings, asked.all, tried), flush=True)
    if asked.json:
        told = document(space, findings, asked.chip or asked.topology.kind)
        told["trials"] = [each.as_row(tried[1]) for each in tried[2]] if tried else []
        with refusing(command):
            save_text(asked.json, json.dumps(told))
    return int(not any(each.status == "fits" for each in findings))


def _to_compile(asked: argparse.Namespace) -> int:
    """Number of candidates to compile.

    Raises:
        ValueError: --compile was given and the compiler is not installed.
    """
    try:
        asked.topology.require_compiler()
    except ValueError as error:
        if asked.compile:
            raise
        log(f"nothing is compiled: {error}")
        return 0
    return parsers.DEFAULT_COMPILED if asked.compile is None else asked.compile


if __name__ == "__main__":
    run_command(main)
