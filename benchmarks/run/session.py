"""A benchmark run: checks every case, times comparable ones interleaved, and keeps the rows."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.cases.case import Case
from benchmarks.cases.failures import CaseFailure
from benchmarks.cases.row import Row
from benchmarks.cluster import processes
from benchmarks.explain.memory import states_budget_bytes
from benchmarks.run.clock import Clock
from benchmarks.run.journal import Journal
from benchmarks.run.lifecycle import Lifecycle, RunSettings
from benchmarks.run.machine import matmul_flops_per_second
from benchmarks.run.prepare import Entry, Preparation
from benchmarks.run.record import Record
from benchmarks.run.single_device import ask, has_single_device_server, server
from benchmarks.run.timing_group import TimingGroup
from strategies import Infeasible


class Session:
    """State shared by the cases of a run: corpus, references, matmul throughput, clock and rows.

    First `prepare` every case of a comparison group (cases with equal `Case.single`), then `time` each of them: the
    first call times the whole group interleaved. A closed or garbage-collected session never ends the process.
    """

    def __init__(self, settings: RunSettings, clock: Clock, journal: Journal) -> None:
        self.settings, self.clock, self.journal = settings, clock, journal
        self.matmul_rates: dict[str, float | None] = {}
        self.cases: Sequence[Case] = ()
        self.say: Callable[[str], None] = lambda text: None
        self._reported: set[str] = set()
        self._compiled_ahead: set[Case] = set()
        self._lifecycle = Lifecycle(settings, journal)
        self._preparation = Preparation(
            settings.corpus_N,
            clock,
            settings.memory_profile,
            checkpoints=settings.checkpoints,
            machine=settings.machine,
        )

    @property
    def rows(self) -> dict[str, Row]:
        """Rows of the cases that have ended, by id."""
        return self.journal.rows

    def prepare(self, case: Case) -> None:
        """Compile a case and check it against one device. An early end is recorded in its row."""
        lifecycle = self._lifecycle
        if str(case) in self.rows or str(case) in lifecycle.entries:
            return
        entry = lifecycle.entries[str(case)] = Entry(case, Record.begin(case, compile_only=self.settings.compile_only))
        with lifecycle.failures_end([entry]):
            self._compile_single_ahead(case.single)
            if case != case.single and not self.settings.compile_only:
                self._reference(case.single)  # first, so that a failure of the reference is not attributed to this case
            lifecycle.begin(str(case))
            if given_up := lifecycle.given_up(case):
                raise given_up
            # Closed, to free the state of a case that has failed in another process.
            with closing(self._preparation.stages(entry, compile_only=self.settings.compile_only)) as stages:
                while (facts := processes.run_in_all(partial(self._stage, case, stages))) is not None:
                    entry.record = replace(entry.record, **facts)
                    lifecycle.watchdog.beat(str(case))
        if self.settings.compile_only and not entry.error:
            lifecycle.end(entry, status="ok")

    def _compile_single_ahead(self, single: Case) -> None:
        """Let the single-device process, if there is one, compile a reference at once: nothing is timed now."""
        if single in self._compiled_ahead or self.settings.compile_only or self._lifecycle.given_up(single):
            return
        self._compiled_ahead.add(single)
        if has_single_device_server():
            server.tell("compile", case=single)

    def _stage(self, case: Case, stages: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
        """Run the next stage of a case; None after the last.

        The watchdog restarts then, as other processes may take longer.
        """
        facts = next(stages, None)
        self._lifecycle.watchdog.beat(str(case))
        return facts

    def time(self, case: Case) -> None:
        """Time a case, interleaved with all cases of its comparison group."""
        for other in (case, *self.cases):
            if other.single == case.single:
                self.prepare(other)
        if str(case) not in self.rows:
            comparable = [entry for entry in self._lifecycle.waiting if entry.case.single == case.single]
            with self._lifecycle.failures_end(comparable):
                for timing_group in self._timing_groups(comparable):
                    self._time_group(timing_group)

    def require_good(self, case: Case) -> None:
        """End a pytest test the way its case ended.

        Raises:
            CaseFailure, Infeasible: as recorded in the row, if the exception itself is from an earlier process.
            Exception: what ended the case.
        """
        entry, row = self._lifecycle.entries.get(str(case)), self.rows.get(str(case))
        if row and row.extra_info["status"] != "ok":
            self._reported.add(str(case))
        if row and row.extra_info.get("chip.fits") is False:
            return  # does not fit: a valid result of --topology
        if entry and entry.error:
            raise entry.error
        if row and row.extra_info["status"] == "infeasible":
            raise Infeasible(row.extra_info["reason"])
        if row and row.extra_info["status"] != "ok":
            raise CaseFailure(f"{row.extra_info['status']}: {row.extra_info['reason']}")

    @property
    def prepared(self) -> int:
        """Number of cases that were compiled, or failed to compile."""
        return len(self._lifecycle.entries)

    def failed(self, case: Case) -> bool:
        """Whether a case ended badly and one of its tests has already reported that."""
        row = self.rows.get(str(case))
        return row is not None and row.extra_info["status"] != "ok" and str(case) in self._reported

    def close(self) -> list[Row]:
        """End the run, and return all rows. Prepared cases that have not ended become interrupted."""
        return self._lifecycle.close()

    def _reference(self, single: Case) -> Entry | str:
        """The reference of a workload, or why there is none. A reference that hung before is not tried again."""
        row = self.rows.get(str(single))
        hung = row.extra_info["reason"] if row and row.extra_info["status"] == "timeout" else None
        if why := hung or self._lifecycle.given_up(single):
            return self._preparation.abandon_reference(single, str(why))
        self._lifecycle.begin(str(single))
        return self._preparation.reference(single)

    def _timing_groups(self, group: Sequence[Entry]) -> Iterator[list[Entry]]:
        """Split a comparison group into groups whose states fit into memory together."""
        budget, timing_group = processes.broadcast_first(states_budget_bytes), list[Entry]()
        for entry in group:
            if timing_group and budget is not None and sum(map(state_bytes, [*timing_group, entry])) > budget:
                yield timing_group
                timing_group = []
            timing_group.append(entry)
        yield timing_group

    def _time_group(self, entries: Sequence[Entry]) -> None:
        """Time cases interleaved."""
        first = entries[0].case
        self._lifecycle.begin(str(first))
        rate, reference = self._matmul_rate(first.dtype), self._reference(first.single)
        TimingGroup(
            self.settings, self.clock, self._lifecycle, self._preparation, entries, reference, rate, self.say
        ).run()

    def _matmul_rate(self, dtype: str) -> float | None:
        """FLOPs per second of a matmul on its own, measured once per run and dtype; None if that failed."""
        if dtype not in self.matmul_rates:
            if processes.broadcast_first(has_single_device_server):  # only the first process measures
                self.matmul_rates[dtype] = processes.broadcast_first(partial(_single_device_matmul_rate, dtype))
            else:
                self.matmul_rates[dtype] = matmul_flops_per_second(dtype)
        return self.matmul_rates[dtype]


def _single_device_matmul_rate(dtype: str) -> float | None:
    """FLOPs per second of a matmul in the single-device process; None, with a warning, if that process died."""
    if not has_single_device_server():
        return None
    try:
        return ask("matmul", dtype=dtype)
    except CaseFailure as error:
        warnings.warn(f"no matmul throughput: {error}; rows have no model_flops_utilization", stacklevel=2)
        return None


def state_bytes(entry: Entry) -> int:
    """Memory of a case's training state: on one device, or on the host for all virtual devices together."""
    devices = entry.case.mesh.size if entry.record.virtual_devices else 1
    return devices * (entry.record.memory.argument_bytes or 0)
