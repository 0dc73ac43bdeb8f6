"""A run of the benchmarks: it measures one case after another, and remembers what they share."""

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import pytest

from benchmarks.cases import Case
from benchmarks.check import BATCHES, CHECKED_STEPS, Trajectory
from benchmarks.clock import Clock
from benchmarks.corpus import Corpus, tokens
from benchmarks.failures import reason_of, status_of
from benchmarks.machine import matmul_flops_per_second
from benchmarks.measure import (
    Training,
    compile_step,
    device_peak_bytes,
    host_peak_rss_bytes,
    planned_memory,
    steps_per_block,
    time_blocks,
)
from benchmarks.record import Record
from strategies import State, Step

SEED = 0


@dataclass(frozen=True)
class Measurement:
    """The row of a case, and the error that ended it early, if one did."""

    record: Record
    error: BaseException | None

    def raise_error(self) -> None:
        """End the test as the case ended: an infeasible one is skipped, a failed one fails, Ctrl-C stops the run."""
        if self.record.status == "infeasible":
            pytest.skip(f"infeasible: {self.record.reason}")
        if self.error:
            raise self.error


class Session:
    """What the cases of a run share: the text, one device's numbers, the machine's speed, the clock, and the rows."""

    def __init__(self, corpus_N: Corpus, case_seconds: float, clock: Clock) -> None:
        self.corpus_N = corpus_N
        self.case_seconds = case_seconds
        self.clock = clock
        self.records: list[Record] = []
        self.matmul_rates: dict[str, float] = {}
        self._inits: dict[tuple[Any, ...], Callable[..., State]] = {}
        self._references: dict[Case, Trajectory | str] = {}
        self._single_seconds: dict[Case, float | None] = {}

    def measure(self, case: Case) -> Measurement:
        """Measure a case as far as it goes. What ends it early ends up in the row, with all that was learnt before."""
        record, error = Record.begin(case), None
        try:
            for facts in self._stages(case):
                record = replace(record, **facts)
        except (Exception, KeyboardInterrupt) as caught:
            traceback.clear_frames(caught.__traceback__)  # they hold the state, and the next case needs its memory
            record, error = replace(record, status=status_of(caught), reason=reason_of(caught)), caught
        if case.strategy == "single" and record.samples:
            self._single_seconds[case.single] = record.step_seconds_median
        record = replace(record, single_seconds_median=self._single_seconds.get(case.single))
        self.records.append(record)
        return Measurement(record, error)

    def _stages(self, case: Case) -> Iterator[dict[str, Any]]:
        """The facts of a row, as one stage after another learns them."""
        step = case.build()
        yield {"model_flops_per_step": step.config.flops_per_token * step.tokens_per_step}
        with self.clock.phase("compile"):
            program, seconds = compile_step(step)
        memory = planned_memory(step, program)
        yield {"compile_seconds": seconds, "memory": memory}

        training, trajectory = self._first_steps(case, step, program)
        yield {"loss_first": trajectory.losses[0], "loss_last": trajectory.losses[-1]}
        trajectory.require_finite("in the first steps")
        yield from self._check(case, trajectory)

        steps = steps_per_block(training)
        with self.clock.phase("timed"):
            samples = time_blocks(training, steps, self.case_seconds)
        Trajectory.of([training.metrics]).require_finite("after the timed blocks")
        peaks = {"device_peak_bytes": device_peak_bytes(), "host_peak_rss_bytes": host_peak_rss_bytes()}
        yield {
            "status": "ok",
            "steps_per_block": steps,
            "samples": samples,
            "matmul_flops_per_second": self._matmul_rate(case.dtype),
            "memory": replace(memory, **peaks),
        }

    def _first_steps(self, case: Case, step: Step, program: jax.stages.Compiled) -> tuple[Training, Trajectory]:
        """Warm up on the text, and look at what comes out."""
        key = jax.random.key(SEED)
        spread = case.strategy, case.mesh
        if spread not in self._inits:  # the same for every batch size
            with self.clock.phase("compile"):
                self._inits[spread] = step.init.lower(key).compile()
        sizes = case.batch_size, case.config.sequence
        batches = [step.place(tokens(self.corpus_N, index, *sizes)) for index in range(BATCHES)]
        training = Training(program, self._inits[spread](key), batches)
        return training, training.trajectory(CHECKED_STEPS)

    def _check(self, case: Case, trajectory: Trajectory) -> Iterator[dict[str, Any]]:
        """Whether the first steps are those of one device: not until it is shown."""
        if case == case.single:
            self._references[case] = trajectory
        single = self._reference(case.single)
        if isinstance(single, str):
            yield {"reason": single}
        else:
            yield {"matches_single": False}
            trajectory.require_equal(single, case)
            yield {"matches_single": True}

    def _reference(self, single: Case) -> Trajectory | str:
        """One device's first steps, or why there are none: a model may be too large for one device."""
        if single not in self._references:
            try:
                step = single.build()
                with self.clock.phase("compile"):
                    program, _ = compile_step(step)
                _, trajectory = self._first_steps(single, step, program)
                trajectory.require_finite("in the first steps")
                self._references[single] = trajectory
            except Exception as error:
                traceback.clear_frames(error.__traceback__)
                self._references[single] = f"not checked, for single ended in {status_of(error)}: {reason_of(error)}"
        return self._references[single]

    def _matmul_rate(self, dtype: str) -> float:
        """FLOPs per second of a matmul alone, measured once in a run."""
        if dtype not in self.matmul_rates:
            self.matmul_rates[dtype] = matmul_flops_per_second(dtype)
        return self.matmul_rates[dtype]
