"""Columns of a row on its formulas, on what the compiler changed of communication and FLOPs, and on overlap."""

from collections.abc import Iterable, Mapping
from typing import Any

from jax.sharding import Mesh

from benchmarks.cases.case import Case
from benchmarks.cli.tables import amount
from benchmarks.explain.advice import advice
from benchmarks.explain.overlap import overlap
from benchmarks.explain.rewrites import Rewrite, decomposed_axes, rewrites
from benchmarks.program.collectives import axis_of
from benchmarks.program.compiled import ROW_KEYS, Program
from benchmarks.program.flops import unstated_flops
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
    cost = cost_of(case)
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
        "predicted.residual_bytes": cost and cost.temporaries["activations"],
        "predicted.temp_bytes": cost and sum(cost.temporaries.values()) if case.backend.platform != "cpu" else None,
        "predicted.bubble": cost and cost.bubble,
        "predicted.lockstep_bubble": cost and cost.lockstep_bubble,
        "sent_over_predicted": total / cost.sent_bytes if total is not None and cost and cost.sent_bytes else None,
        "sent_as_predicted": as_predicted if total is not None and cost and not twin else None,
    }


def cost_of(case: Case) -> Cost | None:
    """Cost of a case by formulas; None if its strategy has no formulas or the case is infeasible.

    Of a step that the compiler partitions, that of its hand-written twin.
    """
    by_hand = case.twin or case
    try:
        return predict(by_hand.strategy, case.config, case.mesh, by_hand.resolved, case.backend)
    except Infeasible:
        return None


def explanation_columns(case: Case, mesh: Mesh, program: Program) -> Mapping[str, Any]:
    """The columns that are known. Those of rewrites are not for a step that the compiler partitions.

    `rewrites.sent_bytes` and `rewrites.flops` are what a device sends and computes per step beyond the formulas.
    `rewrites.text` says by which collectives. `rewrites.advice` says how to avoid the costly ones, where that is known.
    """
    row: dict[str, Any] = {**overlap(program)}
    cost = None if case.twin else cost_of(case)
    if cost is None:
        return row
    rewritten = rewrites(cost, program.collectives)
    extra_flops = unstated_flops(cost, program.flops)
    computed = [f"{what}: {amount(flops, 'FLOP')} more" for what, flops in extra_flops.items()]
    return row | {
        "rewrites.sent_bytes": program.sent_bytes - cost.sent_bytes,
        "rewrites.text": "; ".join([*map(str, rewritten), *computed]),
        "rewrites.flops": sum(extra_flops.values()),
        "rewrites.advice": "; ".join(advice_on(case, mesh, rewritten)),
    }


def advice_on(case: Case, mesh: Mesh, rewritten: Iterable[Rewrite]) -> list[str]:
    """What keeps the collectives that became all-reduces, where that is known."""
    if not (chip := case.topology and case.topology.chip):
        return []
    axes = decomposed_axes(rewritten)
    return [text for over in axes for text in advice(chip, mesh, over, dict(case.compiler_options))]
