"""Results of the search per candidate, from formulas and from the compiler, as rows and as tables."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.cases.case import option_texts
from benchmarks.commandline.tables import aligned
from benchmarks.devices.chips import Chip
from benchmarks.explain.estimate import ChipEstimate
from benchmarks.run.terminal import gib, known
from benchmarks.search.candidates import layout_cells
from benchmarks.search.ranking import Candidate, best_per_layout
from benchmarks.simulate.program import LANES as REPLAYED
from benchmarks.simulate.queues import Timeline
from benchmarks.simulate.roofline import Roofline
from strategies import Infeasible

PARTS = ("compute", "memory", "network")
SPEED = "tokens_per_second_per_device"
RATES = "step_seconds", SPEED, "model_flops_utilization"
"""Columns of a compiled candidate that are simulated from its schedule, where that is known."""


@dataclass(frozen=True)
class Finding:
    """A candidate with its rank and its compilation result.

    Attributes:
        rank: position among all candidates, from 1.
        candidate: the case with what formulas say of it.
        chip: specifications of the devices.
        compiled: columns of its row (record.py); None if it was not compiled.
        reason: why it was not compiled although it was meant to be.
    """

    rank: int
    candidate: Candidate
    chip: Chip
    compiled: Mapping[str, Any] | None = None
    reason: str = ""

    @property
    def status(self) -> str:
        """By formula: "fits", "too_large" or "infeasible"."""
        if self.candidate.estimate is None:
            return "infeasible"
        return "fits" if self.candidate.fits else "too_large"

    @property
    def compiled_estimate(self) -> ChipEstimate | None:
        """Memory, least time and replayed time of the compiled program.

        If the compiler gave up, only the memory, if it was reported. None if nothing is known.
        """
        columns = self.compiled or {}
        needed = columns.get("memory.total_bytes") or columns.get("chip.needed_bytes")
        if needed is None or isinstance(self.candidate.cost, Infeasible):
            return None
        parts: list[Any] = [columns.get(f"roofline.{part}_seconds") for part in PARTS]
        least = None if None in parts else Roofline(*parts)
        if least:
            least = replace(least, compute_seconds=least.compute_seconds / (1 - self.candidate.cost.bubble))
        replayed: list[Any] = [columns.get(f"replay.{part}_seconds") for part in REPLAYED]
        replay = None if None in replayed else Timeline(dict(zip(REPLAYED, replayed, strict=True)))
        capacity = columns.get("chip.capacity_bytes") or self.chip.memory_bytes
        return ChipEstimate(needed, capacity, least, self.chip.flops_per_second, replay)

    def as_row(self) -> dict[str, Any]:
        """The row of a candidate: always the same keys, None for unknown values.

        Bytes and FLOPs are per device and step.
        """
        case, cost, by_formula = self.candidate.case, self.candidate.cost, self.candidate.estimate
        known_cost = None if isinstance(cost, Infeasible) else cost
        columns, estimate = self.compiled or {}, self.compiled_estimate
        return {
            "rank": self.rank if by_formula else None,
            "status": self.status,
            "reason": str(cost) if isinstance(cost, Infeasible) else "" if self.candidate.fits else str(by_formula),
            "strategy": case.strategy,
            "mesh": str(case.mesh),
            "microbatches": case.microbatches,
            "remat": case.remat,
            "options": ",".join(option_texts(case.options)),
            **self._estimate_columns("formula", by_formula),
            **self._predicted_columns(),
            "formula.argument_bytes": known_cost and sum(known_cost.arguments.values()),
            "formula.temp_bytes": known_cost and sum(known_cost.temporaries.values()),
            "formula.sent_bytes": known_cost and known_cost.sent_bytes,
            "formula.flops": known_cost and sum(known_cost.flops.values()) // case.mesh.size,
            "formula.bubble": known_cost and known_cost.bubble,
            **self._estimate_columns("compiled", estimate),
            "compiled.exposed_seconds": columns.get("replay.exposed_seconds"),
            "compiled.status": columns.get("status"),
            "compiled.reason": columns.get("reason")
            or self.reason
            or (str(estimate) if estimate and not estimate.fits else None),
            "compiled.argument_bytes": columns.get("memory.argument_bytes"),
            "compiled.temp_bytes": columns.get("memory.temp_bytes"),
            "compiled.sent_bytes": columns.get("compiled.sent_bytes"),
            "compiled.flops": columns.get("compiled.flops"),
            "compiled.seconds": columns.get("compile_seconds"),
        }

    def _work(self) -> tuple[float, float]:
        """Model FLOPs and tokens of a device per step."""
        case, cost = self.candidate.case, self.candidate.cost
        flops = 0 if isinstance(cost, Infeasible) else cost.model_flops() / case.mesh.size
        return flops, case.batch_size * case.config.sequence / case.mesh.size

    def _predicted_columns(self) -> dict[str, Any]:
        seconds, (flops, tokens) = self.candidate.predicted_seconds, self._work()
        rates = seconds, seconds and tokens / seconds, seconds and flops / seconds / self.chip.flops_per_second
        return {f"predicted.{name}": value for name, value in zip(RATES, rates, strict=True)}

    def _estimate_columns(self, source: str, estimate: ChipEstimate | None) -> dict[str, Any]:
        row = (estimate or ChipEstimate(0, 0)).as_row(*self._work())
        columns = {name.partition(".")[2]: value for name, value in row.items() if not name.startswith("replay.")}
        replayed = {name: row[f"replay.{name}"] for name in RATES} if estimate and estimate.replay else {}
        return {f"{source}.{name}": value if estimate else None for name, value in (columns | replayed).items()}


def table(findings: Iterable[Finding]) -> list[str]:
    """Table of the findings by formula, with the MFU of the predicted time, or else of the roofline."""
    header = (
        *("rank", "strategy", "mesh", "options", "GiB needed", "GiB sent", "bubble"),
        *("predicted ms", "roofline ms", "MFU", "bound by"),
    )
    return aligned([header, *map(_cells, findings)], [*"><<<", *">" * 6, "<"])


def _cells(finding: Finding) -> tuple[str, ...]:
    row = finding.as_row()
    source = "formula" if row["predicted.step_seconds"] is None else "predicted"
    times = row["predicted.step_seconds"], row["formula.step_seconds"]
    return (
        known("d", row["rank"]),
        *layout_cells(finding.candidate.case),
        gib(row["formula.needed_bytes"]),
        gib(row["formula.sent_bytes"]),
        known(".1%", row["formula.bubble"]),
        *(known(",.1f", seconds and 1e3 * seconds) for seconds in times),
        known(".1%", row[f"{source}.model_flops_utilization"]),
        str(row["reason"] or row["formula.bound"]),
    )


def compiled_table(findings: Iterable[Finding]) -> list[str]:
    """Table of the compiled candidates with the relative error of the formulas; empty if none were to be compiled.

    Their times are simulated from the compiled schedule, where it is known. The fastest compiled candidate comes first.
    Those that do not fit follow, and last those with unknown time.
    """
    header = (
        *("rank", "strategy", "mesh", "options", "GiB needed", "formula", "GiB sent", "formula"),
        *("tokens/s a device", "formula", "MFU", "compiled"),
    )
    asked = sorted((each for each in findings if each.compiled or each.reason), key=_slowness)
    return aligned([header, *map(_compiled_cells, asked)], [*"><<<", *">" * 7, "<"]) if asked else []


def _slowness(finding: Finding) -> tuple[float, ...]:
    """Sort key of compiled candidates, smaller is better."""
    estimate = finding.compiled_estimate
    if estimate is None or estimate.roofline is None:
        return (2,)
    row = finding.as_row()
    return 0 if estimate.fits else 1, -row[f"compiled.{SPEED}"]


def _compiled_cells(finding: Finding) -> tuple[str, ...]:
    row = finding.as_row()
    unread = "" if row["compiled.sent_bytes"] is not None else ", but its program cannot be parsed"
    return (
        known("d", row["rank"]),
        *layout_cells(finding.candidate.case),
        gib(row["compiled.needed_bytes"]),
        relative_error(row["formula.needed_bytes"], row["compiled.needed_bytes"]),
        gib(row["compiled.sent_bytes"]),
        relative_error(row["formula.sent_bytes"], row["compiled.sent_bytes"]),
        known(",.0f", row[f"compiled.{SPEED}"]),
        relative_error(row[f"formula.{SPEED}"], row[f"compiled.{SPEED}"]),
        known(".1%", row["compiled.model_flops_utilization"]),
        row["compiled.reason"] or f"in {row['compiled.seconds']:.0f} s{unread}",
    )


def relative_error(formula: float | None, compiled: float | None) -> str:
    """Relative error of a formula, as text; empty if a value is unknown.

    >>> relative_error(90, 100), relative_error(1, None)
    ('-10.0%', '')
    """
    return f"{formula / compiled - 1:+.1%}" if formula is not None and compiled else ""


def rejections(findings: Iterable[Finding]) -> Iterator[str]:
    """Lines with the number of candidates that are rejected by formula for each reason, with an example."""
    examples: dict[str, list[Finding]] = {}
    for each in findings:
        if each.status == "infeasible":
            examples.setdefault(reason_template(str(each.candidate.cost)), []).append(each)
        elif each.status == "too_large":
            examples.setdefault("too large", []).append(each)
    for similar in sorted(examples.values(), key=len, reverse=True):
        row = similar[0].as_row()
        which = " ".join(filter(None, (row["strategy"], row["mesh"], f"microbatches={row['microbatches']}")))
        yield f"{len(similar):6} {row['status'].replace('_', ' ')}, as {which}: {row['reason']}"


def reason_template(reason: str) -> str:
    """A reason without its numbers and remedies, to group similar reasons.

    >>> reason_template("tensor=64 does not divide heads=32; tensor can be 1, 2, 4, 8, 16 or 32")
    'tensor=N does not divide heads=N'
    """
    return re.sub(r"[0-9]+", "N", reason.partition(";")[0])


def displayed(findings: Sequence[Finding], everything: bool) -> list[Finding]:
    """Findings to print by formula: all, or the best that fits for each strategy and set of mesh axes."""
    if everything:
        return list(findings)
    first = set(map(id, best_per_layout(each.candidate for each in findings if each.status == "fits")))
    return [each for each in findings if id(each.candidate) in first]
