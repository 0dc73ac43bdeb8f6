"""Candidates as measured here: cases of a benchmark run (`benchmarks.run`), which checks and times them interleaved."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from sys import stderr
from typing import Any

import numpy as np

from benchmarks.cases.case import Case
from benchmarks.cases.row import Row
from benchmarks.cli.accuracy import errors_of
from benchmarks.cli.tables import wrapped
from benchmarks.explain.local_devices import MEASURED_ONLY
from benchmarks.run.corpus import BYTE_VALUES
from benchmarks.run.engine import Engine, in_order
from benchmarks.run.equality import BATCHES
from benchmarks.run.journal import MirroredJournal
from benchmarks.run.ledger import RunSettings
from benchmarks.run.machine import disable_compilation_cache
from benchmarks.run.measure import Interval
from benchmarks.run.progress import Progress, say_regularly
from benchmarks.search.ranking import Candidate, Ranking, first_of_each
from benchmarks.search.rows import LAYOUT, RANK, milliseconds, table, words

ROUNDS = 10
PREDICTED = milliseconds("predicted_seconds", "predicted ms", ",.1f")
MEASURED = milliseconds("measured.seconds", "measured ms", ",.1f"), words("measured.reason", "")


@dataclass(frozen=True)
class MeasuredCandidate:
    """A candidate that was measured, or meant to be.

    Attributes:
        rank: by its prediction, from 1.
        candidate: with its prediction.
        row: of its case in the run.
    """

    rank: int
    candidate: Candidate
    row: Row

    @property
    def step_seconds(self) -> float | None:
        """Median over rounds; None if it was not measured."""
        return statistics.median(self.row.samples) if self.row.samples else None

    @property
    def reason(self) -> str:
        """Why it was not measured, or not compared with one device; empty if it was both."""
        found = self.row.extra_info
        in_float32 = str(found["check.float32"] or "equal")
        return str(found["reason"] or ("" if in_float32 == "equal" else f"float32 {in_float32}"))

    def as_row(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "measured.seconds": self.step_seconds,
            "measured.rounds_seconds": list(self.row.samples),
            "measured.reason": self.reason,
        }


def to_measure(ranking: Ranking, count: int) -> list[Candidate]:
    """The best of each rematerialisation, of each strategy, of each set of mesh axes, and then the best of all.

    They differ more than the best of all do, and so test more of the predictions.
    """
    firsts = (
        *first_of_each(ranking.fitting, lambda case: case.remat),
        *first_of_each(ranking.fitting, lambda case: case.strategy),
        *ranking.best_per_layout,
        *ranking.fitting,
    )
    return list({candidate.case: candidate for candidate in firsts}.values())[:count]


def measure_best(ranking: Ranking, count: int) -> list[MeasuredCandidate]:
    """Measure some candidates, on all devices of this process and on random tokens.

    Returns:
        Fastest first, and last those that could not be measured.
    """
    disable_compilation_cache()
    candidates = {here(candidate.case): candidate for candidate in to_measure(ranking, count)}
    first = ranking.fitting[0].case
    tokens = (BATCHES * first.batch_size + 1) * first.config.sequence
    corpus_N = np.random.default_rng(0).integers(0, BYTE_VALUES, tokens).astype(np.uint8)
    engine = Engine(RunSettings(corpus_N, ROUNDS), MirroredJournal())
    lines = Progress(engine.settings, engine.clock, engine.rows, len(candidates))
    engine.say, engine.ledger.journal.tell = lines.say, lines.hear
    with redirect_stdout(stderr), say_regularly(lines.doing):  # stdout has the report alone
        engine.run(in_order(list(candidates)))
    found = (
        MeasuredCandidate(ranking.ranks[candidate.case], candidate, engine.rows[str(case)])
        for case, candidate in candidates.items()
    )
    return fastest_first(found)


def here(case: Case) -> Case:
    """The case on the devices of this process, with its rematerialisation as an option.

    So cases that differ in it alone have different ids, and are compared with the same step of one device.
    """
    return replace(case, topology=None, remat="dots", options=(*case.options, ("remat", case.remat)))


def fastest_first(results: Iterable[MeasuredCandidate]) -> list[MeasuredCandidate]:
    """Results ordered by their time, and last those without, by rank."""
    return sorted(results, key=lambda one: (one.step_seconds is None, one.step_seconds or one.rank))


def lines(results: Sequence[MeasuredCandidate], predicted: bool) -> Iterator[str]:
    """The lines about what was measured, and how far predictions are off, where there are any."""
    rows = [{"rank": one.rank} | one.candidate.as_row() | one.as_row() for one in results]
    yield from wrapped(f"{'as measured' if predicted else MEASURED_ONLY}: {ROUNDS} interleaved rounds")
    yield from table((RANK, *LAYOUT, PREDICTED, *MEASURED) if predicted else (*LAYOUT, *MEASURED), rows)
    if not predicted:
        return
    known = [(one, one.step_seconds) for one in results if one.step_seconds]
    if best := next((pair for pair in known if pair[0].rank == 1), None):
        likely = Interval.of_ratios(best[0].row.samples, known[0][0].row.samples)
        interval = f" (95% interval of rounds: {likely.low - 1:+.1%} to {likely.high - 1:+.1%})" if likely else ""
        loss = best[1] / known[0][1] - 1
        yield f"the predicted best takes {loss:.1%} longer than the fastest that was measured{interval}"
    if known:
        errors = errors_of([one.candidate.step_seconds for one, _ in known], [seconds for _, seconds in known])
        rank = f", rank correlation {errors.rank_text}" if errors.rank_text else ""
        yield f"predictions are off by {errors.median:.1%} in the median{rank}"
