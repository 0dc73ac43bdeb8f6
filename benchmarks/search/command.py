"""Ranks strategies, meshes and options by predicted seconds, with what limits the best; compiles and measures some.

meshmark search --preset gpt2-xl --topology h100:1x8 --batch-size 64
"""

import argparse
import json
import time
from dataclasses import replace

from benchmarks.cli.ending import refusing
from benchmarks.cli.outputs import log, short, write_then_print
from benchmarks.search import scaled
from benchmarks.search.candidates import SearchSpace
from benchmarks.search.compiled import compile_best
from benchmarks.search.document import document
from benchmarks.search.measured import measure_best
from benchmarks.search.ranking import Candidate, ranked
from benchmarks.search.report import Result, report
from benchmarks.search.request import prepared
from benchmarks.simulate.machine import Machine
from benchmarks.simulate.queues import trace
from benchmarks.simulate.step import Step


def search(space: SearchSpace, machine: Machine, args: argparse.Namespace) -> Result:
    """Rank the search space; compile and measure as many of the best as the options ask for."""
    begin = time.monotonic()
    ranking = ranked(space.cases(), machine, args.at_once, complete=bool(args.json))
    count = len(ranking.fitting) + len(ranking.too_large) + len(ranking.infeasible)
    log(f"{count} candidates in {time.monotonic() - begin:.1f} s")
    result = Result(space, machine, ranking)
    if args.compile and ranking.fitting:
        result = replace(result, compiled=compile_best(ranking, args.compile, args.workers, args.time_budget))
    if args.measure and ranking.fitting:
        result = replace(result, measured=measure_best(ranking, args.measure))
    return result


def scaling(space: SearchSpace, machine: Machine, args: argparse.Namespace) -> list[Result]:
    """The best on each number of devices."""
    sizes = scaled.powers_of_two(*args.scaling)
    device_batch_size = args.sequences_per_device or max(1, space.batch_size // sizes[0])
    return [*scaled.results(space, args.topology, sizes, device_batch_size, machine, args.at_once)]


def trace_of(best: Candidate) -> str:
    """The trace of a predicted step: when each pipeline stage does what."""
    spans = Step(best.cost, best.machine, best.topology).spans()
    return json.dumps(trace("prediction", str(best.case), str(best.topology), spans))


def main(args: argparse.Namespace) -> int:
    """Search, write files, and print the report. The exit status is 1 if nothing fits."""
    with refusing():
        space, machine = prepared(args)
    results = scaling(space, machine, args) if args.scaling else [search(space, machine, args)]
    lines = scaled.scaling_report(results) if args.scaling else report(results[0], args.all, args.tokens, args.price)
    best = next((result.ranking.fitting[0] for result in results if result.ranking.fitting), None)
    files = {args.json: json.dumps(document(results))} if args.json else {}
    files |= {args.trace: trace_of(best)} if args.trace and best else {}
    write_then_print(files, "\n".join(lines))
    if args.trace:
        path = short(args.trace)
        where = f"open it at ui.perfetto.dev, or draw it: meshmark plot {path}"
        log(f"{path}: {where}" if best else f"{path} is not written: no candidate fits")
    return 0 if best else 1
