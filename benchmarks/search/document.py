"""What a search found as JSON values."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

from benchmarks.cases.case import Case
from benchmarks.devices.placement import device_count
from benchmarks.run.machine import COMPILER
from benchmarks.search.report import Result
from benchmarks.search.rows import layout_row
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
        "interval": [*interval(machine, space.config)] if result.predicted else None,
        "capacity_bytes": machine.chip.memory_bytes,
        "usable_bytes": int(machine.usable_bytes),
        "tied": ranking.tied if result.predicted and not result.scaling else None,
        "nearest": result.nearest,
        "versions": {**{name: version(name) for name in COMPILER}, "compiler": space.topology.compiler_version or ""},
        "candidates": [row for found in results for row in rows_of(found)],
    }


COLUMNS = (
    *("scaling", "topology", "devices", "global_batch_sequences", "rank", "status", "reason"),
    *("needed_bytes", "sent_bytes", "bubble"),
    *("predicted_seconds", "tokens_per_second", "model_flops_utilization", "bound_seconds", "parts", "waits_for"),
    *("compiled.seconds", "compiled.needed_bytes", "compiled.exposed_seconds", "compiled.predicted_exposed_seconds"),
    *("compiled.reason", "measured.seconds", "measured.rounds_seconds", "measured.reason"),
)
"""Columns of a candidate besides those of its layout; None where something is not known."""


def rows_of(result: Result) -> Iterator[dict[str, Any]]:
    """Yield a row for each candidate: those that fit, too large ones, infeasible ones."""
    ranking, too_large = result.ranking, f"needs more than {int(result.machine.usable_bytes)} bytes"
    best = {candidate.case for candidate in ranking.best_per_layout}  # bottlenecks of all would take long
    tried: dict[Case, dict[str, Any]] = defaultdict(dict)
    for one in (*result.compiled, *result.measured):
        tried[one.candidate.case] |= one.columns
    for candidate in ranking.fitting:
        case, known = candidate.case, dict(candidate.formulas)
        if result.predicted:
            known |= candidate.predictions | {"rank": ranking.ranks[case]}
            known |= {"waits_for": dict(candidate.limits)} if case in best else {}
        yield _row(case, result, "fits", "", **known, **tried[case])
    for candidate in ranking.too_large:
        yield _row(candidate.case, result, "too_large", too_large, **candidate.formulas)
    yield from (_row(case, result, "infeasible", reason) for case, reason in ranking.infeasible)


def _row(case: Case, result: Result, status: str, reason: str, **known: Any) -> dict[str, Any]:
    devices = {"scaling": result.scaling, "topology": str(result.space.topology), "devices": case.mesh.size}
    facts = {**devices, "global_batch_sequences": case.batch_size, "status": status, "reason": reason}
    return layout_row(case) | dict.fromkeys(COLUMNS) | facts | known
