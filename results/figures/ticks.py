"""Draws a pipeline schedule below a picture of devices: one row per stage, one cell per tick."""

from results.figures.grid import MARGIN, WIDTH
from results.figures.palette import GREY, INK, PASS_COLOURS
from results.figures.svg import Drawing, tint
from results.records.schedules import KINDS, Operation, Schedule

LABEL, CELL = 42, 17
"""Width of the labels of stages, and height of a cell."""


def draw_timetable(drawing: Drawing, schedule: Schedule) -> None:
    """Draw the operation of each stage at each tick, with the number of its microbatch."""
    rows = schedule.stages
    width = (WIDTH - LABEL - 2 * MARGIN) / len(rows[0])
    drawing.y += 26
    drawing.text(MARGIN, drawing.y, f"the schedule: {schedule.schedule}", 13, font_weight="bold")
    drawing.text(WIDTH - MARGIN, drawing.y, "time \u2192", 10, GREY, text_anchor="end")
    drawing.y += 8
    for stage, row in enumerate(rows):
        drawing.text(MARGIN, drawing.y + 12, f"stage {stage}", 10, GREY)
        for tick, op in enumerate(row):
            if op:
                draw_cell(drawing, MARGIN + LABEL + tick * width, width, op)
        drawing.y += CELL
    draw_kinds(drawing, {op.kind for row in rows for op in row if op})


def draw_cell(drawing: Drawing, x: float, width: float, op: Operation) -> None:
    """Draw one operation. Chunks of the model after the first are paler, and narrow cells have no number."""
    colour = tint(PASS_COLOURS[op.kind], 1 if op.chunk == 0 else 0.5)
    drawing.rect(x, drawing.y, 0.93 * width, CELL - 1, colour, rx=min(2, width / 4))
    if width > 11:
        drawing.text(x + 0.465 * width, drawing.y + 12, str(op.microbatch), 10, INK, text_anchor="middle")


def draw_kinds(drawing: Drawing, kinds: set[str]) -> None:
    """Draw the key: the colour of each kind of operation that the schedule has."""
    x = MARGIN + LABEL
    for kind, name in KINDS.items():
        if kind in kinds:
            drawing.rect(x, drawing.y + 5, 12, 10, PASS_COLOURS[kind], rx=2)
            drawing.text(x + 17, drawing.y + 14, name, 10, GREY)
            x += 80
    drawing.text(WIDTH - MARGIN, drawing.y + 14, "number: microbatch; empty: idle", 10, GREY, text_anchor="end")
    drawing.y += 22
