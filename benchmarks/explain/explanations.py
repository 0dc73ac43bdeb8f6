"""Columns of a row on what the compiler changed of a strategy's communication and FLOPs, and on overlap."""

from collections.abc import Iterable, Mapping
from typing import Any

from jax.sharding import Mesh

from benchmarks.cases.case import Case
from benchmarks.cli.tables import amount
from benchmarks.explain.advice import Advice, advice
from benchmarks.explain.overlap import COLUMNS, overlap
from benchmarks.explain.predicted import cost_of
from benchmarks.explain.rewrites import Rewrite, rewrites, summarized
from benchmarks.program.compiled import Program
from benchmarks.program.flops import unstated_flops

KEYS = (
    *("rewrites.sent_bytes", "rewrites.unexplained_bytes", "rewrites.flops", "rewrites.text", "rewrites.advice"),
    *COLUMNS,
)


def explanation_columns(case: Case, mesh: Mesh, program: Program) -> Mapping[str, Any]:
    """The columns, always `KEYS`. Those of rewrites are None for a step that the compiler partitions.

    `rewrites.sent_bytes` and `rewrites.flops` are what a device sends and computes per step beyond the formulas.
    `rewrites.text` names the causes. `rewrites.advice` says how to avoid the costly ones, where that is known.
    """
    row: dict[str, Any] = {**dict.fromkeys(KEYS), **overlap(program)}
    cost = None if case.twin else cost_of(case)
    if cost is None:
        return row
    rewritten = rewrites(cost, program.collectives)
    extra_flops = unstated_flops(cost, program.flops)
    computed = [f"{what}: {amount(flops, 'FLOP')} more" for what, flops in extra_flops.items()]
    return row | {
        "rewrites.sent_bytes": sum(rewrite.cost_bytes for rewrite in rewritten),
        "rewrites.unexplained_bytes": sum(
            abs(rewrite.cost_bytes) for rewrite in rewritten if rewrite.name == "unexplained"
        ),
        "rewrites.text": "; ".join(
            [*(str(rewrite) for rewrite in summarized(rewritten) if rewrite.name != "rounding"), *computed]
        ),
        "rewrites.flops": sum(extra_flops.values()),
        "rewrites.advice": "; ".join(str(item) for item in advice_on(case, mesh, rewritten)),
    }


def advice_on(case: Case, mesh: Mesh, rewritten: Iterable[Rewrite]) -> list[Advice]:
    """What keeps the collectives that became all-reduces, where that is known."""
    chip = case.topology and case.topology.chip
    axes = (
        dict.fromkeys(rewrite.axes for rewrite in rewritten if rewrite.name.endswith("_as_all_reduce")) if chip else ()
    )
    return [advised for over in axes if chip for advised in advice(chip, mesh, over, dict(case.compiler_options))]
