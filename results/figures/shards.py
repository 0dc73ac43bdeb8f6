"""The figure of which device holds which part of each array of a step: a panel a layout, a cell for each part."""

import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from results.figures.frame import PLAIN, Style, described, opened
from results.figures.palette import GREY, PURE_BLACK, WHITE, device_colours
from results.records.printed import HeldArray, Overview

COLUMNS = 4
"""Panels side by side."""
WIDTH, LEAST_HEIGHT, ROW_HEIGHT, TITLE_HEIGHT = 3.1, 1.0, 0.1, 0.9
"""Of a panel, in inches. It is as high as its rows need."""
LETTERS = 45
"""Letters in a line above a panel."""
NAMED = 3
"""Most arrays that a title names."""
MOST_COLUMNS = 16
"""Most parts of a dim in one line. If an array has one split dim, with more parts, they wrap to lines of this many."""

CELLS = (
    "A cell is a part of an array. A device has the same colour everywhere; the stripes of a cell are the devices that "
    "hold it. Bytes are those of all arrays of a panel: weights, gradients and AdamW's moments."
)

MeshCells = Mapping[tuple[int, int], Sequence[int]]
"""Row and column of each part of an array -> the devices that hold it."""


def shards(overview: Overview, style: Style = PLAIN) -> Figure:
    """Draw the mesh, and a panel for each distinct layout of the arrays of a step: which devices hold which part."""
    panels = [mesh_panel(overview), *layout_panels(overview)]
    lines = [panels[start : start + COLUMNS] for start in range(0, len(panels), COLUMNS)]
    heights = [
        TITLE_HEIGHT + max(LEAST_HEIGHT, *(ROW_HEIGHT * extents(parts)[0] for _, parts in line)) for line in lines
    ]
    size = (COLUMNS * WIDTH, sum(heights) + 0.6)
    shared = {"sharex": False, "sharey": False, "height_ratios": heights}
    figure, grid = opened(style, len(panels), size, columns=COLUMNS, **shared)
    colours = device_colours(len(overview.devices))
    for axes, (title, parts) in zip(grid, panels, strict=True):
        draw_parts(axes, parts, colours)
        axes.set_title(title, fontsize="x-small", loc="left")
    mesh = ",".join(f"{axis}={count}" for axis, count in overview.mesh)
    return described(figure, style, [f"{overview.strategy} on {mesh}", *overview.workload.split(", ")], [], [CELLS])


def mesh_panel(overview: Overview) -> tuple[str, MeshCells]:
    """Return the title and the cells of the device grid: the innermost axis to the right, the others downwards."""
    *outer, (innermost, columns) = overview.mesh
    down = f"down: {' x '.join(axis for axis, _ in outer)}, " if outer else ""
    cells = {divmod(number, min(columns, MOST_COLUMNS)): [number] for number in range(len(overview.devices))}
    return f"the devices of the mesh\n{down}right: {innermost}", cells


def layout_panels(overview: Overview) -> list[tuple[str, MeshCells]]:
    """Return a title and the parts of each distinct layout, the one with the most bytes first."""
    groups: dict[str, list[HeldArray]] = {}
    parts: dict[str, MeshCells] = {}
    for array in overview.arrays:
        own = parts_of(overview, array)
        key = repr(sorted(own.items()))
        groups.setdefault(key, []).append(array)
        parts[key] = own
    largest = sorted(groups, key=lambda key: -sum(array.whole_bytes for array in groups[key]))
    return [(title_of(groups[key]), parts[key]) for key in largest]


def title_of(group: Sequence[HeldArray]) -> str:
    """Return the dims that the arrays of a group split, with their axes, and the names and the bytes of the arrays."""
    splits = dict.fromkeys(
        " ".join("/".join([dim, *axes]) for dim, axes in zip(array.dims, array.axes, strict=True) if axes)
        for array in group
    )
    names = [*dict.fromkeys(array.name for array in group)]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    whole, held = (sum(getattr(array, f"{which}_bytes") for array in group) for which in ("whole", "held"))
    lines = [
        f"split: {', '.join(filter(None, splits)) or 'nothing'}",
        f"{', '.join(names[:NAMED])}{more}",
        f"{size(whole)}, {size(held)} on a device",
    ]
    return "\n".join(part for line in lines for part in textwrap.wrap(line, LETTERS))


def parts_of(overview: Overview, array: HeldArray) -> MeshCells:
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


def extents(parts: MeshCells) -> tuple[int, int]:
    """Return the numbers of rows and columns."""
    rows, columns = zip(*parts, strict=True)
    return 1 + max(rows), 1 + max(columns)


def draw_parts(axes: Axes, parts: MeshCells, colours: Sequence[str]) -> None:
    """Draw a cell for each part: a stripe in its colour for each device that holds it, and the devices' numbers."""
    rows, columns = extents(parts)
    for (row, column), devices in parts.items():
        width = 1 / len(devices)
        for place, device in enumerate(devices):
            stripe = Rectangle((column + place * width, row), width, 1, facecolor=colours[device], linewidth=0)
            axes.add_patch(stripe)
        axes.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor=WHITE, linewidth=1.5))
        text = textwrap.wrap(names(devices), max(4, round(40 / columns)))
        points = min(8.0, max(60 / rows, 5.0) / len(text), 300 / columns / max(map(len, text)))
        axes.text(column + 0.5, row + 0.5, "\n".join(text), ha="center", va="center", fontsize=points, color=PURE_BLACK)
    axes.set(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_color(GREY)


def size(count: int) -> str:
    """Return a number of bytes as text, in the largest unit from B to GiB that does not exceed it.

    >>> size(746_855_424), size(5_059_584), size(1024), size(6)
    ('712 MiB', '4.8 MiB', '1.0 KiB', '6 B')
    """
    for name, unit in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= unit:
            return f"{count / unit:,.{1 if count < 10 * unit else 0}f} {name}"
    return f"{count} B"


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
