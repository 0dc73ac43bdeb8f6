"""Plain-text tables as wide as the terminal: cells wrap where the columns do not fit, and nothing is cut off."""

import io
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec

PLAIN_WIDTH = 160
"""Width in characters if the output is not a terminal, as in the log of a CI job."""
LEAST_WIDTH = 6
"""Least width of a column in characters, including the gap after it."""


def screen_width() -> int:
    """Return the width of the terminal in characters, or `PLAIN_WIDTH` if the output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else PLAIN_WIDTH


def aligned(
    rows: Sequence[Sequence[str]], align: Sequence[str] = (), least: Sequence[int] = (), width: int | None = None
) -> list[str]:
    """Return the lines of a table with columns two spaces apart; a row that does not fit wraps to several lines.

    Args:
        rows: cells of each row.
        align: alignment of each column, "<" or ">"; by default all are left-aligned.
        least: least width of each column, in characters; by default 0.
        width: width of the screen in characters; by default that of the terminal, or `PLAIN_WIDTH`.

    >>> aligned([("mesh", "tokens/s"), ("fsdp=8", "1,200")], "<>")
    ['mesh    tokens/s', 'fsdp=8     1,200']
    """
    if not rows:
        return []
    room, columns = width or screen_width(), len(rows[0])
    sides = align or "<" * columns
    widths = [max(letters, *map(len, column)) for letters, *column in zip(least or [0] * columns, *rows, strict=True)]
    # A plain checkout runs where rich is not installed. Its wide tables have long lines.
    if sum(widths) + 2 * (columns - 1) <= room or find_spec("rich") is None:
        shapes = [f"{side}{letters}" for side, letters in zip(sides, widths, strict=True)]
        return ["  ".join(map(format, row, shapes)).rstrip() for row in rows]
    return folded(rows, sides, max(room, LEAST_WIDTH * columns))


def folded(rows: Sequence[Sequence[str]], sides: Sequence[str], width: int) -> list[str]:
    """Return the lines of a table whose cells wrap so that all columns fit."""
    from rich.console import Console  # importing it takes a tenth of a second
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
