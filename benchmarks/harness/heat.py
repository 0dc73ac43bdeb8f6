"""One heat: cases of the same work are timed in turns, compared, and looked at more closely if asked."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.cluster import processes
from benchmarks.explain.memory import device_peak_bytes, host_peak_rss_bytes
from benchmarks.failures import reason_of
from benchmarks.harness.clock import Clock
from benchmarks.harness.lifecycle import Lifecycle, RunPlan
from benchmarks.harness.prepare import Entry, Preparation
from benchmarks.harness.solo import SoloTraining, has_solo, solo
from benchmarks.timing.attribution import Attribution, attribute
from benchmarks.timing.measure import Training, steps_per_block, trace
from benchmarks.timing.turns import MIN_ROUNDS, Interval, Turns, take_turns

CANARY = "canary"
T = TypeVar("T")


@dataclass
class Heat:
    """Cases that are timed in turns, and with them `single`, and one step a second time, as the canary.

    Attributes:
        entries: the cases, prepared.
        reference: `single` on the same work, or why there is none.
        rate: FLOPs per second of a matmul alone.
        say: tells what is going on.
    """

    plan: RunPlan
    clock: Clock
    lifecycle: Lifecycle
    preparation: Preparation
    entries: Sequence[Entry]
    reference: Entry | str
    rate: float | None
    say: Callable[[str], None]
    trainings: dict[str, Training | SoloTraining] = field(default_factory=dict)
    turns: dict[str, Turns] = field(default_factory=dict)

    def run(self) -> None:
        """Time them, and end the cases."""
        # The canary last: it goes without where memory is short.
        entrants = {str(self.twin.case): self.twin} | {str(entry.case): entry for entry in self.entries}
        entrants |= {CANARY: self.twin}
        for name, entry in entrants.items():
            self.lifecycle.begin(str(entry.case))
            try:
                training = processes.together(partial(self._start, entry))
                self.turns[name], self.trainings[name] = Turns(steps_per_block(training)), training
            except Exception as error:
                if name != CANARY:
                    self._leave_out(entry, error)
        self.say(f"timing {len(self.entries)} steps of the same work in turns")
        try:
            with self.clock.phase("timed"):
                begin = lambda name: self.lifecycle.begin(str(entrants[name].case))  # noqa: E731
                take_turns(self.trainings, self.turns, self.plan.rounds, begin)
        except BaseException:  # after Ctrl-C, too, what has had turns enough is measured, where no others must agree
            if processes.count() == 1:
                self._compare()
            raise
        self._compare()
        for entry in self.entries:
            if not entry.error:
                self._look_closer(entry, self.trainings[str(entry.case)])
        for training in self.trainings.values():
            if isinstance(training, SoloTraining):
                training.drop()

    @property
    def twin(self) -> Entry:
        """The case that all are compared with, and of which the canary is a second one."""
        return self.entries[0] if isinstance(self.reference, str) else self.reference

    def _start(self, entry: Entry) -> Training | SoloTraining:
        """A training run to be timed; that of one device in a process of its own, where devices are virtual.

        Raises:
            Mismatch: it computes something else there.
        """
        if entry.case != entry.case.single or not has_solo():
            return self.preparation.start(entry)
        training = solo().train(entry.case, self.plan.corpus_N)
        self.preparation.require_equal(training.first_steps, entry.case)
        return training

    def _leave_out(self, entry: Entry, error: Exception) -> None:
        """End a case that cannot be started. If it is a reference without a row, the others' rows say why."""
        if entry in self.entries:
            self.lifecycle.fail(entry, error)
            return
        why = f"not compared with single, which could not be timed: {reason_of(error)}"
        for each in self.entries:
            each.record = replace(each.record, reason=each.record.reason or why)

    def _compare(self) -> None:
        """Compare what was timed in turns, and end the cases."""
        twin = str(self.twin.case)
        canary = paired(self.turns, CANARY, twin)
        own_process = any(isinstance(training, SoloTraining) for training in self.trainings.values())
        facts = {"matmul_flops_per_second": self.rate, "single_in_own_process": own_process}
        for entry in self.entries:
            name = str(entry.case)
            relative = None if isinstance(self.reference, str) else paired(self.turns, name, twin)
            by_hand = paired(self.turns, name, str(entry.case.twin))
            ratios = {"relative_to_single": relative, "relative_to_twin": by_hand, "canary": canary}
            entry.record = replace(entry.record, **ratios, **facts)
            if name in self.trainings:
                self._finish(entry, self.trainings[name], self.turns[name])

    def _finish(self, entry: Entry, training: Training | SoloTraining, turns: Turns) -> None:
        """Look at what came out of the timed steps, and end the case, unless it had too few turns."""
        try:
            if turns.error:
                raise turns.error
            processes.together(partial(training.require_finite, "after the timed blocks"))
        except Exception as error:
            self.lifecycle.fail(entry, error)
            return
        if len(turns.seconds) >= MIN_ROUNDS:
            peaks = {"device_peak_bytes": device_peak_bytes(), "host_peak_rss_bytes": host_peak_rss_bytes()}
            self.lifecycle.end(entry, status="ok", timed=turns, memory=replace(entry.record.memory, **peaks))

    def _look_closer(self, entry: Entry, training: Training | SoloTraining) -> None:
        """Trace a step that was timed, and say where its time goes. Its row is whole without, should that fail."""
        case = str(entry.case)
        if self.plan.trace:
            try:
                self._trace(entry, training, self.plan.trace / case)
            except Exception as error:
                warnings.warn(f"{case}: its trace is not written: {reason_of(error)}", stacklevel=2)
        if self.plan.attribution:
            self.say(f"{case}: timing variants of the step")
            try:
                with self.clock.phase("attribution"):
                    parts = self._attribute(entry, training)
                self.lifecycle.end(entry, attribution=parts)
            except Exception as error:
                warnings.warn(f"{case}: where its time goes is not known: {reason_of(error)}", stacklevel=2)
            finally:
                self.lifecycle.watchdog.rest()

    def _trace(self, entry: Entry, training: Training | SoloTraining, folder: Path) -> None:
        """Have the profiler look at one more block, in the process in which it was timed."""
        assert entry.record.timed
        steps = entry.record.timed.steps_per_block
        if in_solo(training):
            of_solo(training, lambda alone: alone.trace(folder, steps))
        else:
            trace(folder, partial(training.block, steps))

    def _attribute(self, entry: Entry, training: Training | SoloTraining) -> Attribution | None:
        """Where the time of a step goes, from variants in the process in which it was timed.

        If one process has `single` in another of its own, the others of several are not told.
        """
        seconds, rounds = entry.record.step_seconds_median, self.plan.rounds
        begin = partial(self.lifecycle.begin, str(entry.case))
        assert entry.step
        assert seconds
        if in_solo(training):
            return of_solo(training, lambda alone: alone.attribute(entry.case, seconds, rounds, begin))
        assert isinstance(training, Training)
        return attribute(entry.case, entry.step, training, seconds, rounds, begin)


def in_solo(training: Training | SoloTraining) -> bool:
    """Whether the first process has a training run in the process of one device."""
    return processes.of_first(lambda: isinstance(training, SoloTraining))


def of_solo(training: Training | SoloTraining, look: Callable[[SoloTraining], T]) -> T | None:
    """What a training run in the process of one device shows; other processes than the first wait, and get None."""
    return processes.together(lambda: look(training) if isinstance(training, SoloTraining) else None)


def paired(turns: Mapping[str, Turns], ours: str, theirs: str) -> Interval | None:
    """How one step's time compares with another's, where both had turns."""
    return Interval.of_ratios(turns[ours].seconds, turns[theirs].seconds) if ours in turns and theirs in turns else None
