"""A run of the benchmarks: it checks every case, then times those that are compared in turns, and keeps the rows."""

import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax

from benchmarks import processes
from benchmarks.attribution import attribute
from benchmarks.cases import Case
from benchmarks.clock import Clock
from benchmarks.commandline.outputs import safe_name
from benchmarks.corpus import Corpus
from benchmarks.failures import CaseFailure, Died, TimedOut, reason_of, status_of
from benchmarks.journal import Journal, JournalError
from benchmarks.machine import matmul_flops_per_second
from benchmarks.measure import Training, steps_per_block
from benchmarks.memory import device_peak_bytes, host_peak_rss_bytes, states_budget_bytes
from benchmarks.prepare import Entry, Preparation
from benchmarks.record import Record
from benchmarks.row import Row
from benchmarks.solo import SoloTraining, has_solo, solo
from benchmarks.statuses import A_TIMEOUT
from benchmarks.turns import MIN_ROUNDS, Ratio, Turns, take_turns
from benchmarks.watchdog import Watchdog
from strategies import Infeasible

CANARY = "canary"
MOST_DEATHS = 2
"""A case that ended so many processes is not tried again."""


@dataclass(frozen=True)
class Plan:
    """How a run goes about its cases.

    Attributes:
        corpus_N: the text.
        case_seconds: how long blocks of a case are timed.
        compile_only: ask the compiler, and run nothing.
        trace: a folder for a profiler's trace of each case, taken apart from what is timed.
        case_timeout: seconds after which a case that gets nowhere has ended.
        attribution: say of each step where its time goes.
        report: the file of the rows; a reason that is too long for a row is written beside it.
    """

    corpus_N: Corpus
    case_seconds: float = 1.0
    compile_only: bool = False
    trace: Path | None = None
    case_timeout: float = 600.0
    attribution: bool = False
    report: Path | None = None


class Session:
    """What the cases of a run share: the text, one device's numbers, the machine's speed, the clock, and the rows.

    `prepare` every case of a comparison group (those of equal `Case.single`), then `time` each: the first of these
    times all of the group in turns. A session that is closed, or dropped, ends no process any more.
    """

    def __init__(self, plan: Plan, clock: Clock, journal: Journal) -> None:
        self.plan, self.clock, self.journal = plan, clock, journal
        self.matmul_rates: dict[str, float | None] = {}
        self.cases: Sequence[Case] = ()
        self.say: Callable[[str], None] = lambda text: None
        self._entries: dict[str, Entry] = {}
        self._told: set[str] = set()
        self._preparation = Preparation(plan.corpus_N, clock)
        time_out = weakref.WeakMethod(self._time_out)  # the watchdog's thread must not keep the session
        self._watchdog = Watchdog(plan.case_timeout, lambda case: end(case) if (end := time_out()) else None)
        weakref.finalize(self, self._watchdog.stop)

    @property
    def rows(self) -> dict[str, Row]:
        """The cases that have ended, by id."""
        return self.journal.rows

    def prepare(self, case: Case) -> None:
        """Compile a case and check it against one device; what ends it early ends up in its row."""
        if str(case) in self.rows or str(case) in self._entries:
            return
        entry = self._entries[str(case)] = Entry(case, Record.begin(case, compile_only=self.plan.compile_only))
        with self._ending([entry]):
            if case != case.single and not self.plan.compile_only:
                self._reference(case.single)  # first, so that its end is not taken for this case's
            self._begin(str(case))
            if died := self._died(case):
                raise died
            # Closed, for of a case that has failed elsewhere the state is still there.
            with closing(self._preparation.stages(entry, compile_only=self.plan.compile_only)) as stages:
                while (facts := processes.together(partial(self._stage, case, stages))) is not None:
                    entry.record = replace(entry.record, **facts)
                    self._watchdog.beat(str(case))
        if self.plan.compile_only and not entry.error:
            self._end(entry, status="ok")

    def _stage(self, case: Case, stages: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
        """What the next stage of a case tells, if there is one. Others may take longer: their time begins now."""
        facts = next(stages, None)
        self._watchdog.beat(str(case))
        return facts

    def time(self, case: Case) -> None:
        """Time a case, in turns with all that are to be compared with it."""
        for other in (case, *self.cases):
            if other.single == case.single:
                self.prepare(other)
        if str(case) not in self.rows:
            group = [entry for entry in self._waiting() if entry.case.single == case.single]
            with self._ending(group):
                for heat in self._heats(group):
                    self._time_heat(heat)

    def require_good(self, case: Case) -> None:
        """End a test as its case ended.

        Raises:
            CaseFailure, Infeasible: as the row says, where no exception is at hand: it is an earlier process's row.
            Exception: what ended the case.
        """
        entry, row = self._entries.get(str(case)), self.rows.get(str(case))
        if row and row.extra_info["status"] != "ok":
            self._told.add(str(case))
        if row and row.extra_info.get("chip.fits") is False:
            return  # a result, and what was asked for
        if entry and entry.error:
            raise entry.error
        if row and row.extra_info["status"] == "infeasible":
            raise Infeasible(row.extra_info["reason"])
        if row and row.extra_info["status"] != "ok":
            raise CaseFailure(f"{row.extra_info['status']}: {row.extra_info['reason']}")

    @property
    def prepared(self) -> int:
        """How many cases have been compiled, or have failed to be."""
        return len(self._entries)

    def failed(self, case: Case) -> bool:
        """Whether a case has ended, and not well, and a test of it has said so: another need not."""
        row = self.rows.get(str(case))
        return row is not None and row.extra_info["status"] != "ok" and str(case) in self._told

    def close(self) -> list[Row]:
        """End the run; all rows, those of cases that were not finished among them."""
        self._watchdog.stop()
        self.journal.stop()
        stopped = {"status": "interrupted", "reason": "the run was stopped before the case was timed"}
        return [*self.rows.values(), *(replace(entry.record, **stopped).as_row() for entry in self._waiting())]

    def _waiting(self) -> list[Entry]:
        """Those prepared, not yet ended."""
        return [entry for name, entry in self._entries.items() if name not in self.rows]

    def _reference(self, single: Case) -> Entry | str:
        """One device on the same work, or why there is none. One that hung is not waited for again."""
        row = self.rows.get(str(single))
        hung = row.extra_info["reason"] if row and row.extra_info["status"] == "timeout" else None
        if why := hung or self._died(single):
            return self._preparation.give_up(single, str(why))
        self._begin(str(single))
        return self._preparation.reference(single)

    def _heats(self, group: Sequence[Entry]) -> Iterator[list[Entry]]:
        """Those of a group that are timed together: all, or as many as memory holds the states of."""
        budget, heat = processes.of_first(states_budget_bytes), list[Entry]()
        for entry in group:
            if heat and budget is not None and sum(map(state_bytes, [*heat, entry])) > budget:
                yield heat
                heat = []
            heat.append(entry)
        yield heat

    def _time_heat(self, heat: Sequence[Entry]) -> None:
        """Time cases in turns, and with them `single`, and one step a second time, as the canary."""
        self._begin(str(heat[0].case))
        rate = self._matmul_rate(heat[0].case.dtype)
        reference = self._reference(heat[0].case.single)
        twin = heat[0] if isinstance(reference, str) else reference
        # The canary last: it goes without where memory is short.
        entrants = {str(twin.case): twin} | {str(entry.case): entry for entry in heat} | {CANARY: twin}
        trainings, turns = dict[str, Training | SoloTraining](), dict[str, Turns]()
        for name, entry in entrants.items():
            self._begin(str(entry.case))
            try:
                training = processes.together(partial(self._start, entry))
                turns[name], trainings[name] = Turns(steps_per_block(training)), training
            except Exception as error:
                if name != CANARY:
                    self._leave_out(entry, heat, error)
        self.say(f"timing {len(heat)} steps of the same work in turns")
        finish = partial(self._finish_heat, heat, trainings, turns, reference, rate)
        try:
            with self.clock.phase("timed"):
                budget_seconds = self.plan.case_seconds * len(trainings)
                take_turns(trainings, turns, budget_seconds, lambda name: self._begin(str(entrants[name].case)))
        except BaseException:  # after Ctrl-C, too, what has had turns enough is measured, where no others must agree
            if processes.count() == 1:
                finish()
            raise
        finish()
        for entry in heat:
            if not entry.error:
                self._look_closer(entry, trainings[str(entry.case)])
        for training in trainings.values():
            if isinstance(training, SoloTraining):
                training.drop()

    def _leave_out(self, entry: Entry, heat: Sequence[Entry], error: Exception) -> None:
        """End a case that cannot be started. If it is a reference without a row, the others' rows say why."""
        if entry in heat:
            self._fail(entry, error)
            return
        why = f"not compared with single, which could not be timed: {reason_of(error)}"
        for each in heat:
            each.record = replace(each.record, reason=each.record.reason or why)

    def _start(self, entry: Entry) -> Training | SoloTraining:
        """A training run to be timed; that of one device in a process of its own, where devices are virtual.

        Raises:
            Mismatch: it computes something else there.
        """
        if entry.case != entry.case.single or not has_solo():
            return self._preparation.start(entry)
        training = solo().train(entry.case, self.plan.corpus_N)
        self._preparation.require_equal(training.first_steps, entry.case)
        return training

    def _finish_heat(
        self,
        heat: Sequence[Entry],
        trainings: Mapping[str, Training | SoloTraining],
        turns: Mapping[str, Turns],
        reference: Entry | str,
        rate: float | None,
    ) -> None:
        """Compare what was timed in turns, and end the cases."""
        twin = str(heat[0].case if isinstance(reference, str) else reference.case)
        canary = paired(turns, CANARY, twin)
        for entry in heat:
            relative = None if isinstance(reference, str) else paired(turns, str(entry.case), twin)
            by_hand = paired(turns, str(entry.case), str(entry.case.twin))
            ratios = {"relative_to_single": relative, "relative_to_twin": by_hand, "canary": canary}
            own_process = any(isinstance(training, SoloTraining) for training in trainings.values())
            facts = {"matmul_flops_per_second": rate, "single_in_own_process": own_process}
            entry.record = replace(entry.record, **ratios, **facts)
            if str(entry.case) in trainings:
                self._finish(entry, trainings[str(entry.case)], turns[str(entry.case)])

    def _finish(self, entry: Entry, training: Training | SoloTraining, turns: Turns) -> None:
        """Look at what came out of the timed steps, and end the case, unless it had too few turns."""
        try:
            if turns.error:
                raise turns.error
            processes.together(partial(training.require_finite, "after the timed blocks"))
        except Exception as error:
            self._fail(entry, error)
            return
        if len(turns.seconds) >= MIN_ROUNDS:
            peaks = {"device_peak_bytes": device_peak_bytes(), "host_peak_rss_bytes": host_peak_rss_bytes()}
            self._end(entry, status="ok", timed=turns, memory=replace(entry.record.memory, **peaks))

    def _look_closer(self, entry: Entry, training: Training | SoloTraining) -> None:
        """Trace a step that was timed, and say where its time goes. Its row is whole without, should that fail."""
        if not (self.plan.trace or self.plan.attribution):
            return
        if isinstance(training, SoloTraining):
            training = self._preparation.start(entry)
        case, step, timed, seconds = str(entry.case), entry.step, entry.record.timed, entry.record.step_seconds_median
        assert step
        assert timed
        assert seconds
        if self.plan.trace:
            try:
                trace(self.plan.trace / case, partial(training.block, timed.steps_per_block))
            except Exception as error:
                warnings.warn(f"{case}: its trace is not written: {reason_of(error)}", stacklevel=2)
        if self.plan.attribution:
            self.say(f"{case}: timing variants of the step")
            budget_seconds = self.plan.case_seconds
            try:
                with self.clock.phase("attribution"):
                    parts = attribute(entry.case, step, training, seconds, budget_seconds, lambda: self._begin(case))
                self._end(entry, attribution=parts)
            except Exception as error:
                warnings.warn(f"{case}: where its time goes is not known: {reason_of(error)}", stacklevel=2)
            finally:
                self._watchdog.rest()

    def _matmul_rate(self, dtype: str) -> float | None:
        """FLOPs per second of a matmul alone, measured once in a run."""
        if dtype not in self.matmul_rates:
            if processes.of_first(has_solo):  # the others take no part in it
                self.matmul_rates[dtype] = processes.of_first(partial(_alone, dtype))
            else:
                self.matmul_rates[dtype] = matmul_flops_per_second(dtype)
        return self.matmul_rates[dtype]

    def _begin(self, case: str) -> None:
        self._watchdog.beat(case)
        self.journal.begin(case)

    def _end(self, entry: Entry, **facts: Any) -> None:
        """A case has ended: its row is final."""
        entry.record = replace(entry.record, **facts)
        self.journal.finish(entry.record.as_row())
        self._watchdog.rest()

    def _fail(self, entry: Entry, error: Exception) -> None:
        traceback.clear_frames(error.__traceback__)  # they hold states, and the next case needs their memory
        entry.error = error
        self._end(entry, status=status_of(error), reason=reason_of(error, self._beside_report(entry.case)))

    def _beside_report(self, case: Case) -> Path | None:
        """Where a text on a case is kept, if a report is; the first of several processes writes it."""
        report = self.plan.report if processes.is_first() else None
        return report and report.with_name(f"{safe_name(f'{report.stem}.{case}')}.txt")

    @contextmanager
    def _ending(self, entries: Sequence[Entry]) -> Iterator[None]:
        """What goes wrong inside ends these cases, and not the run; Ctrl-C ends the run, and a disk that is full."""
        try:
            yield
        except JournalError:
            raise
        except Exception as error:
            for entry in entries:
                if str(entry.case) not in self.rows:
                    self._fail(entry, error)

    def _died(self, case: Case) -> CaseFailure | None:
        """Whether a case has ended too many processes: one is enough where it hung, for that takes long to find."""
        deaths = self.journal.deaths.get(str(case), [])
        if A_TIMEOUT in deaths:
            return TimedOut(self._silence())
        if len(deaths) < MOST_DEATHS:
            return None
        return Died(f"{len(deaths)} processes died while it ran, the last of {deaths[-1]}")

    def _silence(self) -> str:
        waited = f"nothing was heard of it for {self.plan.case_timeout:g} seconds"
        return f"{waited}; --case-timeout sets how long to wait"

    def _time_out(self, case: str) -> None:
        """The last words of the watchdog, in its thread, while the case hangs in this one's.

        A reference that hangs has no row to say so; it counts as dead.
        """
        if case in self._entries and case not in self.rows:
            self.journal.finish(replace(self._entries[case].record, status="timeout", reason=self._silence()).as_row())


def _alone(dtype: str) -> float | None:
    """FLOPs per second of a matmul in the process of one device; None, with a warning, where it has died."""
    if not has_solo():
        return None
    try:
        return solo().matmul_flops_per_second(dtype)
    except CaseFailure as error:
        warnings.warn(f"no rate of a matmul: {error}; rows have no model_flops_utilization", stacklevel=2)
        return None


def trace(folder: Path, block: Callable[[], float]) -> None:
    """Have the profiler look at a block, in every process.

    Raises:
        Exception: in one of them it cannot write what it sees, or the block failed.
    """

    def open_trace() -> None:
        folder.mkdir(parents=True, exist_ok=True)  # the profiler would ask for it when the block has ended
        traced.enter_context(jax.profiler.trace(str(folder)))

    with ExitStack() as traced:
        processes.together(open_trace)
        processes.together(block)
        processes.together(traced.close)


def state_bytes(entry: Entry) -> int:
    """Memory that the state of a case takes on a device, or on the host where its devices are virtual."""
    devices = entry.case.mesh.size if entry.record.virtual_devices else 1
    return devices * (entry.record.memory.argument_bytes or 0)


def paired(turns: Mapping[str, Turns], ours: str, theirs: str) -> Ratio | None:
    """How one step's time compares with another's, where both had turns."""
    return Ratio.of_pairs(turns[ours].seconds, turns[theirs].seconds) if ours in turns and theirs in turns else None
