"""What was found out of a candidate, by formulas and by its compiler: a row of plain values, and lines for a person."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.cases import spelled
from benchmarks.commandline.tables import aligned
from benchmarks.devices.chips import Chip
from benchmarks.explain.estimate import Estimate
from benchmarks.explain.roofline import Roofline
from benchmarks.reporting.terminal import gib, known
from benchmarks.search.bounds import Candidate, foremost
from strategies import Infeasible

PARTS = ("compute", "memory", "network")
SPEED = "tokens_per_second_per_device"


@dataclass(frozen=True)
class Finding:
    """A candidate, its place among the others from 1 on, and what its compiler said.

    Attributes:
        compiled: the columns of its row, see record.py; None where it was not compiled.
        reason: why it was not, where it was to be.
    """

    rank: int
    candidate: Candidate
    chip: Chip
    compiled: Mapping[str, Any] | None = None
    reason: str = ""

    @property
    def status(self) -> str:
        """By formula: "fits", "too_large" or "infeasible"."""
        if self.candidate.bound is None:
            return "infeasible"
        return "fits" if self.candidate.fits else "too_large"

    @property
    def measured(self) -> Estimate | None:
        """What it takes by its compiled program; of one that the compiler gave up just the memory, if it says."""
        said = self.compiled or {}
        needed = said.get("memory.total_bytes") or said.get("chip.needed_bytes")
        if needed is None or isinstance(self.candidate.cost, Infeasible):
            return None
        parts: list[Any] = [said.get(f"roofline.{part}_seconds") for part in PARTS]
        least = None if None in parts else Roofline(*parts)
        if least:
            least = replace(least, compute_seconds=least.compute_seconds / (1 - self.candidate.cost.bubble))
        capacity = said.get("chip.capacity_bytes") or self.chip.memory_bytes
        return Estimate(needed, capacity, least, self.chip.flops_per_second)

    def as_row(self) -> dict[str, Any]:
        """The same keys always; None for what is not known. Bytes and FLOPs are those of one device and one step."""
        case, cost, bound = self.candidate.case, self.candidate.cost, self.candidate.bound
        known_cost = None if isinstance(cost, Infeasible) else cost
        said, taken = self.compiled or {}, self.measured
        return {
            "rank": self.rank if bound else None,
            "status": self.status,
            "reason": str(cost) if isinstance(cost, Infeasible) else "" if self.candidate.fits else str(bound),
            "strategy": case.strategy,
            "mesh": str(case.mesh),
            "microbatches": case.microbatches,
            "remat": case.remat,
            "options": ",".join(spelled(case.options)),
            **self._taken("formula", bound),
            "formula.argument_bytes": known_cost and sum(known_cost.arguments.values()),
            "formula.temp_bytes": known_cost and sum(known_cost.temporaries.values()),
            "formula.sent_bytes": known_cost and known_cost.sent_bytes,
            "formula.flops": known_cost and sum(known_cost.flops.values()) // case.mesh.size,
            "formula.bubble": known_cost and known_cost.bubble,
            **self._taken("compiled", taken),
            "compiled.status": said.get("status"),
            "compiled.reason": said.get("reason") or self.reason or (str(taken) if taken and not taken.fits else None),
            "compiled.argument_bytes": said.get("memory.argument_bytes"),
            "compiled.temp_bytes": said.get("memory.temp_bytes"),
            "compiled.sent_bytes": said.get("compiled.sent_bytes"),
            "compiled.flops": said.get("compiled.flops"),
            "compiled.seconds": said.get("compile_seconds"),
        }

    def _taken(self, source: str, taken: Estimate | None) -> dict[str, Any]:
        case, cost = self.candidate.case, self.candidate.cost
        flops = 0 if isinstance(cost, Infeasible) else cost.model_flops() / case.mesh.size
        tokens = case.batch_size * case.config.sequence / case.mesh.size
        row = (taken or Estimate(0, 0)).as_row(flops, tokens)
        return {f"{source}.{name.partition('.')[2]}": value if taken else None for name, value in row.items()}


def table(findings: Iterable[Finding]) -> list[str]:
    """A line for each, by formula alone."""
    header = (
        *("rank", "strategy", "mesh", "microbatches", "remat", "options", "GiB needed", "GiB sent", "bubble"),
        *("tokens/s/device", "MFU", "bound by"),
    )
    align = ">", "<", "<", ">", "<", "<", ">", ">", ">", ">", ">", "<"
    return aligned([header, *map(_cells, findings)], align)


def _cells(finding: Finding) -> tuple[str, ...]:
    row = finding.as_row()
    least = row[f"formula.{SPEED}"], row["formula.model_flops_utilization"]
    return (
        known("d", row["rank"]),
        *spread(row),
        gib(row["formula.needed_bytes"]),
        gib(row["formula.sent_bytes"]),
        known(".1%", row["formula.bubble"]),
        *map(known, (",.0f", ".1%"), least),
        str(row["reason"] or row["formula.bound"]),
    )


def compiled_table(findings: Iterable[Finding]) -> list[str]:
    """What the compiler made of those that were to be compiled, beside the formulas: how far these are off.

    The fastest as compiled comes first; then what does not fit after all, and last that of which no time is known.
    """
    header = (
        *("rank", "strategy", "mesh", "microbatches", "remat", "options", "GiB needed", "formula", "GiB sent"),
        *("formula", "tokens/s/device", "formula", "MFU", "compiled"),
    )
    align = ">", "<", "<", ">", "<", "<", ">", ">", ">", ">", ">", ">", ">", "<"
    asked = sorted((each for each in findings if each.compiled or each.reason), key=_slowness)
    return aligned([header, *map(_compiled_cells, asked)], align) if asked else []


def _slowness(finding: Finding) -> tuple[float, ...]:
    taken = finding.measured
    if taken is None or taken.roofline is None:
        return (2,)
    row = finding.as_row()
    return 0 if taken.fits else 1, -row[f"compiled.{SPEED}"]


def _compiled_cells(finding: Finding) -> tuple[str, ...]:
    row = finding.as_row()
    unread = "" if row["compiled.sent_bytes"] is not None else ", but its program cannot be read"
    return (
        known("d", row["rank"]),
        *spread(row),
        gib(row["compiled.needed_bytes"]),
        off(row["formula.needed_bytes"], row["compiled.needed_bytes"]),
        gib(row["compiled.sent_bytes"]),
        off(row["formula.sent_bytes"], row["compiled.sent_bytes"]),
        known(",.0f", row[f"compiled.{SPEED}"]),
        off(row[f"formula.{SPEED}"], row[f"compiled.{SPEED}"]),
        known(".1%", row["compiled.model_flops_utilization"]),
        row["compiled.reason"] or f"in {row['compiled.seconds']:.0f} s{unread}",
    )


def off(formula: float | None, compiled: float | None) -> str:
    """By how much a formula is off.

    >>> off(90, 100), off(1, None)
    ('-10.0%', '')
    """
    return f"{formula / compiled - 1:+.1%}" if formula is not None and compiled else ""


def spread(row: Mapping[str, Any]) -> tuple[str, ...]:
    """How a candidate is spread."""
    return row["strategy"], row["mesh"], str(row["microbatches"]), row["remat"], row["options"]


def left_out(findings: Iterable[Finding]) -> Iterator[str]:
    """How many candidates are out by formula for which reason, with an example of each."""
    examples: dict[str, list[Finding]] = {}
    for each in findings:
        if each.status == "infeasible":
            examples.setdefault(kind_of(str(each.candidate.cost)), []).append(each)
        elif each.status == "too_large":
            examples.setdefault("too large", []).append(each)
    for alike in sorted(examples.values(), key=len, reverse=True):
        row = alike[0].as_row()
        which = " ".join(filter(None, (row["strategy"], row["mesh"], f"microbatches={row['microbatches']}")))
        yield f"{len(alike):6} {row['status'].replace('_', ' ')}, as {which}: {row['reason']}"


def kind_of(reason: str) -> str:
    """What reasons have in common that differ in their numbers, and the ways out that they name.

    >>> kind_of("tensor=64 does not divide heads=32; tensor can be 1, 2, 4, 8, 16 or 32")
    'tensor=N does not divide heads=N'
    """
    return re.sub(r"[0-9]+", "N", reason.partition(";")[0])


def shown(findings: Sequence[Finding], everything: bool) -> list[Finding]:
    """Those that a person sees by formulas: all, or of what fits the first of each strategy and set of mesh axes."""
    if everything:
        return list(findings)
    first = set(map(id, foremost(each.candidate for each in findings if each.status == "fits")))
    return [each for each in findings if id(each.candidate) in first]
