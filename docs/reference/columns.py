"""The tables of docs/reference/columns.md, made of benchmarks/cases/columns.csv.

python docs/reference/columns.py
"""

from collections.abc import Iterable

from benchmarks.cases.columns import COLUMNS, Column

PARTS = {
    "case": "The case",
    "speed": "Speed",
    "memory": "Memory of one device",
    "program": "The compiled program, and the formulas",
    "chip": "Devices that you do not have",
}
"""Parts of the page of columns: word in the table -> title."""


def tables() -> str:
    """Return the tables of all parts as Markdown."""
    parts = {part: [column for column in COLUMNS.values() if column.part == part] for part in PARTS}
    return "\n\n".join(f"## {PARTS[part]}\n\n{table(columns)}" for part, columns in parts.items())


def table(columns: Iterable[Column]) -> str:
    """Return a Markdown table of columns with their types, units, gates and meanings."""
    rows = (
        f"| `{each.name}` | {each.type} | {each.unit} | {f'{each.gate}, {each.better}'.strip(', ')} | {each.meaning} |"
        for each in columns
    )
    return "\n".join(("| column | type | unit | gate | meaning |", "|---|---|---|---|---|", *rows))


if __name__ == "__main__":
    print(tables())
