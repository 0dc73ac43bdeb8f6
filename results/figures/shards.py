"""The figure of which device holds which part of each array of a step: a panel for each array, a cell for each part."""

import math
import textwrap
from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from results.figures.canvas import GREY, caption
from results.figures.grid import size
from results.records.overviews import HeldArray, Overview

MOST_DEVICES = 64
"""Most devices whose numbers are legible."""
COLUMNS = 4
"""Panels side by side."""
WIDTH, LEAST_HEIGHT, ROW_HEIGHT, TITLE_HEIGHT = 3.1, 1.0, 0.1, 0.75
"""Of a panel, in inches. It is as high as its rows need."""
LETTERS = 45
"""Letters in a line above a panel."""
MOST_COLUMNS = 16
"""The parts of a dim that is split into more, and is the only one, are in lines of so many, one below another."""

Parts = Mapping[tuple[int, int], Sequence[int]]
"""Row and column of each part of an array -> the devices that hold it."""


def figure_of(overview: Overview) -> Figure:
    """Draw the mesh, and each array of a step with the devices that hold its parts.

    Arrays of a weight that are split alike share a panel.
    """
    panels = [mesh_panel(overview)]
    panels += [(title, parts_of(overview, array)) for title, array in alike(overview.arrays)]
    lines = [panels[start : start + COLUMNS] for start in range(0, len(panels), COLUMNS)]
    heights = [
        TITLE_HEIGHT + max(LEAST_HEIGHT, *(ROW_HEIGHT * extents(parts)[0] for _, parts in line)) for line in lines
    ]
    figure = Figure(figsize=(COLUMNS * WIDTH, sum(heights) + 0.6), layout="constrained")
    grid = [*figure.subplots(len(lines), COLUMNS, squeeze=False, height_ratios=heights).flat]
    for axes, (title, parts) in zip(grid, panels, strict=False):
        draw_parts(axes, parts)
        axes.set_title(title, fontsize="x-small", loc="left")
    for unused in grid[len(panels) :]:
        unused.remove()
    mesh = ",".join(f"{axis}={count}" for axis, count in overview.mesh)
    figure.suptitle(f"{overview.strategy} on {mesh}: {overview.workload}", x=0.01, ha="left", fontsize="medium")
    cells = (
        "A cell is a part of an array; its numbers are the devices that hold it, and its colour tells it from others."
    )
    caption(figure, f"{cells} m and v are AdamW's moments.")
    return figure


def mesh_panel(overview: Overview) -> tuple[str, Parts]:
    """Return the title and the cells of the device grid: the innermost axis to the right, the others downwards."""
    *outer, (innermost, columns) = overview.mesh
    down = f"down: {' x '.join(axis for axis, _ in outer)}, " if outer else ""
    cells = {divmod(number, min(columns, MOST_COLUMNS)): [number] for number in range(len(overview.devices))}
    return f"the devices of the mesh\n{down}right: {innermost}", cells


def alike(arrays: Sequence[HeldArray]) -> list[tuple[str, HeldArray]]:
    """Return a title and an array for each group of arrays of one name that are split alike."""
    groups: dict[tuple[str, tuple[tuple[str, ...], ...]], list[HeldArray]] = {}
    for array in arrays:
        groups.setdefault((array.name, array.axes), []).append(array)
    return [(title_of(group), group[0]) for group in groups.values()]


def title_of(group: Sequence[HeldArray]) -> str:
    """Return what the arrays of a group are, their dims with the axes that split them, and the bytes of each."""
    array = group[0]
    dims = zip(array.dims, array.shape, array.axes, strict=True)
    lines = [
        f"{array.name}: {', '.join(each.what for each in group)}",
        " ".join("/".join([f"{dim}={length}", *axes]) for dim, length, axes in dims),
        f"{size(array.whole_bytes)}, {size(array.held_bytes)} on a device",
    ]
    return "\n".join(part for line in lines for part in textwrap.wrap(line, LETTERS))


def parts_of(overview: Overview, array: HeldArray) -> Parts:
    """Return the devices that hold each part.

    The last of several dims that are split runs to the right, the others downwards. If only one is split, it runs as it
    does in a matrix: the last dim of the array to the right, another one downwards.
    """
    split = [axes for axes in array.axes if axes]
    down, right = (split[:-1], split[-1:]) if len(split) > 1 or (split and array.axes[-1]) else (split, [])
    parts: dict[tuple[int, int], list[int]] = {}
    for number, device in enumerate(overview.devices):
        (row, _), (column, _) = (
            overview.part(device, [axis for axes in way for axis in axes]) for way in (down, right)
        )
        parts.setdefault((row, column), []).append(number)
    if len(split) == 1 and len(parts) > MOST_COLUMNS:
        return {divmod(max(place), MOST_COLUMNS): devices for place, devices in parts.items()}
    return parts


def extents(parts: Parts) -> tuple[int, int]:
    """Return the numbers of rows and columns."""
    rows, columns = zip(*parts, strict=True)
    return 1 + max(rows), 1 + max(columns)


def draw_parts(axes: Axes, parts: Parts) -> None:
    """Draw a cell for each part, in a colour of its own, with the numbers of the devices that hold it."""
    rows, columns = extents(parts)
    for (row, column), colour in zip(sorted(parts), part_colours(len(parts)), strict=True):
        axes.add_patch(Rectangle((column, row), 1, 1, facecolor=colour, edgecolor="white", linewidth=0.8))
        text = textwrap.wrap(names(parts[row, column]), max(4, round(40 / columns)))
        points = min(8.0, max(60 / rows, 5.0) / len(text), 300 / columns / max(map(len, text)))
        ink = "black" if np.dot(colour[:3], (0.299, 0.587, 0.114)) > 0.55 else "white"
        axes.text(column + 0.5, row + 0.5, "\n".join(text), ha="center", va="center", fontsize=points, color=ink)
    axes.set(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_color(GREY)


def part_colours(count: int) -> list[tuple[float, ...]]:
    """Return a colour for each part, of the map of `jax.debug.visualize_array_sharding`. Neighbours differ.

    Its own order gives two parts the same colour.
    """
    step = next(step for step in range(max(1, 2 * count // 5), 0, -1) if math.gcd(step, count) == 1)
    return [mpl.colormaps["tab20b"](index * step % count / max(1, count - 1)) for index in range(count)]


def names(devices: Sequence[int]) -> str:
    """Write the numbers of devices, three or more consecutive ones as a range.

    >>> names([0, 1, 2, 3]), names([0, 1, 4, 5]), names([0, 8, 9, 10])
    ('0-3', '0, 1, 4, 5', '0, 8-10')
    """
    runs: list[list[int]] = []
    for device in devices:
        if runs and device == runs[-1][-1] + 1:
            runs[-1].append(device)
        else:
            runs.append([device])
    texts = [[f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run) for run in runs]
    return ", ".join(text for each in texts for text in each)
