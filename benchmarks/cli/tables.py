"""Amounts with units, and plain-text tables and sentences that fit the terminal.

What does not fit wraps, but a number stays on one line with its unit, and an interval with both of its ends. If the
columns of a table do not fit side by side, further tables below have the rest. A pipe or a file has tables as wide as
they are.
"""

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

PLAIN_WIDTH = 100
"""Width of sentences in characters if the output is not a terminal, as in the log of a CI job."""
LEAST_WIDTH = 6
"""Least width of a column in characters, including the gap after it."""
GAP = 2
"""Spaces between columns."""
BREAKS = " ,/"
"""Characters after which a cell may break."""
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
    """Return the lines of a table with columns two spaces apart; a row that does not fit wraps to several lines.

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
    columns = [*zip(*rows, strict=True)]
    sides, least = align or "<" * len(columns), least or [0] * len(columns)
    room = (width or table_width()) - len(indent)
    lines: list[str] = []
    for places in side_by_side([longest_piece(column, BREAKS + "=") for column in columns], room):
        chosen = [columns[place] for place in places]
        widths = fitting(chosen, [least[place] for place in places], room)
        shapes = [f"{sides[place]}{letters}" for place, letters in zip(places, widths, strict=True)]
        folds = (line for row in zip(*chosen, strict=True) for line in folded(row, widths))
        lines += [
            *([""] if lines else []),
            *(f"{indent}{(' ' * GAP).join(map(format, line, shapes))}" for line in folds),
        ]
    return [line.rstrip() for line in lines]


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


def fitting(columns: Sequence[Sequence[str]], least: Sequence[int], room: int) -> list[int]:
    """Return the widths of columns of one table, which fit into `room` characters if they can."""
    room = max(room, LEAST_WIDTH * len(columns)) - GAP * (len(columns) - 1)
    widths = [max(letters, *map(len, column)) for letters, column in zip(least, columns, strict=True)]
    for breaks in (BREAKS, BREAKS + "=", ""):  # a column breaks within a word only if the table does not fit otherwise
        if sum(widths) > room:
            widths = narrowed(widths, [longest_piece(column, breaks) for column in columns], room)
    return widths


def narrowed(widths: Sequence[int], unbroken: Sequence[int], room: int) -> list[int]:
    """Return narrower widths of columns, so that they fit into `room` characters if they can.

    The widest column loses a character first, and none becomes narrower than its longest piece, `unbroken`.
    """
    widths = list(widths)
    while sum(widths) > room and (wide := [at for at, letters in enumerate(widths) if letters > unbroken[at]]):
        widths[max(wide, key=lambda at: widths[at])] -= 1
    return widths


def longest_piece(column: Sequence[str], breaks: str) -> int:
    """Return the length of the longest part of a column's cells that no character of `breaks` ends.

    Without any character, all but numbers can break anywhere.
    """
    parts = (piece.rstrip() for cell in column for piece in pieces(cell, breaks or BREAKS))
    return max((len(part) for part in parts if breaks or re.match(NUMBER, part)), default=1)


def folded(row: Sequence[str], widths: Sequence[int]) -> list[tuple[str, ...]]:
    """Return the lines of a row whose cells wrap at these widths."""
    cells = [fold(cell, letters) for cell, letters in zip(row, widths, strict=True)]
    height = max(map(len, cells))
    return [*zip(*(lines + [""] * (height - len(lines)) for lines in cells), strict=True)]


def fold(cell: str, width: int) -> list[str]:
    """Return the lines of a cell: it breaks after spaces, commas and slashes, and in words wider than the column.

    >>> fold("data=2,fsdp=2 layer", 8), fold("gather=layer", 8), fold("pipeline", 5)
    (['data=2,', 'fsdp=2', 'layer'], ['gather=', 'layer'], ['pipel', 'ine'])
    >>> fold("1.25 to 2.50 ms", 8)
    ['1.25 to 2.50 ms']
    """
    lines = [""]
    for piece in pieces(cell):
        if len((lines[-1] + piece).rstrip()) > width and lines[-1]:
            lines.append("")
        lines[-1] += piece
        while len(lines[-1].rstrip()) > width and not re.match(NUMBER, lines[-1]):
            cut = lines[-1].rfind("=", 0, width) + 1 or width
            lines[-1:] = [lines[-1][:cut], lines[-1][cut:].lstrip()]
    return [line.rstrip() for line in lines]


def pieces(cell: str, breaks: str = BREAKS) -> list[str]:
    """Return the parts of a cell that stay on one line as long as they fit: each ends with a character of `breaks`.

    A comma or a slash between digits is part of a number, and "/s" part of a unit.

    >>> pieces("data=2,fsdp=2 time/single"), pieces("1,757,768 tokens/s in 1/2 of them")
    (['data=2,', 'fsdp=2 ', 'time/', 'single'], ['1,757,768 tokens/s ', 'in ', '1/2 of ', 'them'])
    """
    found = re.split(rf"(?<=[{breaks}])(?=[^{breaks}])(?!(?<=\d[,/])\d)(?!(?<=/)s\b)", KEPT.sub(rf"\1{NO_BREAK}", cell))
    return [piece.replace(NO_BREAK, " ") for piece in found]


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
