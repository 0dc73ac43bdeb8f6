"""Measure cases: check each against one device, time comparable ones interleaved, and keep a row for each.

`python -m benchmarks.run` (program.py) runs an `Engine`, and `pytest benchmarks` is pytest around that program.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial

from benchmarks.cases.case import Case
from benchmarks.cases.row import Row
from benchmarks.cluster import processes
from benchmarks.explain.memory import states_budget_bytes
from benchmarks.run.compilation import Clock
from benchmarks.run.journal import Journal
from benchmarks.run.ledger import Ledger, RunSettings
from benchmarks.run.machine import matmul_flops_per_second
from benchmarks.run.prepare import Preparation
from benchmarks.run.record import Record
from benchmarks.run.single_device import has_single_device_server, matmul_rate, server
from benchmarks.run.timing_group import TimingGroup


def in_order(cases: Sequence[Case]) -> list[Case]:
    """Cases in the order in which they are measured: comparable ones, those with equal `Case.single`, together."""
    groups = list(dict.fromkeys(case.single for case in cases))
    return sorted(cases, key=lambda case: groups.index(case.single))


class Engine:
    """A run of cases.

    Attributes:
        clock: of the run.
        say: prints a line about progress.
        ledger: the state of the cases.
        matmul_rates: FLOPs per second of a matmul on its own, by dtype.
    """

    def __init__(
        self,
        settings: RunSettings,
        journal: Journal,
        clock: Clock | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.clock, self.say = clock or Clock(), say
        self.ledger = Ledger(settings, journal)
        self.matmul_rates: dict[str, float | None] = {}
        self._compiled_ahead: set[Case] = set()
        self._preparation = Preparation(settings, self.clock)

    @property
    def settings(self) -> RunSettings:
        """Settings of the run."""
        return self.ledger.settings

    @property
    def rows(self) -> dict[str, Row]:
        """Rows of the cases that have ended, by id."""
        return self.ledger.rows

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
        ledger, name = self.ledger, str(case)
        if name in self.rows or name in ledger.records:
            return
        ledger.records[name] = Record.begin(case, compile_only=self.settings.compile_only)
        with ledger.record_failures([case]):
            self._compile_single_ahead(case.single)
            if case != case.single and not self.settings.compile_only:
                self._reference(case.single)  # first, so that a failure of the reference is not attributed to this case
            ledger.begin(case)
            if given_up := ledger.given_up(case):
                raise given_up
            # Closed, to free the state of a case that has failed in another process.
            with closing(self._preparation.stages(case)) as stages:
                while record := processes.run_in_all(partial(self._stage, case, stages)):
                    ledger.records[name] = record
            if self.settings.compile_only:
                ledger.end(case, status="ok")

    def time(self, cases: Sequence[Case]) -> None:
        """Time prepared cases of a comparison group interleaved. Those that have ended are left out."""
        records = [self.ledger.records[str(case)] for case in cases if str(case) not in self.rows]
        if not records:
            return
        with self.ledger.record_failures([record.case for record in records]):
            for timing_group in self._timing_groups(records):
                first = timing_group[0].case
                self.ledger.begin(first)
                rate, reference = self._matmul_rate(first.dtype), self._reference(first.single)
                TimingGroup(self.ledger, self._preparation, timing_group, reference, rate, self.say).run()

    def _stage(self, case: Case, stages: Iterator[Record]) -> Record | None:
        """Run the next stage of a case; None after the last.

        The timeout restarts then, as other processes may take longer.
        """
        record = next(stages, None)
        self.ledger.begin(case)
        return record

    def _compile_single_ahead(self, single: Case) -> None:
        """Let the single-device server, if there is one, compile a reference in the background."""
        if single in self._compiled_ahead or self.settings.compile_only or self.ledger.given_up(single):
            return
        self._compiled_ahead.add(single)
        if has_single_device_server():
            server.tell("compile", case=single)

    def _reference(self, single: Case) -> Record | str:
        """The reference of a group, or why there is none. A reference that hung before is not tried again."""
        row = self.rows.get(str(single))
        hung = row.extra_info["reason"] if row and row.extra_info["status"] == "timeout" else None
        if why := hung or self.ledger.given_up(single):
            return self._preparation.references.abandon_reference(single, str(why))
        self.ledger.begin(single)
        return self._preparation.references.reference(single)

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
