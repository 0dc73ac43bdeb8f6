"""Layout, colours and units of pictures with one column per device."""

from dataclasses import dataclass

from results.figures.svg import tint
from results.records.overviews import Overview

WIDTH, GUTTER, MARGIN = 400, 88, 10


@dataclass(frozen=True)
class Grid:
    """Horizontal layout of a picture: a gutter for labels, then one column per device."""

    overview: Overview

    @property
    def column(self) -> float:
        """Width of a column, in units of the picture."""
        return (WIDTH - GUTTER - MARGIN) / max(4, len(self.overview.devices))

    @property
    def box(self) -> float:
        """Width of the box in a column, in units of the picture."""
        return self.column - 10 if self.column > 50 else self.column - 5

    def x(self, index: int) -> float:
        """Return the left edge of a device's box, in units of the picture."""
        return GUTTER + index * self.column + (self.column - self.box) / 2


def size(count: int) -> str:
    """Return a number of bytes as text, in the largest unit from B to GiB that does not exceed it.

    >>> size(746_855_424), size(5_059_584), size(196_608), size(6)
    ('712 MiB', '4.8 MiB', '192 KiB', '6 B')
    """
    for name, unit in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= unit:
            return f"{count / unit:,.{1 if count < 10 * unit else 0}f} {name}"
    return f"{count} B"


def shade(colour: str, index: int, count: int) -> str:
    """Return the shade of one of `count` parts. The first part is the darkest."""
    return tint(colour, 1 - 0.6 * index / max(count - 1, 1)) if count > 1 else tint(colour, 0.85)
