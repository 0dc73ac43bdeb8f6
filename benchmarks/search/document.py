"""What a search found as JSON values."""

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.cases.case import Case
from benchmarks.devices.placement import device_count
from benchmarks.search.compiling import versions
from benchmarks.search.ranking import Candidate, layout_row, usable_bytes
from benchmarks.search.report import Result
from benchmarks.simulate.intervals import interval
from strategies.model.gpt import param_count

SCHEMA_VERSION = 3


def document(results: Sequence[Result]) -> dict[str, Any]:
    """What was found as JSON values: facts of the first result, and a row for each candidate of all of them."""
    result = results[0]
    space, machine, ranking = result.space, result.machine, result.ranking
    return {
        "kind": "search",
        "schema_version": SCHEMA_VERSION,
        "topology": str(space.topology),
        "devices": device_count(space.topology),
        "preset": space.preset,
        "param_count": param_count(space.config),
        "global_batch_sequences": space.batch_size,
        "sequence_tokens": space.config.sequence,
        "dtype": space.dtype,
        "machine": machine.name if result.predicted else None,
        "error": machine.error if result.predicted else None,
        "error_assumed": machine.assumed,
        "interval": [*interval(machine, space.config)] if result.predicted else None,
        "capacity_bytes": machine.chip.memory_bytes,
        "usable_bytes": int(usable_bytes(machine)),
        "tied": ranking.tied if result.predicted and not result.scaling else None,
        "nearest": [run.as_row() for run in result.nearest],
        "versions": versions(space.topology),
        "candidates": [row for found in results for row in _rows(found)],
    }


COLUMNS = (
    *("scaling", "topology", "devices", "global_batch_sequences"),
    *("rank", "status", "reason"),
    *("needed_bytes", "sent_bytes", "bubble"),
    *("predicted_seconds", "tokens_per_second", "model_flops_utilization", "bound_seconds", "parts"),
    *("waits_for", "improvement"),
    *(
        f"compiled.{name}"
        for name in ("seconds", "needed_bytes", "exposed_seconds", "predicted_exposed_seconds", "reason")
    ),
    *(f"measured.{name}" for name in ("seconds", "rounds_seconds", "final", "reason", "unchecked")),
)
"""Columns of a candidate besides those of its layout; None where something is not known."""


def _rows(result: Result) -> Iterator[dict[str, Any]]:
    """Yield a row for each candidate: those that fit, too large ones, infeasible ones."""
    too_large = f"needs more than {int(usable_bytes(result.machine))} bytes"
    yield from (_fitting_row(candidate, result) for candidate in result.ranking.fitting)
    for candidate in result.ranking.too_large:
        yield _row(candidate.case, result, "too_large", too_large, **_formulas(candidate))
    yield from (_row(case, result, "infeasible", reason) for case, reason in result.ranking.infeasible)


def _row(case: Case, result: Result, status: str, reason: str, **known: Any) -> dict[str, Any]:
    devices = {"scaling": result.scaling, "topology": str(result.space.topology), "devices": case.mesh.size}
    facts = {**devices, "global_batch_sequences": case.batch_size, "status": status, "reason": reason}
    return layout_row(case) | dict.fromkeys(COLUMNS) | facts | known


def _formulas(candidate: Candidate) -> dict[str, Any]:
    cost = candidate.cost
    return {"needed_bytes": candidate.needed_bytes, "sent_bytes": float(cost.sent_bytes), "bubble": cost.bubble}


def _fitting_row(candidate: Candidate, result: Result) -> dict[str, Any]:
    """The row of a candidate that fits."""
    case = candidate.case
    known = _formulas(candidate)
    if result.predicted:
        known |= {"rank": result.ranking.ranks[case], **candidate.as_row()}
        known |= {"bound_seconds": candidate.bound_seconds, "parts": dict(candidate.timeline.parts)}
    if result.predicted and case in result.improvements:
        found = result.improvements[case]
        known |= {"waits_for": dict(candidate.limits), "improvement": found and found._asdict()}
    for tried in (*result.compiled, *result.measured):
        known |= tried.as_row() if tried.candidate.case == case else {}
    return _row(case, result, "fits", "", **known)
