"""Columns with the formulas' predictions for a case, and whether the compiled program sends what they predict."""

from collections.abc import Mapping
from typing import Any

from benchmarks.cases.case import Case
from benchmarks.program.collectives import axis_of
from benchmarks.program.compiled import ROW_KEYS
from strategies import Infeasible
from strategies.core.traffic import Bytes
from strategies.costs.predict import Cost, predict

SENT = tuple(key for key in ROW_KEYS if key.startswith("compiled.sent_bytes."))


def predicted_columns(case: Case, compiled: Mapping[str, Any]) -> dict[str, float | None]:
    """The columns of a row, per device and step; None where the formulas or `compiled` do not know.

    A step that the compiler partitions has the predictions of its hand-written twin, for comparison only:
    `sent_as_predicted` is None for it.

    Args:
        case: the case.
        compiled: columns of the compiled program, or empty.
    """
    twin = case.twin
    cost = cost_of(twin or case)
    sent = {key: compiled.get(key) for key in SENT}
    by_axis: dict[str, Bytes] = dict.fromkeys(SENT, 0)
    for (kind, axes), parts in cost.sent.items() if cost else ():
        by_axis[f"compiled.sent_bytes.{kind}.{axis_of(axes)}"] += sum(parts.values())
    as_predicted = sent == {key: int(exact) for key, exact in by_axis.items()}
    total = compiled.get("compiled.sent_bytes")
    return {
        "predicted.flops": cost and sum(cost.flops.values()) // case.mesh.size,
        "predicted.sent_bytes": cost and cost.sent_bytes,
        "predicted.argument_bytes": cost and sum(cost.arguments.values()),
        "predicted.temp_bytes": cost and sum(cost.temporaries.values()),
        "predicted.bubble": cost and cost.bubble,
        "predicted.lockstep_bubble": cost and cost.lockstep_bubble,
        "sent_over_predicted": total / cost.sent_bytes if total is not None and cost and cost.sent_bytes else None,
        "sent_as_predicted": as_predicted if total is not None and cost and not twin else None,
    }


def cost_of(case: Case) -> Cost | None:
    """Cost of a case by formulas; None if its strategy has no formulas or the case is infeasible."""
    try:
        return predict(case.strategy, case.config, case.mesh, case.resolved, case.platform)
    except Infeasible:
        return None
