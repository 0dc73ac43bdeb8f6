"""Measure cases: check each against one device, time comparable ones interleaved, and keep a row for each.

`python -m benchmarks.run` (program.py) runs an `Engine`, and `pytest benchmarks` is pytest around that program.

    prepare.py        the list of functions that take a case from its options to a checked step
    timing_group.py   comparable steps are timed interleaved, and compared
    states.py         what is known of each case, in `Record`s and `Row`s, and the journal
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from benchmarks.cases.case import Case
from benchmarks.cases.row import Row
from benchmarks.cluster import processes
from benchmarks.devices.attached import states_budget_bytes
from benchmarks.run.compilation import Clock
from benchmarks.run.journal import Journal
from benchmarks.run.machine import matmul_flops_per_second
from benchmarks.run.prepare import Preparation
from benchmarks.run.record import Record
from benchmarks.run.references import References
from benchmarks.run.single_device import has_single_device_server, matmul_rate, server
from benchmarks.run.states import CaseStates, RunSettings
from benchmarks.run.timing_group import TimingGroup


def in_order(cases: Sequence[Case]) -> list[Case]:
    """Cases in the order in which they are measured: comparable ones, those with equal `Case.single`, together."""
    groups = list(dict.fromkeys(case.single for case in cases))
    return sorted(cases, key=lambda case: groups.index(case.single))


class Engine:
    """A run of cases: `run` takes cases, and `rows` has how each of them ended."""

    def __init__(self, settings: RunSettings, journal: Journal, clock: Clock | None = None) -> None:
        self.settings, self.clock = settings, clock or Clock()
        self.states, self.references = CaseStates(settings, journal), References(settings.corpus_N, self.clock)
        self.matmul_rates: dict[str, float | None] = {}  # FLOPs per second of a matmul on its own, by dtype
        self._compiled_ahead: set[Case] = set()

    @property
    def rows(self) -> dict[str, Row]:
        """Rows of the cases that have ended, by id."""
        return self.states.rows

    def run(self, cases: Sequence[Case]) -> None:
        """Check all cases of a comparison group, then time them interleaved; one group after another."""
        for single in dict.fromkeys(case.single for case in cases):
            group = [case for case in cases if case.single == single]
            for case in group:
                self.prepare(case)
            if not self.settings.compile_only:
                self.time(group)

    def prepare(self, case: Case) -> None:
        """Compile a case and check it against one device. An early end is recorded in its row."""
        states, name = self.states, str(case)
        if name in self.rows or name in states.records:
            return
        states.records[name] = Record.begin(case, compile_only=self.settings.compile_only)
        with states.record_failures([case]):
            self._compile_single_ahead(case.single)
            if case != case.single and not self.settings.compile_only:
                self._reference(case.single)  # first, so that a failure of the reference is not attributed to this case
            states.begin(case)
            if given_up := states.given_up(case):
                raise given_up
            for function in Preparation(case, self.settings, self.references).functions:
                states.records[name] = processes.run_in_all(partial(self._advance, function, states.records[name]))
            if self.settings.compile_only:
                states.end(case, status="ok")

    def time(self, cases: Sequence[Case]) -> None:
        """Time prepared cases of a comparison group interleaved. Those that have ended are left out."""
        records = [self.states.records[str(case)] for case in cases if str(case) not in self.rows]
        if not records:
            return
        with self.states.record_failures([record.case for record in records]):
            for timing_group in self._timing_groups(records):
                first = timing_group[0].case
                self.states.begin(first)
                rate, reference = self._matmul_rate(first.dtype), self._reference(first.single)
                TimingGroup(self.states, self.references, timing_group, reference, rate).run()

    def _advance(self, function: Callable[[Record], Record], record: Record) -> Record:
        """Apply a function that prepares a case. The timeout restarts then: other processes may take longer."""
        record = function(record)
        self.states.begin(record.case)
        return record

    def _compile_single_ahead(self, single: Case) -> None:
        """Let the single-device server, if there is one, compile a reference in the background."""
        if single in self._compiled_ahead or self.settings.compile_only or self.states.given_up(single):
            return
        self._compiled_ahead.add(single)
        if has_single_device_server():
            server.tell("compile", case=single)

    def _reference(self, single: Case) -> Record | str:
        """The reference of a group, or why there is none. A reference that hung before is not tried again."""
        row = self.rows.get(str(single))
        hung = row.extra_info["reason"] if row and row.extra_info["status"] == "timeout" else None
        if why := hung or self.states.given_up(single):
            return self.references.abandon_reference(single, str(why))
        self.states.begin(single)
        return self.references.reference(single)

    def _timing_groups(self, group: Sequence[Record]) -> Iterator[list[Record]]:
        """Split a comparison group into groups whose states fit into memory together."""
        budget, timing_group = processes.broadcast_first(states_budget_bytes), list[Record]()
        for record in group:
            together = sum(each.held_bytes("argument") for each in [*timing_group, record])
            if timing_group and budget is not None and together > budget:
                yield timing_group
                timing_group = []
            timing_group.append(record)
        yield timing_group

    def _matmul_rate(self, dtype: str) -> float | None:
        """FLOPs per second of a matmul on its own, measured once per run and dtype; None if that failed."""
        if dtype not in self.matmul_rates:
            remote = processes.broadcast_first(has_single_device_server)  # then only the first process measures
            rate = partial(matmul_rate if remote else matmul_flops_per_second, dtype)
            self.matmul_rates[dtype] = processes.broadcast_first(rate) if remote else rate()
        return self.matmul_rates[dtype]
