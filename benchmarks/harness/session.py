"""A run of the benchmarks: it checks every case, then times those that are compared in turns, and keeps the rows."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.cases import Case
from benchmarks.cluster import processes
from benchmarks.explain.memory import states_budget_bytes
from benchmarks.failures import CaseFailure
from benchmarks.harness.clock import Clock
from benchmarks.harness.heat import Heat
from benchmarks.harness.journal import Journal
from benchmarks.harness.lifecycle import Lifecycle, RunPlan
from benchmarks.harness.prepare import Entry, Preparation
from benchmarks.harness.solo import has_solo, solo
from benchmarks.record import Record
from benchmarks.row import Row
from benchmarks.timing.machine import matmul_flops_per_second
from strategies import Infeasible


class Session:
    """What the cases of a run share: the text, one device's numbers, the machine's speed, the clock, and the rows.

    `prepare` every case of a comparison group (those of equal `Case.single`), then `time` each: the first of these
    times all of the group in turns. A session that is closed, or dropped, ends no process any more.
    """

    def __init__(self, plan: RunPlan, clock: Clock, journal: Journal) -> None:
        self.plan, self.clock, self.journal = plan, clock, journal
        self.matmul_rates: dict[str, float | None] = {}
        self.cases: Sequence[Case] = ()
        self.say: Callable[[str], None] = lambda text: None
        self._told: set[str] = set()
        self._lifecycle, self._preparation = Lifecycle(plan, journal), Preparation(plan.corpus_N, clock)

    @property
    def rows(self) -> dict[str, Row]:
        """The cases that have ended, by id."""
        return self.journal.rows

    def prepare(self, case: Case) -> None:
        """Compile a case and check it against one device; what ends it early ends up in its row."""
        lifecycle = self._lifecycle
        if str(case) in self.rows or str(case) in lifecycle.entries:
            return
        entry = lifecycle.entries[str(case)] = Entry(case, Record.begin(case, compile_only=self.plan.compile_only))
        with lifecycle.ending([entry]):
            if case != case.single and not self.plan.compile_only:
                self._reference(case.single)  # first, so that its end is not taken for this case's
            lifecycle.begin(str(case))
            if died := lifecycle.died(case):
                raise died
            # Closed, for of a case that has failed elsewhere the state is still there.
            with closing(self._preparation.stages(entry, compile_only=self.plan.compile_only)) as stages:
                while (facts := processes.together(partial(self._stage, case, stages))) is not None:
                    entry.record = replace(entry.record, **facts)
                    lifecycle.watchdog.beat(str(case))
        if self.plan.compile_only and not entry.error:
            lifecycle.end(entry, status="ok")

    def _stage(self, case: Case, stages: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
        """What the next stage of a case tells, if there is one. Others may take longer: their time begins now."""
        facts = next(stages, None)
        self._lifecycle.watchdog.beat(str(case))
        return facts

    def time(self, case: Case) -> None:
        """Time a case, in turns with all that are to be compared with it."""
        for other in (case, *self.cases):
            if other.single == case.single:
                self.prepare(other)
        if str(case) not in self.rows:
            group = [entry for entry in self._lifecycle.waiting if entry.case.single == case.single]
            with self._lifecycle.ending(group):
                for heat in self._heats(group):
                    self._time_heat(heat)

    def require_good(self, case: Case) -> None:
        """End a test as its case ended.

        Raises:
            CaseFailure, Infeasible: as the row says, where no exception is at hand: it is an earlier process's row.
            Exception: what ended the case.
        """
        entry, row = self._lifecycle.entries.get(str(case)), self.rows.get(str(case))
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
        return len(self._lifecycle.entries)

    def failed(self, case: Case) -> bool:
        """Whether a case has ended, and not well, and a test of it has said so: another need not."""
        row = self.rows.get(str(case))
        return row is not None and row.extra_info["status"] != "ok" and str(case) in self._told

    def close(self) -> list[Row]:
        """End the run; all rows, those of cases that were not finished among them."""
        return self._lifecycle.close()

    def _reference(self, single: Case) -> Entry | str:
        """One device on the same work, or why there is none. One that hung is not waited for again."""
        row = self.rows.get(str(single))
        hung = row.extra_info["reason"] if row and row.extra_info["status"] == "timeout" else None
        if why := hung or self._lifecycle.died(single):
            return self._preparation.give_up(single, str(why))
        self._lifecycle.begin(str(single))
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

    def _time_heat(self, entries: Sequence[Entry]) -> None:
        """Time cases in turns."""
        first = entries[0].case
        self._lifecycle.begin(str(first))
        rate, reference = self._matmul_rate(first.dtype), self._reference(first.single)
        Heat(self.plan, self.clock, self._lifecycle, self._preparation, entries, reference, rate, self.say).run()

    def _matmul_rate(self, dtype: str) -> float | None:
        """FLOPs per second of a matmul alone, measured once in a run."""
        if dtype not in self.matmul_rates:
            if processes.of_first(has_solo):  # the others take no part in it
                self.matmul_rates[dtype] = processes.of_first(partial(_alone, dtype))
            else:
                self.matmul_rates[dtype] = matmul_flops_per_second(dtype)
        return self.matmul_rates[dtype]


def _alone(dtype: str) -> float | None:
    """FLOPs per second of a matmul in the process of one device; None, with a warning, where it has died."""
    if not has_solo():
        return None
    try:
        return solo().matmul_flops_per_second(dtype)
    except CaseFailure as error:
        warnings.warn(f"no rate of a matmul: {error}; rows have no model_flops_utilization", stacklevel=2)
        return None


def state_bytes(entry: Entry) -> int:
    """Memory that the state of a case takes on a device, or on the host where its devices are virtual."""
    devices = entry.case.mesh.size if entry.record.virtual_devices else 1
    return devices * (entry.record.memory.argument_bytes or 0)
