"""Tables of plain text, as wide as the terminal: cells fold where columns do not fit, and nothing is cut off."""

import io
import shutil
import sys
from collections.abc import Sequence

PLAIN_WIDTH = 160
"""Columns where the output is no terminal, as in the log of a CI job."""
LEAST_WIDTH = 6
"""Of a column with the gap behind it."""


def screen_width() -> int:
    """How many letters a line has room for."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else PLAIN_WIDTH


def aligned(
    rows: Sequence[Sequence[str]], align: Sequence[str] = (), least: Sequence[int] = (), width: int | None = None
) -> list[str]:
    """Rows as lines, with their columns under each other, two spaces apart; a row that does not fit takes more lines.

    Args:
        rows: their cells.
        align: a side for each column, "<" or ">"; all are on the left by default.
        least: letters that a column has room for even where no cell is so long.
        width: of the screen; by default that of the terminal, or `PLAIN_WIDTH`.

    >>> aligned([("mesh", "tokens/s"), ("fsdp=8", "1,200")], "<>")
    ['mesh    tokens/s', 'fsdp=8     1,200']
    """
    if not rows:
        return []
    room, columns = width or screen_width(), len(rows[0])
    sides = align or "<" * columns
    widths = [max(letters, *map(len, column)) for letters, *column in zip(least or [0] * columns, *rows, strict=True)]
    if sum(widths) + 2 * (columns - 1) <= room:
        shapes = [f"{side}{letters}" for side, letters in zip(sides, widths, strict=True)]
        return ["  ".join(map(format, row, shapes)).rstrip() for row in rows]
    return folded(rows, sides, max(room, LEAST_WIDTH * columns))


def folded(rows: Sequence[Sequence[str]], sides: Sequence[str], width: int) -> list[str]:
    """Rows whose cells take several lines each, so that all columns fit."""
    from rich.console import Console  # it takes a tenth of a second to load
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    for side in sides:
        table.add_column(justify="right" if side == ">" else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(file=io.StringIO(), width=width, color_system=None, force_jupyter=False, legacy_windows=False)
    with console.capture() as shown:
        console.print(table)
    return [line.rstrip() for line in shown.get().removesuffix("\n").split("\n")]
