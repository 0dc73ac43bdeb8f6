"""Candidates as measured: some are timed here, interleaved, which shows what the predicted best loses.

Each is checked against one device first, as the cases of a benchmark run are.
"""

import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.cases.case import Case
from benchmarks.cases.failures import reason_of
from benchmarks.cli.accuracy import errors_of
from benchmarks.cli.tables import aligned, wrapped
from benchmarks.explain.local_devices import MEASURED_ONLY
from benchmarks.explain.memory import shard_bytes, states_budget_bytes
from benchmarks.run.compilation import Clock
from benchmarks.run.corpus import BYTE_VALUES
from benchmarks.run.equality import BATCHES
from benchmarks.run.machine import disable_compilation_cache
from benchmarks.run.measure import BlockTimes, Interval, Training, steps_per_block, time_interleaved
from benchmarks.run.references import References
from benchmarks.search.ranking import Candidate, Ranking, first_of_each, layout_cells
from strategies.backends.backend import are_virtual

ROUNDS = 3
FINALISTS = 5
"""So many of the fastest are timed again, in a final of more rounds. The fastest of many was lucky, too."""
FINAL_ROUNDS = 10
HOW_OFTEN = f"{ROUNDS} interleaved rounds, and {FINAL_ROUNDS} of the final"


@dataclass(frozen=True)
class MeasuredCandidate:
    """A candidate that was measured, or meant to be.

    Attributes:
        rank: by its prediction, from 1.
        candidate: with its prediction.
        seconds: of a step in each round, those of the final for who is in it; empty if it was not measured.
        final: whether it is in the final, which says what is fastest.
        reason: why it was not measured; empty if it was.
        unchecked: why it was not compared with one device, though it was timed; empty if it was compared.
    """

    rank: int
    candidate: Candidate
    seconds: tuple[float, ...] = ()
    final: bool = False
    reason: str = ""
    unchecked: str = ""

    @property
    def step_seconds(self) -> float | None:
        """Median over rounds; None if it was not measured."""
        return statistics.median(self.seconds) if self.seconds else None

    def as_row(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "measured.seconds": self.step_seconds,
            "measured.rounds_seconds": list(self.seconds),
            "measured.final": self.final,
            "measured.reason": self.reason,
            "measured.unchecked": self.unchecked,
        }

    def cells(self) -> tuple[str, str]:
        """Cells of a table: the measured milliseconds, and why there are none, or whether they are of the final."""
        milliseconds = "" if self.step_seconds is None else f"{1e3 * self.step_seconds:,.1f}"
        return milliseconds, self.reason or ", ".join(filter(None, ["final" if self.final else "", self.unchecked]))


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
    """Time some candidates interleaved, and the fastest of them and the predicted best again in a final.

    Args:
        ranking: all candidates, on all devices of this process.
        count: how many are timed.

    Returns:
        Those of the final, fastest first, then the others, and then those that could not be measured.
    """
    disable_compilation_cache()
    results: dict[str, MeasuredCandidate] = {}
    trainings: dict[str, Training] = {}
    left, references = states_budget_bytes(), None
    for candidate in to_measure(ranking, count):
        rank = ranking.ranks[candidate.case]
        results[str(rank)] = MeasuredCandidate(rank, candidate)
        print(f"compiling {' '.join(layout_cells(candidate.case))}", file=sys.stderr)
        try:
            references = references or references_for(candidate.case)
            trainings[str(rank)], taken, unchecked = started(candidate.case, left, references)
            results[str(rank)] = replace(results[str(rank)], unchecked=unchecked)
            left = left and left - taken
        except Exception as error:
            results[str(rank)] = replace(results[str(rank)], reason=reason_of(error))
    results |= timed(results, trainings, ROUNDS, final=False)
    finalists = {str(result.rank) for result in in_order(results.values())[:FINALISTS]} | {"1"}
    trainings = {rank: training for rank, training in trainings.items() if rank in finalists}
    results |= timed(results, trainings, FINAL_ROUNDS, final=True)
    return in_order(results.values())


def timed(
    results: Mapping[str, MeasuredCandidate], trainings: Mapping[str, Training], rounds: int, *, final: bool
) -> dict[str, MeasuredCandidate]:
    """The results of these training runs, with their times of some interleaved rounds or with why they failed."""
    print(f"timing {len(trainings)} steps, interleaved", file=sys.stderr)
    times = {rank: BlockTimes(steps_per_block(training)) for rank, training in trainings.items()}
    time_interleaved(trainings, times, rounds, begin=lambda rank: None)
    return {
        rank: replace(results[rank], seconds=(), final=False, reason=reason_of(blocks.error))
        if blocks.error
        else replace(results[rank], seconds=tuple(blocks.seconds), final=final)
        for rank, blocks in times.items()
    }


def in_order(results: Iterable[MeasuredCandidate]) -> list[MeasuredCandidate]:
    """Those of the final first, then others that were measured; the fastest of each first."""
    return sorted(results, key=lambda one: (not one.final, one.step_seconds is None, one.step_seconds or one.rank))


def references_for(case: Case) -> References:
    """What compiles and checks the cases of a search, on random tokens of their vocabulary."""
    count = (BATCHES * case.batch_size + 1) * case.config.sequence
    tokens_N = np.random.default_rng(0).integers(0, min(case.config.vocab, BYTE_VALUES), count).astype(np.uint8)
    return References(tokens_N, Clock())


def started(case: Case, left: int | None, references: References) -> tuple[Training, int, str]:
    """The training run of a case on this process's devices, after a check of its first steps, and its first step.

    Args:
        case: the case.
        left: bytes of memory that its state may take; None if that is not known.
        references: compiles and checks it.

    Returns:
        The run; the bytes that its state takes, on a host those of all its devices; and why it was not compared with
        one device, or "".

    Raises:
        Exception: it cannot be built, compiled or run, it computes something else, or its state is too large.
    """
    here = replace(case, topology=None)
    copies = here.mesh.size if are_virtual(here.devices) else 1
    taken = copies * shard_bytes(here.build().state)
    if left is not None and taken > left:
        raise MemoryError("its state does not fit beside those of the others")
    record = references.compared(here)
    training = references.start(record)
    training.block(1)
    in_float32 = str(record.columns.get("check.float32") or "equal")
    return training, taken, record.reason or ("" if in_float32 == "equal" else f"float32 {in_float32}")


def table(results: Sequence[MeasuredCandidate], predicted: bool = True) -> Iterator[str]:
    """The lines about what was measured, and how far predictions are off, where there are any."""
    if not predicted:
        yield from wrapped(f"{MEASURED_ONLY}: {HOW_OFTEN}")
        rows = [(*layout_cells(result.candidate.case), *result.cells()) for result in results]
        yield from aligned([("strategy", "mesh", "options", "measured ms", ""), *rows], "<<<><")
        return
    yield from wrapped(f"as measured: {HOW_OFTEN}")
    header = "rank", "strategy", "mesh", "options", "predicted ms", "measured ms", ""
    ranked = [
        (str(one.rank), *layout_cells(one.candidate.case), f"{1e3 * one.candidate.step_seconds:,.1f}", *one.cells())
        for one in results
    ]
    yield from aligned([header, *ranked], "<<<<>><")
    known = [(one, one.step_seconds) for one in results if one.step_seconds]
    finalists = [(one, seconds) for one, seconds in known if one.final]
    if best := next((pair for pair in finalists if pair[0].rank == 1), None):
        loss = best[1] / finalists[0][1] - 1
        likely = Interval.of_ratios(best[0].seconds, finalists[0][0].seconds)
        interval = f" (95% interval of rounds: {likely.low - 1:+.1%} to {likely.high - 1:+.1%})" if likely else ""
        yield f"the predicted best takes {loss:.1%} longer than the fastest that was measured{interval}"
    if known:
        errors = errors_of([one.candidate.step_seconds for one, _ in known], [seconds for _, seconds in known])
        rank = f", rank correlation {errors.rank_text}" if errors.rank_text else ""
        yield f"predictions are off by {errors.median:.1%} in the median{rank}"
