"""Times a group of comparable cases interleaved, compares them, and traces and attributes their steps if requested."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.cases.failures import reason_of
from benchmarks.cli.values import MIN_ROUNDS
from benchmarks.cluster import processes
from benchmarks.devices.attached import device_peak_bytes, host_peak_rss_bytes, states_budget_bytes
from benchmarks.run.attribution import attribute
from benchmarks.run.measure import BlockTimes, Interval, Training, steps_per_block, time_interleaved, trace
from benchmarks.run.record import Record
from benchmarks.run.references import References
from benchmarks.run.single_device import RemoteTraining, has_single_device_server, train
from benchmarks.run.states import CaseStates

CANARY = "canary"
"""Name of the duplicate of the baseline."""
T = TypeVar("T")


@dataclass
class TimingGroup:
    """Cases that are timed interleaved, with `single` and the canary, a duplicate of the baseline that shows the noise.

    `reference` is `single` on the same work, or why there is none. Training runs and block times are by case id.
    """

    states: CaseStates
    references: References
    records: Sequence[Record]
    reference: Record | str
    matmul_rate: float | None
    trainings: dict[str, Training | RemoteTraining] = field(default_factory=dict)
    times: dict[str, BlockTimes] = field(default_factory=dict)

    def run(self) -> None:
        """Time the cases, and end them."""
        participants = {str(self.baseline.case): self.baseline} | {str(record.case): record for record in self.records}
        for name, record in participants.items():
            self._join(name, record)
        # The canary is last, because it can be dropped if memory is short.
        participants |= {CANARY: self.baseline}
        if processes.broadcast_first(self._has_room_for_canary):
            self._join(CANARY, self.baseline)
        else:
            self.states.journal.say("no memory is left for a second state of a step, which would show the noise")
        self.states.journal.say(f"timing {len(self.records)} comparable steps, interleaved")
        try:
            with self.references.clock.phase("timed"):
                self._time(lambda name: self.states.begin(participants[name].case))
        except BaseException:
            # Finish the cases with enough blocks even after Ctrl-C, unless other processes would have to agree.
            if processes.count() == 1:
                self._compare()
            raise
        self._compare()
        for record in self.records:
            timed = self.states.records[str(record.case)]
            if timed.status == "ok":
                self._trace_and_attribute(timed, self.trainings[str(record.case)])
        for name, training in self.trainings.items():
            if isinstance(training, RemoteTraining) and not self.times[name].error:
                training.drop()

    def _time(self, begin: Callable[[str], None]) -> None:
        """Time all cases for `rounds`, and then those with a wide interval until `extra_seconds` are over.

        How many more rounds a case takes is decided once, after `rounds`. If timing stopped as soon as an interval is
        narrow, many would be narrow by chance, and 92% to 94% of them would hold the true ratio instead of 95%. Blocks
        with the same index are of the same round.
        """
        end = time.monotonic() + self.states.settings.extra_seconds
        time_interleaved(self.trainings, self.times, self.states.settings.rounds, begin)
        further = processes.broadcast_first(self._further_rounds)
        for done in range(max(further.values(), default=0)):
            if processes.broadcast_first(lambda: time.monotonic() >= end):
                return
            lacking = [name for name, rounds in further.items() if rounds > done and not self.times[name].error]
            time_interleaved({name: self.trainings[name] for name in lacking}, self.times, 1, begin)

    def _further_rounds(self) -> dict[str, int]:
        """Rounds that each step lacks until its ratio to the baseline has a narrow interval; the baseline: the most."""
        baseline, rounds = str(self.baseline.case), self.states.settings.rounds
        ratios = {name: paired(self.times, name, baseline) for name in self.trainings if not self.times[name].error}
        further = {name: ratio.further_rounds(rounds) for name, ratio in ratios.items() if ratio}
        return further | {baseline: max(further.values())} if baseline in further else {}

    @property
    def baseline(self) -> Record:
        """The case that all others are compared with, and that the canary duplicates: `single`, or else the first."""
        return self.records[0] if isinstance(self.reference, str) else self.reference

    def _join(self, name: str, record: Record) -> None:
        """Start a training run, and time it with the others under a name. A canary that fails is left out."""
        self.states.begin(record.case)
        try:
            training = processes.run_in_all(partial(self._start, record))
            self.times[name], self.trainings[name] = BlockTimes(steps_per_block(training)), training
        except Exception as error:
            if name != CANARY:
                self._drop(record, error)

    def _has_room_for_canary(self) -> bool:
        """Whether memory holds its state, the states of others, and the temporaries of the step that needs the most."""
        half = states_budget_bytes()
        temporaries = max(record.held_bytes("temp") for record in (self.baseline, *self.records))
        return half is None or self.baseline.held_bytes("argument") + temporaries <= 2 * half

    def _start(self, record: Record) -> Training | RemoteTraining:
        """Start a training run; that of `single` in the single-device process, if there is one."""
        if record.case != record.case.single or not has_single_device_server():
            return self.references.start(record)
        training = train(record.case, self.states.settings.corpus_N)
        assert record.step
        self.references.require_equal(record.step, training.first_steps, record.case)
        return training

    def _drop(self, record: Record, error: Exception) -> None:
        """End a case that cannot be started. If it is `single`, and has no row, the rows of the others say why."""
        if any(record.case == other.case for other in self.records):
            self.states.fail(record.case, error)
            return
        why = f"not compared with single, which could not be timed: {reason_of(error)}"
        for other in self.records:
            self.states.add(other.case, reason=other.reason or why)

    def _compare(self) -> None:
        """Compare the timed cases with the baseline, and end them."""
        baseline = str(self.baseline.case)
        canary = paired(self.times, CANARY, baseline)
        own_process = any(isinstance(training, RemoteTraining) for training in self.trainings.values())
        facts = {"matmul_flops_per_second": self.matmul_rate, "columns": {"single_in_own_process": own_process}}
        by_step = {record.case.step_key: str(record.case) for record in self.records}
        for record in self.records:
            name, twin = str(record.case), record.case.twin
            relative = None if isinstance(self.reference, str) else paired(self.times, name, baseline)
            by_hand = paired(self.times, name, by_step.get(twin.step_key, "")) if twin else None
            ratios = {"relative_to_single": relative, "relative_to_twin": by_hand, "canary": canary}
            if name in self.trainings:
                self.states.add(record.case, **ratios, **facts)
                self._finish(record, self.trainings[name], self.times[name])

    def _finish(self, record: Record, training: Training | RemoteTraining, times: BlockTimes) -> None:
        """End a case with its times, or with its error. A case with too few blocks stays unfinished."""
        with self.states.record_failures([record.case]):
            if times.error:
                raise times.error
            processes.run_in_all(partial(training.require_finite, "after the timed blocks"))
            if len(times.seconds) >= MIN_ROUNDS:
                peaks = {"memory.device_peak_bytes": device_peak_bytes()}
                peaks |= {"memory.host_peak_rss_bytes": host_peak_rss_bytes()}
                self.states.end(record.case, status="ok", timed=times, columns=peaks)

    def _trace_and_attribute(self, record: Record, training: Training | RemoteTraining) -> None:
        """Trace a timed step and attribute its time, if requested.

        A failure is only a warning, because the row is complete without.
        """
        case = str(record.case)
        if self.states.settings.trace:
            try:
                self._trace(record, training, self.states.settings.trace / case)
            except Exception as error:
                warnings.warn(f"{case}: no trace was written: {reason_of(error)}", stacklevel=2)
        if self.states.settings.attribution:
            self.states.journal.say(f"{case}: timing variants of the step")
            try:
                with self.references.clock.phase("attribution"):
                    parts = self._attribute(record, training)
                self.states.end(record.case, columns=parts or {})
            except Exception as error:
                warnings.warn(f"{case}: its time could not be attributed: {reason_of(error)}", stacklevel=2)

    def _trace(self, record: Record, training: Training | RemoteTraining, folder: Path) -> None:
        """Record a profiler trace of one more block, in the process in which the step was timed."""
        assert record.timed
        steps = record.timed.steps_per_block
        if is_remote(training):
            run_remotely(training, lambda alone: alone.trace(folder, steps))
        else:
            trace(folder, partial(training.block, steps))

    def _attribute(self, record: Record, training: Training | RemoteTraining) -> dict[str, float] | None:
        """Attribute the time of a step, with variants timed in the process in which the step was timed.

        In a multi-process run with a single-device process, only the first process gets the result for `single`.
        """
        seconds, rounds = record.step_seconds_median, self.states.settings.rounds
        begin = partial(self.states.begin, record.case)
        assert record.step
        assert seconds
        if is_remote(training):
            return run_remotely(training, lambda alone: alone.attribute(record.case, seconds, rounds, begin))
        assert isinstance(training, Training)
        return attribute(record.case, record.step, training, seconds, rounds, begin)


def is_remote(training: Training | RemoteTraining) -> bool:
    """Whether the first process has this training run in its single-device process."""
    return processes.broadcast_first(lambda: isinstance(training, RemoteTraining))


def run_remotely(training: Training | RemoteTraining, look: Callable[[RemoteTraining], T]) -> T | None:
    """Call a function with a training run of the single-device process.

    Processes other than the first wait and get None.
    """
    return processes.run_in_all(lambda: look(training) if isinstance(training, RemoteTraining) else None)


def paired(times: Mapping[str, BlockTimes], ours: str, theirs: str) -> Interval | None:
    """Ratio of two steps' times; None if one of them was not timed."""
    return Interval.of_ratios(times[ours].seconds, times[theirs].seconds) if ours in times and theirs in times else None
