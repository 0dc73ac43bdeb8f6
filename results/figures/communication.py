"""Draws an overview of a strategy: the arrays that each device holds, and the collectives of a step."""

from itertools import groupby

from results.figures.exchanges import draw_exchanges
from results.figures.grid import MARGIN, WIDTH, Grid, shade, size
from results.figures.palette import ARRAY_COLOURS, GREY, INK, LINE
from results.figures.svg import Drawing, tint
from results.figures.ticks import draw_timetable
from results.records.overviews import Device, Held, Overview


def communication(overview: Overview) -> str:
    """Return the overview of a strategy as SVG."""
    mesh = ",".join(f"{axis}={size}" for axis, size in overview.mesh)
    drawing = Drawing(WIDTH)
    grid = Grid(overview)
    drawing.text(MARGIN, 24, overview.strategy, 17, font_weight="bold")
    drawing.text(WIDTH - MARGIN, 24, mesh, 12, GREY, text_anchor="end")
    drawing.text(MARGIN, 40, overview.workload, 10, GREY)
    drawing.y = 50
    draw_devices(drawing, grid)
    draw_holdings(drawing, grid)
    draw_exchanges(drawing, grid)
    if overview.schedule:
        draw_timetable(drawing, overview.schedule)
    drawing.y += 8
    return drawing.finished(f"{overview.strategy} on {mesh}: what each device holds and sends", shown=1.4)


def draw_devices(drawing: Drawing, grid: Grid) -> None:
    """Draw a row for each mesh axis, in which devices at the same position along it and the outer axes share a cell."""
    devices = grid.overview.devices
    axes = [axis for axis, _ in grid.overview.mesh]
    for depth, axis in enumerate(axes, 1):
        drawing.text(MARGIN, drawing.y + 11, axis, 11, GREY)
        cells = groupby(enumerate(devices), key=lambda each: [each[1][name] for name in axes[:depth]])
        for position, cell in cells:
            columns = [index for index, _ in cell]
            x, width = grid.x(columns[0]), grid.x(columns[-1]) - grid.x(columns[0]) + grid.box
            drawing.rect(x, drawing.y, width, 15, tint(LINE, 0.4), rx=3)
            name = f"device {position[0]}" if len(axes) == 1 else str(position[-1])
            drawing.text(x + width / 2, drawing.y + 11, name, 10, text_anchor="middle")
        drawing.y += 18
    drawing.y += 4


def draw_holdings(drawing: Drawing, grid: Grid) -> None:
    """Draw each array as one box per device, filled where the device holds the array."""
    for held in grid.overview.held:
        height = 42 if has_table(held) else 30
        name, *rest = held.what.split()  # two words on one line are too wide for the gutter
        drawing.text(MARGIN, drawing.y + 13, name, 11, INK, font_weight="bold")
        amount = [] if held.held_bytes is None else [size(held.held_bytes)]
        drawing.text(MARGIN, drawing.y + 26, ", ".join([*rest, *amount]), 10, GREY)
        for index, device in enumerate(grid.overview.devices):
            draw_part(drawing, grid, held, device, grid.x(index), height)
        drawing.y += height + 7
    lines = (
        "batch, activations: sequences and layers down, tokens and features to the right",
        "others: vocabulary table, below it the layers from top to bottom",
        "activations: what the forward pass keeps for the backward pass, by formula",
    )
    for line in lines:
        drawing.text(MARGIN, drawing.y + 6, line, 9, GREY)
        drawing.y += 12
    drawing.y += 2


def has_table(held: Held) -> bool:
    """Return whether an array has rows for the vocabulary, which are drawn above its layers."""
    return held.what not in ("batch", "activations")


def draw_part(drawing: Drawing, grid: Grid, held: Held, device: Device, x: float, height: float) -> None:
    """Draw one device's part of an array."""
    overview, y = grid.overview, drawing.y
    index, count = overview.part(device, dict.fromkeys((*held.rows, *held.columns)))
    colour = shade(ARRAY_COLOURS[held.what], index, count)
    if has_table(held):
        column, columns = overview.part(device, held.table)
        drawing.rect(x, y, grid.box, 9, "none", stroke=LINE)
        drawing.rect(x + column * grid.box / columns, y, grid.box / columns, 9, colour)
        y, height = y + 12, height - 12
    drawing.rect(x, y, grid.box, height, "none", stroke=LINE)
    row, rows = overview.part(device, held.rows)
    for start, end in columns_of(overview, held, device):
        drawing.rect(x + start * grid.box, y + row * height / rows, (end - start) * grid.box, height / rows, colour)


def columns_of(overview: Overview, held: Held, device: Device) -> list[tuple[float, float]]:
    """Return the ranges of an array's tokens or features that a device holds, as fractions of the whole.

    In zigzag order, a device holds one chunk from the front of each sequence and one from the back.
    """
    index, count = overview.part(device, held.columns)
    if not has_table(held) and overview.zigzag:
        return [(chunk / (2 * count), (chunk + 1) / (2 * count)) for chunk in (index, 2 * count - 1 - index)]
    return [(index / count, (index + 1) / count)]
