"""Amounts with units, and plain-text tables and sentences that fit the terminal.

A sentence wraps, but a number stays on one line with its unit, and an interval with both of its ends. Of a table
that does not fit, names in the first column wrap at two fifths of the screen: reports and long names of cases would
leave no room for numbers. Other cells stay whole: columns that do not fit are in further tables below. A pipe or a file
has tables as wide as they are.
"""

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

PLAIN_WIDTH = 100
"""Width of sentences in characters if the output is not a terminal, as in the log of a CI job."""
LEAST_WIDTH = 6
"""Least width of a sentence in characters, besides its indent."""
GAP = 2
"""Spaces between columns."""
NUMBER = r"[^\w\s]*\d\S*"
KEPT = re.compile(rf"(?<!\S)({NUMBER}(?<![,;:.)])|to|->|[-/x×±]) (?=\S)")
"""The space after a number, before its unit or the rest of an interval, and that before the end of the interval."""
NO_BREAK = "\N{NO-BREAK SPACE}"
PREFIXES = ("", "k", "M", "G", "T", "P")


def screen_width() -> int:
    """Return the width of the terminal in characters, or `PLAIN_WIDTH` if the output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else PLAIN_WIDTH


def table_width() -> int:
    """Return the width of the terminal in characters, or one that fits all tables if the output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def wrapped(text: str, width: int | None = None) -> list[str]:
    """Return the lines of a sentence; continued lines are indented by two spaces more than the first.

    Args:
        text: one line. A word that is wider than the screen stays whole, so that commands and paths can be copied.
        width: width of the screen in characters; by default that of the terminal, or `PLAIN_WIDTH`.

    >>> wrapped("  a step takes long", 12)
    ['  a step', '    takes', '    long']
    """
    indent = " " * (len(text) - len(text.lstrip()))
    room = max(width or screen_width(), len(indent) + LEAST_WIDTH)
    shape = textwrap.TextWrapper(room, indent, f"{indent}  ", break_long_words=False, break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ") for line in shape.wrap(KEPT.sub(rf"\1{NO_BREAK}", text.strip()))] or [""]


def paragraph(*texts: str) -> list[str]:
    """Return the lines of several sentences, each wrapped."""
    return [line for text in texts for line in wrapped(text)]


def aligned(
    rows: Sequence[Sequence[str]],
    align: Sequence[str] = (),
    least: Sequence[int] = (),
    width: int | None = None,
    *,
    indent: str = "",
) -> list[str]:
    """Return the lines of a table with columns two spaces apart; columns that do not fit are in further tables below.

    Args:
        rows: cells of each row.
        align: alignment of each column, "<" or ">"; by default all are left-aligned.
        least: least width of each column, in characters; by default 0.
        width: width of the screen in characters; by default that of the terminal, without limit in a pipe.
        indent: stands before each line.

    >>> aligned([("mesh", "tokens/s"), ("fsdp=8", "1,200")], "<>")
    ['mesh    tokens/s', 'fsdp=8     1,200']
    >>> aligned([("mesh", "tokens/s", "interval"), ("fsdp=8", "1,200", "0.9 to 1.1")], "<>>", width=20)
    ['mesh    tokens/s', 'fsdp=8     1,200', '', 'mesh      interval', 'fsdp=8  0.9 to 1.1']
    """
    room, widths = (width or table_width()) - len(indent), _widths(rows, least)
    if sum(widths) + GAP * (len(widths) - 1) > room:
        rows = [line for row in rows for line in _row_lines(row, room * 2 // 5)]
        widths = _widths(rows, least)
    sides, lines = align or "<" * len(widths), list[str]()
    for places in side_by_side(widths, room):
        if lines:
            lines.append("")
        for row in rows:
            cells = (f"{row[at]:{sides[at]}{widths[at]}}" for at in places)
            lines.append(f"{indent}{(' ' * GAP).join(cells)}".rstrip())
    return lines


def _widths(rows: Sequence[Sequence[str]], least: Sequence[int]) -> list[int]:
    """Return the widths of columns: of their longest cells, and at least as wide as is asked."""
    columns = [*zip(*rows, strict=True)]
    least = least or [0] * len(columns)
    return [max(letters, *map(len, column)) for letters, column in zip(least, columns, strict=True)]


def _row_lines(row: Sequence[str], width: int) -> list[Sequence[str]]:
    """Return the lines of a row whose name, its first cell, wraps at this width.

    >>> _row_lines(("a long name", "1.5"), 6)
    [('a long', '1.5'), ('  name', '')]
    """
    names = wrapped(row[0], width) if len(row[0]) > width else row[:1]
    return [(names[0], *row[1:]), *((name, *[""] * len(row[1:])) for name in names[1:])]


def side_by_side(widths: Sequence[int], room: int) -> list[list[int]]:
    """Return the columns of each table, so that tables fit into `room` characters. All begin with the first column.

    >>> side_by_side([6, 8, 8], 24), side_by_side([6, 8, 8], 26)
    ([[0, 1], [0, 2]], [[0, 1, 2]])
    """
    tables = [[0]] if widths else []
    for column in range(1, len(widths)):
        if len(tables[-1]) > 1 and sum(widths[at] + GAP for at in tables[-1]) + widths[column] > room:
            tables.append([0])
        tables[-1].append(column)
    return tables


def amount(value: float, unit: str) -> str:
    """An amount with three significant digits and a decimal prefix.

    >>> amount(39_300_000_000, "B"), amount(54_139_000_000_000, "FLOP"), amount(7, "B"), amount(999_900, "B")
    ('39.3 GB', '54.1 TFLOP', '7 B', '1 MB')
    """
    for prefix in PREFIXES[:-1]:
        if abs(float(f"{value:.3g}")) < 1000:
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    return f"{value:,.0f} {PREFIXES[-1]}{unit}"


def minutes(seconds: float) -> str:
    """Format a duration as minutes and seconds.

    >>> minutes(200)
    '3:20'
    """
    whole, rest = divmod(round(seconds), 60)
    return f"{whole}:{rest:02}"
