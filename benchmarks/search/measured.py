"""Candidates as measured here: cases of a benchmark run (`benchmarks.run`), which checks and times them interleaved."""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from itertools import chain
from sys import stderr

import numpy as np

from benchmarks.cases.case import Case
from benchmarks.cases.row import Row
from benchmarks.cli.accuracy import errors_of
from benchmarks.cli.tables import wrapped
from benchmarks.run.corpus import BYTE_VALUES
from benchmarks.run.engine import Engine, in_order
from benchmarks.run.journal import MirroredJournal
from benchmarks.run.machine import disable_compilation_cache
from benchmarks.run.measure import Interval
from benchmarks.run.progress import Progress, say_regularly
from benchmarks.run.states import RunSettings
from benchmarks.search.ranking import Candidate, Ranking, Tried, fastest_first, first_of_each
from benchmarks.search.rows import LAYOUT, RANK, Column, table
from benchmarks.simulate.machines import MEASURED_ONLY
from strategies.checking import BATCHES

ROUNDS = 10
PREDICTED = Column("predicted ms", "predicted_seconds", ",.1f", 1e3)
MEASURED = Column("measured ms", "measured.seconds", ",.1f", 1e3), Column("", "measured.reason")


def to_measure(ranking: Ranking, count: int) -> list[Candidate]:
    """The best of each rematerialisation, strategy and set of mesh axes, which differ more and so test more of the
    predictions, and then the best of all.
    """
    each_first = (first_of_each(ranking.fitting, key) for key in (lambda case: case.remat, lambda case: case.strategy))
    firsts = (*chain.from_iterable(each_first), *ranking.best_per_layout, *ranking.fitting)
    return list({candidate.case: candidate for candidate in firsts}.values())[:count]


def measure_best(ranking: Ranking, count: int) -> list[Tried]:
    """Measure some candidates, on all devices of this process and on random tokens."""
    disable_compilation_cache()
    candidates = {here(candidate.case): candidate for candidate in to_measure(ranking, count)}
    first = ranking.fitting[0].case
    tokens = (BATCHES * first.batch_size + 1) * first.config.sequence
    corpus_N = np.random.default_rng(0).integers(0, BYTE_VALUES, tokens).astype(np.uint8)
    engine = Engine(RunSettings(corpus_N, ROUNDS), MirroredJournal())
    lines = Progress(engine.settings, engine.clock, engine.rows, len(candidates))
    engine.states.journal.listeners.append(lines.hear)
    with redirect_stdout(stderr), say_regularly(lines.doing):  # stdout has the report alone
        engine.run(in_order(list(candidates)))
    return fastest_first(measured(candidate, engine.rows[str(case)]) for case, candidate in candidates.items())


def here(case: Case) -> Case:
    """The case on this process's devices. Its rematerialisation is an option, so that it is in the id, and cases that
    differ in it alone are compared with the same step of one device.
    """
    return replace(case, topology=None, remat="dots", options=(*case.options, ("remat", case.remat)))


def measured(candidate: Candidate, row: Row) -> Tried:
    """A candidate with the row of its case: the median over rounds, and why it is missing or was not compared."""
    seconds = statistics.median(row.samples) if row.samples else None
    in_float32 = str(row.extra_info["check.float32"] or "equal")
    reason = row.extra_info["reason"] or ("" if in_float32 == "equal" else f"float32 {in_float32}")
    columns = {"measured.seconds": seconds, "measured.rounds_seconds": [*row.samples], "measured.reason": reason}
    return Tried(candidate, seconds, columns)


def lines(found: Sequence[Tried], ranking: Ranking, predicted: bool) -> Iterator[str]:
    """The lines about what was measured, and how far predictions are off, where there are any."""
    rows = [ranking.row(one.candidate) | one.columns for one in found]
    yield from wrapped(f"{'as measured' if predicted else MEASURED_ONLY}: {ROUNDS} interleaved rounds")
    yield from table((RANK, *LAYOUT, PREDICTED, *MEASURED) if predicted else (*LAYOUT, *MEASURED), rows)
    timed = [row for row in rows if row["measured.seconds"]]
    if not (predicted and timed):
        return
    best = next((row for row in timed if row["rank"] == 1), None)
    if best is timed[0]:
        yield "the predicted best is the fastest that was measured"
    elif best:
        likely = Interval.of_ratios(best["measured.rounds_seconds"], timed[0]["measured.rounds_seconds"])
        interval = f" (95% interval of rounds: {likely.low - 1:+.1%} to {likely.high - 1:+.1%})" if likely else ""
        loss = best["measured.seconds"] / timed[0]["measured.seconds"] - 1
        yield f"the predicted best takes {loss:.1%} longer than the fastest that was measured{interval}"
    errors = errors_of([row["predicted_seconds"] for row in timed], [row["measured.seconds"] for row in timed])
    rank = f", rank correlation {errors.rank_text}" if errors.rank_text else ""
    yield f"predictions are off by {errors.median:.1%} in the median{rank}"
