"""Candidates as measured: steps of some candidates are timed here, interleaved, and show what the advice loses."""

import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from benchmarks.cases.case import Case
from benchmarks.cases.failures import reason_of
from benchmarks.commandline.tables import aligned
from benchmarks.devices.topology import Topology
from benchmarks.explain.memory import shard_bytes, states_budget_bytes
from benchmarks.run.interleaved import BlockTimes, Interval, time_interleaved
from benchmarks.run.machine import disable_compilation_cache
from benchmarks.run.measure import Training, compile_step, steps_per_block
from benchmarks.search.advised import Choice, Choices
from benchmarks.search.candidates import SearchSpace, first_per_layout
from benchmarks.seconds.at_hand import MEASURED_ONLY
from benchmarks.seconds.judging import errors_of
from strategies.backends.backend import are_virtual

ROUNDS = 3
FINALISTS = 5
"""So many of the fastest are timed again, in a final of more rounds. The fastest of many was lucky, too."""
FINAL_ROUNDS = 10


@dataclass(frozen=True)
class AsMeasured:
    """A candidate that was measured, or meant to be.

    Attributes:
        rank: of the candidate by its prediction, from 1.
        choice: the candidate.
        seconds: of a step in each round, those of the final for who is in it; empty if it was not measured.
        final: whether it is in the final, which says what is fastest.
        reason: why it was not measured; empty if it was.
    """

    rank: int
    choice: Choice
    seconds: tuple[float, ...] = ()
    final: bool = False
    reason: str = ""

    @property
    def step_seconds(self) -> float | None:
        """Median over rounds; None if it was not measured."""
        return statistics.median(self.seconds) if self.seconds else None

    def as_row(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "rank": self.rank,
            "predicted_seconds": self.choice.step_seconds,
            "measured_seconds": self.step_seconds,
            "rounds_seconds": list(self.seconds),
            "final": self.final,
            "reason": self.reason,
        }


def to_measure(choices: Choices, count: int) -> list[Choice]:
    """The best of each rematerialisation, of each strategy, of each set of mesh axes, and then the best of all.

    They differ more than the best of all do, and so test more of the predictions.
    """
    firsts = (
        *first_of_each(choices.best, lambda case: case.remat),
        *first_of_each(choices.best, lambda case: case.strategy),
        *first_per_layout(choices.best),
        *choices.best,
    )
    return list({id(each): each for each in firsts}.values())[:count]


def first_of_each(ranked: Iterable[Choice], key: Callable[[Case], str]) -> list[Choice]:
    """The first choice with each value of a key, in the same order."""
    first: dict[str, Choice] = {}
    for each in ranked:
        first.setdefault(key(each.case), each)
    return list(first.values())


def measured(choices: Choices, count: int) -> list[AsMeasured]:
    """Time some candidates interleaved, and the fastest of them and the advised one again in a final.

    Args:
        choices: all candidates, on all devices of this process.
        count: how many are timed.

    Returns:
        Those of the final, fastest first, then the others, and then those that could not be measured.
    """
    disable_compilation_cache()
    say = partial(print, file=sys.stderr)
    ranks = {id(each): rank for rank, each in enumerate(choices.best, start=1)}
    results = {str(ranks[id(each)]): AsMeasured(ranks[id(each)], each) for each in to_measure(choices, count)}
    trainings: dict[str, Training] = {}
    left = states_budget_bytes()
    for rank, each in results.items():
        say(f"compiling {' '.join(filter(None, each.choice.cells))}")
        try:
            trainings[rank], taken = begun(each.choice.case, left)
            left = left and left - taken
        except Exception as error:
            results[rank] = replace(each, reason=reason_of(error))
    for rounds, final in ((ROUNDS, False), (FINAL_ROUNDS, True)):
        say(f"timing {len(trainings)} steps, interleaved")
        for rank, blocks in timed(trainings, rounds).items():
            reason = reason_of(blocks.error) if blocks.error else ""
            seconds = () if reason else tuple(blocks.seconds)
            results[rank] = replace(results[rank], seconds=seconds, final=final and not reason, reason=reason)
        finalists = {each.rank for each in in_order(results.values())[:FINALISTS]} | {1}
        trainings = {rank: each for rank, each in trainings.items() if results[rank].rank in finalists}
    return in_order(results.values())


def in_order(results: Iterable[AsMeasured]) -> list[AsMeasured]:
    """Those of the final first, then others that were measured; the fastest of each first."""
    return sorted(results, key=lambda each: (not each.final, each.step_seconds is None, each.step_seconds or each.rank))


def begun(case: Case, left: int | None) -> tuple[Training, int]:
    """The training run of a case on this process's devices and random tokens, after its first step.

    Args:
        case: the case.
        left: bytes of memory that its state may take; None if that is not known.

    Returns:
        The run, and the bytes that its state takes, on a host those of all its devices.

    Raises:
        Exception: it cannot be built, compiled or run, or its state is too large.
    """
    here = replace(case, topology=None)
    step = here.build()
    copies = here.mesh.size if are_virtual(here.devices) else 1
    taken = copies * shard_bytes(step.state)
    if left is not None and taken > left:
        raise MemoryError("its state does not fit beside those of the others")
    program = compile_step(step, here.compiler_options).program
    tokens = np.random.default_rng(0).integers(0, here.config.vocab, (here.batch_size, here.config.sequence + 1))
    training = Training(program, step.init(jax.random.key(0)), [step.place(tokens)])
    training.block(1)
    return training, taken


def timed(trainings: dict[str, Training], rounds: int) -> dict[str, BlockTimes]:
    """Times of interleaved blocks."""
    times = {name: BlockTimes(steps_per_block(training)) for name, training in trainings.items()}
    time_interleaved(trainings, times, rounds, begin=lambda name: None)
    return times


def report_unpredicted(results: Sequence[AsMeasured], candidates: int, topology: Topology) -> Iterator[str]:
    """The lines about what was measured on virtual devices, of so many candidates."""
    yield f"{MEASURED_ONLY}: {len(results)} of {candidates} candidates on {topology} were timed,"
    yield f"{ROUNDS} interleaved rounds, and {FINAL_ROUNDS} of the final"
    rows: list[tuple[str, ...]] = [("strategy", "mesh", "options", "ms", "")]
    for each in results:
        seconds = "" if each.step_seconds is None else f"{1e3 * each.step_seconds:,.1f}"
        rows.append((*each.choice.cells, seconds, each.reason or ("final" if each.final else "")))
    yield from ["", *aligned(rows, "<<<><")]


def document_unpredicted(results: Sequence[AsMeasured], space: SearchSpace) -> dict[str, Any]:
    """What was measured on virtual devices as JSON values, the fastest first."""
    names = "strategy", "mesh", "microbatches", "remat"
    rows = [
        {name: str(getattr(each.choice.case, name)) for name in names}
        | {"options": dict(each.choice.case.options), "measured_seconds": each.step_seconds}
        | {"rounds_seconds": list(each.seconds), "final": each.final, "reason": each.reason}
        for each in results
    ]
    work = {name: getattr(space, name) for name in ("preset", "batch_size", "dtype")}
    return {"kind": "measured", "schema_version": 1, "topology": str(space.topology), **work, "measured": rows}


def report(results: Sequence[AsMeasured]) -> Iterator[str]:
    """The lines about what was measured."""
    header = *("rank", "strategy", "mesh", "options"), *("ms predicted", "measured", "")
    rows: list[tuple[str, ...]] = [header]
    for each in results:
        seconds = "" if each.step_seconds is None else f"{1e3 * each.step_seconds:,.1f}"
        note = each.reason or ("final" if each.final else "")
        rows.append((str(each.rank), *each.choice.cells, f"{1e3 * each.choice.step_seconds:,.1f}", seconds, note))
    yield f"as measured: {ROUNDS} interleaved rounds, and {FINAL_ROUNDS} of the final"
    yield from aligned(rows, [*"<<<<", *">>", "<"])
    known = [each for each in results if each.step_seconds]
    finalists = [each for each in known if each.final]
    if advised := next((each for each in finalists if each.rank == 1), None):
        loss = (advised.step_seconds or 0) / (finalists[0].step_seconds or 1) - 1
        likely = Interval.of_ratios(advised.seconds, finalists[0].seconds)
        interval = f" (95% interval of rounds: {likely.low - 1:+.1%} to {likely.high - 1:+.1%})" if likely else ""
        yield f"the advised step takes {loss:.1%} longer than the fastest that was measured{interval}"
    errors = errors_of([each.choice.step_seconds for each in known], [each.step_seconds or 0 for each in known])
    rank = "" if errors.rank_correlation is None else f", rank correlation {errors.rank_correlation:.2f}"
    yield f"predictions are off by {errors.median:.1%} in the median{rank}"
