"""Output formats of tables: text for a terminal, Markdown, and CSV."""

import csv
import io
from collections.abc import Callable, Sequence
from contextlib import suppress

from benchmarks.cli.parser import one_line
from benchmarks.cli.tables import aligned

SPECIAL = str.maketrans({"&": "&amp;", "<": "&lt;", "@": "&#64;"} | {mark: f"\\{mark}" for mark in "\\`*[]|"})
"""Characters with a meaning in Markdown or on GitHub -> how to write them."""
Cells = Sequence[Sequence[str]]
"""Rows of cells; the first row is the header."""


def as_markdown(rows: Cells, sides: str) -> str:
    """Format a table as GitHub Markdown; `sides` aligns each column, "<" or ">".

    >>> print(as_markdown([("mesh", "ms"), ("fsdp=8", "1.5")], "<>"))
    | mesh | ms |
    |---|--:|
    | fsdp=8 | 1.5 |
    """
    header, *others = (f"| {' | '.join(map(escaped, row))} |" for row in rows)
    rule = "|".join("--:" if side == ">" else "---" for side in sides)
    return "\n".join([header, f"|{rule}|", *others])


def escaped(text: str) -> str:
    """Escape a string so that Markdown shows it verbatim and GitHub mentions nobody.

    >>> print(escaped("a|b `c` @main"))
    a\\|b \\`c\\` &#64;main
    """
    return one_line(text).translate(SPECIAL)


def as_csv(rows: Cells, sides: str = "") -> str:
    r"""Format a table as comma-separated values (RFC 4180, but with "\n" between lines); `sides` is ignored.

    Spreadsheets run strings that begin as formulas do. They get a single quote in front, as OWASP advises.

    >>> as_csv([("mesh", "ms"), ("data=2,tensor=4", "-1.5"), ("=1+1", "")])
    'mesh,ms\n"data=2,tensor=4",-1.5\n\'=1+1,'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([map(harmless, row) for row in rows])
    return text.getvalue().removesuffix("\n")


def harmless(cell: str) -> str:
    """Return a cell that no spreadsheet takes for a formula. A sign alone is none, and a number stays as it is."""
    if len(cell) < 2 or not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")):
        return cell
    with suppress(ValueError):
        float(cell)
        return cell
    return f"'{cell}"


FORMS: dict[str, Callable[[Cells, str], str]] = {
    "text": lambda rows, sides: "\n".join(aligned(rows, sides)),
    "markdown": as_markdown,
    "csv": as_csv,
}
