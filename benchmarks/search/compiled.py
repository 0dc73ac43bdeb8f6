"""Candidates as compiled: exposed communication of the compiler's schedule instead of what predictions assume.

The compiled program's events run on the same queues as those of the formulas (`simulate.program.replay`), at the same
machine's rates. Only their exposed communication replaces that of the prediction. A program tells no dims of matmuls
and no launches, so its compute would be priced otherwise than that of candidates that were not compiled.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cases.case import Case
from benchmarks.cli.tables import aligned, wrapped
from benchmarks.devices.chips import GIB
from benchmarks.run.pool import Outcome
from benchmarks.search.compiling import EXPOSED, Compiler
from benchmarks.search.ranking import Candidate, Ranking, layout_cells
from benchmarks.simulate.queues import EXPOSED as EXPOSED_LANE
from benchmarks.simulate.step import LANES

SENDING = tuple(name for name, lane in LANES.items() if lane == EXPOSED_LANE)
"""Parts of a prediction that are exposed communication."""
TITLE = "as compiled: after each prediction, the same number by the compiled program and its schedule"


@dataclass(frozen=True)
class CompiledCandidate:
    """A candidate that was compiled, or meant to be.

    Attributes:
        candidate: with its prediction.
        needed_bytes: memory of a device, as compiled; None if it is not known.
        exposed_seconds: communication that the device waits for, by its compiled schedule; None if that is not known.
        reason: why there is no such step; empty if there is one.
    """

    candidate: Candidate
    needed_bytes: int | None
    exposed_seconds: float | None
    reason: str

    @property
    def predicted_exposed_seconds(self) -> float:
        """Exposed communication by the prediction."""
        return sum(self.candidate.timeline.parts.get(name, 0.0) for name in SENDING)

    @property
    def step_seconds(self) -> float | None:
        """The prediction with the exposed communication of the compiled schedule; None if that is not known."""
        if self.reason or self.exposed_seconds is None:
            return None
        return self.candidate.step_seconds - self.predicted_exposed_seconds + self.exposed_seconds

    def as_row(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "compiled.seconds": self.step_seconds,
            "compiled.needed_bytes": self.needed_bytes,
            "compiled.exposed_seconds": self.exposed_seconds,
            "compiled.predicted_exposed_seconds": self.predicted_exposed_seconds,
            "compiled.reason": self.reason,
        }


def compile_best(ranking: Ranking, count: int, compiler: Compiler) -> list[CompiledCandidate]:
    """Compile the best of each strategy and set of mesh axes, then the best of all: similar ones tell little more.

    Returns:
        Fastest first, and last those without time.
    """
    by_case = {candidate.case: candidate for candidate in (*ranking.best_per_layout, *ranking.fitting)}
    chosen = list(by_case.values())[:count]
    return compiled(chosen, compiler.outcomes([candidate.case for candidate in chosen]))


def compiled(candidates: Iterable[Candidate], outcomes: Iterable[Outcome[Case]]) -> list[CompiledCandidate]:
    """Candidates with the outcomes of their compilations, fastest first, and last those without time."""
    by_case = {candidate.case: candidate for candidate in candidates}
    found = []
    for outcome in outcomes:
        columns = outcome.result or {}
        failed = columns.get("status", "ok") != "ok" and (columns.get("reason") or columns["status"])
        unread = "" if columns.get(EXPOSED) is not None else "its schedule cannot be read"
        reason = outcome.reason or failed or unread
        needed = columns.get("chip.needed_bytes")
        found.append(CompiledCandidate(by_case[outcome.task], needed, columns.get(EXPOSED), reason))
    return sorted(found, key=lambda one: (one.step_seconds is None, one.step_seconds or one.candidate.step_seconds))


def table(found: Sequence[CompiledCandidate], ranking: Ranking) -> list[str]:
    """The lines of the table of compiled candidates, and below it why some have no time."""
    rows: list[tuple[str, ...]] = [
        ("rank", "strategy", "mesh", "options", "GiB", "compiled", "exposed ms", "compiled", "ms", "compiled")
    ]
    for result in found:
        candidate = result.candidate
        times = result.predicted_exposed_seconds, result.exposed_seconds, candidate.step_seconds, result.step_seconds
        rows.append(
            (
                str(ranking.ranks[candidate.case]),
                *layout_cells(candidate.case),
                f"{candidate.needed_bytes / GIB:.1f}",
                "" if result.needed_bytes is None else f"{result.needed_bytes / GIB:.1f}",
                *("" if seconds is None else f"{1e3 * seconds:,.0f}" for seconds in times),
            )
        )
    failed = [f"rank {ranking.ranks[result.candidate.case]}: {result.reason}" for result in found if result.reason]
    return [*wrapped(TITLE), *aligned(rows, [*"<<<<", *">" * 6]), *(part for line in failed for part in wrapped(line))]
