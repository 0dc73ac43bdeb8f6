"""docs/reference/auto-explicit-or-shard-map.md: one placement in three modes of JAX, as compiled.

python -m docs.reference.modes compile cpu:8 v5e:4x4 h100:2x8
python -m docs.reference.modes times RUN.json ...
python -m docs.reference.modes

The first compiles all steps with the installed JAX, and replaces the rows of this version and these topologies in the
table next to the page. The second adds the times of runs of `pytest benchmarks` on 8 virtual CPU devices. The third
writes the page from the table.
"""

import ast
import csv
import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import jax

from benchmarks.cases.case import ALL_TO_ALL, Case
from benchmarks.cli.outputs import log
from benchmarks.cli.tables import amount
from benchmarks.devices.topology import Topology
from benchmarks.program.collectives import KINDS
from benchmarks.program.compiled import read_program
from benchmarks.program.explanations import Rewrite, cost_of, rewrites
from benchmarks.run.pool import run_in_processes
from benchmarks.search.compiled import compiled_record
from results.formats import as_markdown
from strategies import PRESETS, STRATEGIES, MeshSpec

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "auto-explicit-or-shard-map.md"
TABLE = PAGE.with_suffix(".csv")
BEGIN, END = "<!-- written by `python -m docs.reference.modes` -->", "<!-- end of what is written -->"
"""What stands between these lines of the page is replaced; the rest is written by hand."""
DENSE = replace(PRESETS["nano"], layers=4, embed=256, heads=16, vocab=2048, sequence=128, tied=False)
EXPERTS = replace(
    PRESETS["nano-moe"],
    layers=4,
    embed=256,
    heads=16,
    vocab=2048,
    sequence=128,
    experts=16,
    expert_mlp=256,
    capacity_factor=1.0,
)
WORK = {
    "fsdp": (DENSE, 1, ("fsdp=8", "fsdp=16")),
    "tensor": (DENSE, 1, ("tensor=8", "tensor=16")),
    "fsdp x tensor": (DENSE, 1, ("fsdp=4,tensor=2", "fsdp=4,tensor=4")),
    "data, 8 microbatches": (DENSE, 8, ("data=8", "data=16")),
    "data x expert": (EXPERTS, 1, ("data=2,expert=4", "data=4,expert=4")),
}
"""Title -> model, microbatches, and the meshes of 8 and of 16 devices."""
SEQUENCES = 8
"""Sequences of the batch for each device."""
FILES = {"auto": ("auto.py",), "explicit": ("explicit.py", "core/explicit_experts.py")}
"""Where a mode is written; a hand-written strategy has a file of its own and one for each axis of the mesh."""
SECONDS = 3600
"""Limit of one run."""
Row = Mapping[str, Any]


def cases(topology: Topology) -> Iterator[tuple[str, Case]]:
    """The title and the case of each step: `auto`, `explicit`, and the hand-written twin."""
    dtype = "float32" if topology.platform == "cpu" else "bfloat16"
    for title, (config, microbatches, meshes) in WORK.items():
        mesh = MeshSpec.parse(meshes[math.prod(topology.shape) > 8])
        for name in ("auto", "explicit", STRATEGIES["auto"].twins[tuple(mesh.sizes)]):
            options = (ALL_TO_ALL,) if config.experts and "dispatch" in STRATEGIES[name].options else ()
            work = config, SEQUENCES * mesh.size, microbatches, dtype, "dots", options
            yield title, Case(name, mesh, "small", *work, topology=topology)


def compiled_row(case: Case) -> Row:
    """What the compiler made of a case, in a process of its own."""
    assert case.topology
    case.topology.prepare()
    record = compiled_record(case)
    columns = record.as_row().extra_info
    row = {"status": record.status, "reason": record.reason or ""}
    if not (record.program and record.step):
        return row
    program, cost = read_program(record.program.as_text() or "", record.step.mesh.shape), cost_of(case)
    assert cost
    sent = dict.fromkeys(KINDS, 0)
    for each in program.collectives:
        sent[each.kind] += int(each.times * each.sent_bytes)
    return {
        **row,
        **sent,
        "formula_bytes": columns["predicted.sent_bytes"],
        "temp_bytes": columns["memory.temp_bytes"],
        "exposed_seconds": columns["replay.exposed_seconds"],
        "compile_seconds": columns["compile_seconds"],
        "changed": "; ".join(map(in_words, rewrites(cost, program.collectives))),
    }


def in_words(changed: Rewrite) -> str:
    """What a device sends by a kind of collective beyond the formulas."""
    more = "more" if changed.cost_bytes > 0 else "less"
    return f"{changed.kind} over {','.join(changed.axes)}: {amount(abs(float(changed.cost_bytes)), 'B')} {more}"


def code_lines(strategy: str, mesh: str) -> int:
    """Lines of code of a strategy on a mesh, without blank lines, comments and docstrings."""
    own = [f"{axis}.py" for axis in MeshSpec.parse(mesh).sizes] + [f"{strategy}.py"]
    return sum(len(lines_of(ROOT / "strategies" / name)) for name in dict.fromkeys(FILES.get(strategy, own)))


def lines_of(path: Path) -> set[int]:
    """Numbers of the lines on which a statement has a part."""
    text = path.read_text()
    tree = ast.parse(text)
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    documented = {line for node in strings for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    lines = enumerate(map(str.strip, text.splitlines()), start=1)
    return {number for number, line in lines if line and not line.startswith("#")} - documented


def compile_all(topologies: Iterable[str], works: Iterable[str] = WORK) -> None:
    """Compile the steps for these topologies, and put the rows of each work into the table once it is compiled."""
    for text, work in product(topologies, works):
        steps = [case for title, case in cases(Topology.parse(text)) if title == work]
        found = {outcome.task: outcome for outcome in run_in_processes(steps, compiled_row, 1, SECONDS)}
        kept = [row for row in read() if (row["jax"], row["topology"], row["work"]) != (jax.__version__, text, work)]
        for case in steps:
            row = found[case].result or {"status": "error", "reason": found[case].reason}
            log(f"{text}, {case}: {row['status']}, {found[case].seconds:.0f} s")
            step = {"jax": jax.__version__, "topology": text, "work": work, "mesh": str(case.mesh)}
            kept.append({**step, "strategy": case.strategy, **row})
        write(sorted(kept, key=lambda row: (row["jax"], row["topology"], [*WORK].index(row["work"]))))


def add_times(runs: Iterable[str]) -> None:
    """Put the median seconds of measured steps into the rows of the same strategy and mesh on 8 CPU devices."""
    measured = [row for run in runs for row in json.loads(Path(run).read_text())["benchmarks"]]
    seconds = {(row["extra_info"]["strategy"], row["extra_info"]["mesh"]): row["stats"]["median"] for row in measured}

    def timed(row: Row) -> Row:
        here = row["topology"] == "cpu:8" and row["jax"] == jax.__version__
        found = seconds.get((row["strategy"], row["mesh"])) if here else None
        return row if found is None else {**row, "step_seconds": found}

    write(map(timed, read()))


FIELDS = (
    *("jax", "topology", "work", "mesh", "strategy", "status", "reason", *KINDS, "formula_bytes", "temp_bytes"),
    *("exposed_seconds", "compile_seconds", "step_seconds", "code_lines", "changed"),
)


def read() -> list[Row]:
    """Rows of the table; all values are text."""
    return list(csv.DictReader(TABLE.read_text().splitlines())) if TABLE.exists() else []


def write(rows: Iterable[Row]) -> None:
    """Write the table, with the lines of code as they are now."""
    text = io.StringIO()
    table = csv.DictWriter(text, FIELDS, lineterminator="\n")
    table.writeheader()
    table.writerows({**row, "code_lines": code_lines(row["strategy"], row["mesh"])} for row in rows)
    TABLE.write_text(text.getvalue())


def page(before: str) -> str:
    """The page in Markdown: a section for each version of JAX and topology, in the page so far."""
    head, _, others = before.partition(BEGIN)
    _, _, tail = others.partition(END)
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in read():
        groups.setdefault((row["topology"], row["jax"]), []).append(row)
    parts = [part for (topology, version), rows in groups.items() for part in section(topology, version, rows)]
    return "\n\n".join([head + BEGIN, *parts, END + tail])


def section(topology: str, version: str, rows: list[Row]) -> Iterator[str]:
    """A table of the steps for one topology, and what compilers changed."""
    yield f"## {topology}, JAX {version}"
    columns = {name: values for name, values in COLUMNS.items() if any(row[name] for row in rows)}
    table = [tuple(heading for heading, _ in columns.values())]
    table += [tuple(text(row[name]) if row[name] else "" for name, (_, text) in columns.items()) for row in rows]
    yield as_markdown(table, "<<<" + ">" * (len(columns) - 3))
    yield "Bytes that are not those of the formulas; for `auto` those of its twin:"
    changed = (f"- `{row['strategy']}` on `{row['mesh']}`: {row['changed']}" for row in rows if row["changed"])
    yield "\n".join(changed) or "none"


def in_bytes(count: str) -> str:
    """A number of bytes; empty for none."""
    return amount(int(count), "B") if int(count) else ""


COLUMNS: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "work": ("placement", str),
    "mesh": ("mesh", str),
    "strategy": ("strategy", str),
    "reason": ("why not", str),
    **{kind: (kind.replace("_", "-"), in_bytes) for kind in KINDS if kind != "permute"},
    "temp_bytes": ("temporaries", in_bytes),
    "exposed_seconds": ("exposed", lambda seconds: f"{1e6 * float(seconds):.0f} us"),
    "compile_seconds": ("compile", lambda seconds: f"{float(seconds):.1f} s"),
    "step_seconds": ("step", lambda seconds: f"{1e3 * float(seconds):,.0f} ms"),
    "code_lines": ("lines of code", str),
}
"""Columns of the table that the page shows -> their headings, and how their values are written."""


if __name__ == "__main__":
    from docs.reference import modes  # whose functions other processes can import

    if sys.argv[1:2] == ["compile"]:
        modes.compile_all(sys.argv[2:])
    elif sys.argv[1:2] == ["times"]:
        modes.add_times(sys.argv[2:])
    else:
        PAGE.write_text(modes.page(PAGE.read_text()))
