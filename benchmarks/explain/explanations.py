"""What a compiler made of a step that its strategy does not state, and what of it runs meanwhile: columns of a row."""

from collections.abc import Mapping
from typing import Any

from jax.sharding import Mesh

from benchmarks.cases import Case
from benchmarks.explain.advice import advice
from benchmarks.explain.overlap import COLUMNS, overlap
from benchmarks.explain.predicted import cost_of
from benchmarks.explain.rewrites import digest, rewrites
from benchmarks.program.compiled import Program
from benchmarks.program.flops import more_flops
from benchmarks.units import amount

KEYS = (
    *("rewrites.sent_bytes", "rewrites.unexplained_bytes", "rewrites.flops", "rewrites.text", "rewrites.advice"),
    *COLUMNS,
)


def explained(case: Case, mesh: Mesh, program: Program) -> Mapping[str, Any]:
    """The columns, always `KEYS`; those of rewrites are None of a step that the compiler partitions itself.

    `sent_bytes` and `flops` are those of a device in a step, more than stated; `text` names them, and `advice` says
    what avoids the costly ones, where that is known.
    """
    chip = case.topology and case.topology.chip
    row: dict[str, Any] = {**dict.fromkeys(KEYS), **overlap(program, mesh, chip)}
    cost = None if case.twin else cost_of(case)
    if cost is None:
        return row
    found = rewrites(cost, program.collectives)
    more = more_flops(cost, program.flops)
    computed = [f"{what}: {amount(flops, 'FLOP')} more" for what, flops in more.items()]
    axes = dict.fromkeys(each.axes for each in found if each.name.endswith("_as_all_reduce")) if chip else ()
    return row | {
        "rewrites.sent_bytes": sum(each.cost_bytes for each in found),
        "rewrites.unexplained_bytes": sum(abs(each.cost_bytes) for each in found if each.name == "unexplained"),
        "rewrites.text": "; ".join([*(str(each) for each in digest(found) if each.name != "rounding"), *computed]),
        "rewrites.flops": sum(more.values()),
        "rewrites.advice": "; ".join(
            str(each) for over in axes if chip for each in advice(chip, mesh, over, dict(case.compiler_options))
        ),
    }
