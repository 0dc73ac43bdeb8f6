"""The pictures of docs/strategies: what each device holds, whose data reaches whom, and the pipeline schedule.

python docs/strategies/pictures.py          # of all strategies
python docs/strategies/pictures.py toy      # of one, such as your own in MESHMARK_STRATEGIES
"""

import dataclasses
import io
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from results.figures.frame import themed
from results.figures.palette import BLACK, BROWN, GREY, INDIGO, INK, LINE, PAPER, PASS_COLOURS, RED, SKY, TEAL, WHITE
from results.figures.shards import size
from results.records import printed
from results.records.printed import PASSES, Device
from strategies import STRATEGIES
from strategies.costs.exchanges import Sent
from strategies.costs.overview import Holding, Overview, overview
from strategies.pipelining.schedules import Schedule

FOLDER = Path(__file__).parent
WIDTH, GUTTER, MARGIN = 400, 88, 10
"""Of a picture, of the labels on its left, and around it, in units."""
INCHES = 1.4 / 96
"""Of a unit: a browser shows 1.4 pixels."""
BAR, GAP, CELL = 11, 32, 17
"""Heights of a bar, of the gap between the two bars of a collective, and of a row of the schedule."""
SMALL = 0.01
"""Smallest share of all bytes sent at which a collective is drawn. Smaller ones are listed."""
ATTENTION = "keys and values", "tokens and heads"
"""What attention sends. Other collectives that differ only in what they send are drawn as one."""
PHRASES = {
    "all_gather": "all-gather: each gets the parts of all",
    "reduce_scatter": "reduce-scatter: each gets its part of the sum",
    "all_reduce": "all-reduce: each gets the sum",
    "all_to_all": "all-to-all: each gets its own part from all",
    "permute": "permute: each sends to its neighbours",
}
AROUND = "permute: each sends to the next in a ring"
HELD = (
    "batch, activations: sequences and layers down, tokens and features to the right",
    "others: vocabulary table, below it the layers from top to bottom",
    "activations: what the forward pass keeps for the backward pass, by formula",
)
FONTS: dict[Any, Any] = {"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans", "Arial"]}
"""Text stays text, in a font of the reader's system."""
ARRAY_COLOURS = {
    **{"batch": SKY, "weights": INDIGO, "gradients": RED},
    **{"optimizer state": TEAL, "activations": BROWN, "number": BLACK},
}
"""Arrays that devices hold and send. Weights, optimizer state and batch look as in the figures of memory."""
HATCHED = {"hatch": "////", "edgecolor": PAPER}
"""How a share of a sum is drawn."""


class Segment(NamedTuple):
    """A part of an array: its left, right, upper and lower edges as fractions of the array, and its colour."""

    start: float
    end: float
    colour: str
    top: float = 0.0
    bottom: float = 1.0

    @property
    def middle(self) -> float:
        """Where arrows begin and end, as a fraction of the array."""
        return (self.start + self.end) / 2


class Picture:
    """A picture with a column for each device. y is the upper edge of the next section, and grows downwards."""

    def __init__(self, shown: Overview) -> None:
        self.shown, self.y = shown, 0.0
        numbered = printed.Overview(shown.strategy, shown.mesh, shown.workload, ())
        self.devices, self.part = numbered.devices, numbered.part
        self.column = (WIDTH - GUTTER - MARGIN) / max(4, len(self.devices))
        self.box = self.column - (10 if self.column > 50 else 5)
        self.figure = Figure(facecolor=PAPER)
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()

    def x(self, index: int) -> float:
        """The left edge of a device's box."""
        return GUTTER + index * self.column + (self.column - self.box) / 2

    def group(self, device: Device, along: Sequence[str]) -> list[Device]:
        """The devices that differ from `device` along these axes only, including itself."""
        return [other for other in self.devices if all(other[axis] == device[axis] for axis in {*device} - {*along})]

    def rect(self, x: float, y: float, width: float, height: float, colour: str, **style: Any) -> None:
        """Draw a rectangle whose upper left corner is at x and y."""
        style = {"linewidth": 0, "clip_on": False, **style}
        self.axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, **style))

    def outline(self, x: float, y: float, width: float, height: float, colour: str = "none") -> None:
        """Draw the outline of a whole array."""
        self.rect(x, y, width, height, colour, edgecolor=LINE, linewidth=1)

    def text(self, x: float, y: float, text: str, points: float = 11, colour: str = INK, **style: Any) -> None:
        """Write a line that starts at x, with its baseline at y."""
        self.axes.text(x, y, text, fontsize=72 * INCHES * points, color=colour, va="baseline", **style)

    def arrow(self, start: float, end: float, colour: str) -> None:
        """Draw an arrow between the two bars of a collective."""
        look = {"arrowstyle": "-|>,head_width=0.15,head_length=0.35", "color": colour, "shrinkA": 0, "shrinkB": 0}
        self.axes.annotate("", (end, self.y + BAR + GAP - 1), (start, self.y + BAR + 2), arrowprops=look)

    def finished(self) -> Figure:
        """The figure, as high as what was drawn."""
        self.axes.set(xlim=(0, WIDTH), ylim=(self.y, 0))
        self.figure.set_size_inches(WIDTH * INCHES, self.y * INCHES)
        return self.figure


def picture(shown: Overview) -> Figure:
    """Draw what each device holds and sends."""
    drawn = Picture(shown)
    drawn.text(MARGIN, 24, shown.strategy, 17, weight="bold")
    drawn.text(WIDTH - MARGIN, 24, ",".join(f"{axis}={size}" for axis, size in shown.mesh), 12, GREY, ha="right")
    drawn.text(MARGIN, 40, shown.workload, 10, GREY)
    drawn.y = 50
    draw_devices(drawn)
    draw_holdings(drawn)
    draw_exchanges(drawn)
    if shown.schedule:
        draw_schedule(drawn, shown.schedule)
    drawn.y += 8
    return drawn.finished()


def draw_devices(drawn: Picture) -> None:
    """Draw a row for each mesh axis, in which devices at the same position along it and the outer axes share a cell."""
    axes = [axis for axis, _ in drawn.shown.mesh]
    for depth, axis in enumerate(axes, 1):
        drawn.text(MARGIN, drawn.y + 11, axis, 11, GREY)
        places = [[device[name] for name in axes[:depth]] for device in drawn.devices]
        for place, cell in groupby(range(len(places)), places.__getitem__):
            columns = [*cell]
            x, width = drawn.x(columns[0]), drawn.x(columns[-1]) - drawn.x(columns[0]) + drawn.box
            drawn.rect(x, drawn.y, width, 15, tint(LINE, 0.4))
            name = f"device {place[0]}" if len(axes) == 1 else str(place[-1])
            drawn.text(x + width / 2, drawn.y + 11, name, 10, ha="center")
        drawn.y += 18
    drawn.y += 4


def draw_holdings(drawn: Picture) -> None:
    """Draw each array as one box per device, filled where the device holds the array."""
    for held in drawn.shown.held:
        height = 42 if has_table(held) else 30
        name, *rest = held.what.split()  # two words on one line are too wide for the gutter
        drawn.text(MARGIN, drawn.y + 13, name, 11, weight="bold")
        amount = [] if held.held_bytes is None else [size(held.held_bytes)]
        drawn.text(MARGIN, drawn.y + 26, ", ".join([*rest, *amount]), 10, GREY)
        for index, device in enumerate(drawn.devices):
            draw_part(drawn, held, device, drawn.x(index), height)
        drawn.y += height + 7
    for line in HELD:
        drawn.text(MARGIN, drawn.y + 6, line, 9, GREY)
        drawn.y += 12
    drawn.y += 14


def has_table(held: Holding) -> bool:
    """Whether an array has rows for the vocabulary, which are drawn above its layers."""
    return held.what not in ("batch", "activations")


def draw_part(drawn: Picture, held: Holding, device: Device, x: float, height: float) -> None:
    """Draw one device's part of an array. In zigzag order it has a front and a back chunk of each sequence."""
    y, box = drawn.y, drawn.box
    colour = shade(ARRAY_COLOURS[held.what], *drawn.part(device, dict.fromkeys((*held.rows, *held.columns))))
    if has_table(held):
        column, columns = drawn.part(device, held.table)
        drawn.outline(x, y, box, 9)
        drawn.rect(x + column * box / columns, y, box / columns, 9, colour)
        y, height = y + 12, height - 12
    drawn.outline(x, y, box, height)
    (row, rows), (column, columns) = drawn.part(device, held.rows), drawn.part(device, held.columns)
    chunks = [column]
    if drawn.shown.zigzag and not has_table(held):
        chunks, columns = [column, 2 * columns - 1 - column], 2 * columns
    for chunk in chunks:
        drawn.rect(x + chunk * box / columns, y + row * height / rows, box / columns, height / rows, colour)


def draw_exchanges(drawn: Picture) -> None:
    """Draw all collectives and the key, and list those that are too small to be drawn."""
    sent = drawn.shown.sent
    if not sent:
        words = "nothing is sent" if sent is not None else "the compiler decides what is sent"
        drawn.text(MARGIN, drawn.y + 10, words, 13, weight="bold")
        drawn.y += 14
        if drawn.shown.twin:
            drawn.text(MARGIN, drawn.y + 14, f"The same by hand, with its collectives: {drawn.shown.twin}.", 10, GREY)
            drawn.y += 18
        return
    total = sum(each.sent_bytes for each in sent)
    drawn.text(MARGIN, drawn.y + 10, f"each device sends {size(total)} in a step", 13, weight="bold")
    drawn.y += 22
    small: list[Sent] = []
    for lane, members in lanes(sent).items():
        if (sent_bytes := sum(each.sent_bytes for each in members)) < SMALL * total:
            small += members
        else:
            draw_lane(drawn, dataclasses.replace(lane, sent_bytes=sent_bytes))
    draw_key(drawn, small)


def lanes(sent: Sequence[Sent]) -> dict[Sent, list[Sent]]:
    """Group collectives: those that differ only in `what` are drawn as one, except those of attention."""
    found: dict[Sent, list[Sent]] = {}
    for each in sent:
        what = each.what if each.what in ATTENTION else each.array
        found.setdefault(dataclasses.replace(each, what=what, sent_bytes=0), []).append(each)
    return found


def draw_lane(drawn: Picture, lane: Sent) -> None:
    """Draw one collective: its title, a bar for each device before and after it, and arrows from sender to receiver."""
    drawn.rect(MARGIN, drawn.y, WIDTH - 2 * MARGIN, 30, tint(ARRAY_COLOURS[lane.array], 0.1))
    ring = len(lane.links) > 2 and all(to == (sender + 1) % len(lane.links) for sender, to in lane.links)
    for y, left, right, weight in (
        (12.5, lane.when, size(lane.sent_bytes), "bold"),
        (25, AROUND if ring else PHRASES[lane.kind], f"{lane.what} along {' × '.join(lane.along)}", "normal"),
    ):
        points = 11 if weight == "bold" else 10
        drawn.text(MARGIN + 6, drawn.y + y, left, points, weight=weight)
        drawn.text(WIDTH - MARGIN - 6, drawn.y + y, right, points, weight=weight, ha="right")
    drawn.y += 36
    drawn.text(MARGIN, drawn.y + BAR - 2, "before", 10, GREY)
    drawn.text(MARGIN, drawn.y + 2 * BAR + GAP - 2, "after", 10, GREY)
    for start, end, colour in arrows(drawn, lane):
        drawn.arrow(start, end, colour)
    shares = lane.kind in ("all_reduce", "reduce_scatter")
    for index, device in enumerate(drawn.devices):
        draw_bar(drawn, drawn.x(index), drawn.y, before(drawn, lane, device), hatched=shares)
        draw_bar(drawn, drawn.x(index), drawn.y + BAR + GAP, after(drawn, lane, device))
    drawn.y += 2 * BAR + GAP + 16


def draw_bar(drawn: Picture, x: float, y: float, segments: Iterable[Segment], hatched: bool = False) -> None:
    """Draw the bar of one device: the segments of the array that it has, hatched if they are its share of a sum."""
    drawn.outline(x, y, drawn.box, BAR, WHITE)
    for each in segments:
        left, width = x + each.start * drawn.box, (each.end - each.start) * drawn.box
        height, style = (each.bottom - each.top) * BAR, HATCHED if hatched else {}
        drawn.rect(left, y + each.top * BAR, width, height, each.colour, **style)


def before(drawn: Picture, lane: Sent, device: Device) -> list[Segment]:
    """The segments that a device has before a collective."""
    if lane.kind == "permute":
        return [moving(drawn, lane, device)]
    whole = lane.kind in ("reduce_scatter", "all_reduce")
    return segments(drawn, lane, device) if whole else [own(drawn, lane, device)]


def after(drawn: Picture, lane: Sent, device: Device) -> list[Segment]:
    """The segments that a device has after a collective. Those received in a permute are side by side."""
    if lane.kind == "permute":
        group = drawn.group(device, lane.along)
        arrived = [moving(drawn, lane, other) for other in group if sends(drawn, lane, other, device)]
        parts = len(arrived)
        return [each._replace(start=i / parts, end=(i + 1) / parts) for i, each in enumerate(arrived)]
    if lane.kind == "reduce_scatter":
        return [own(drawn, lane, device)]
    whole = segments(drawn, lane, device)
    if lane.kind == "all_to_all":
        index, count = drawn.part(device, lane.along)
        return [each._replace(top=index / count, bottom=(index + 1) / count) for each in whole]
    return whole


def own(drawn: Picture, lane: Sent, device: Device) -> Segment:
    """A device's part of the array where it is split most, before or after the collective."""
    index, count = drawn.part(device, lane.split)
    return Segment(index / count, (index + 1) / count, shade(ARRAY_COLOURS[lane.array], index, count))


def segments(drawn: Picture, lane: Sent, device: Device) -> list[Segment]:
    """The distinct parts of the devices in a device's group: one part if the group does not split the array."""
    return [*dict.fromkeys(own(drawn, lane, other) for other in drawn.group(device, lane.along))]


def moving(drawn: Picture, lane: Sent, device: Device) -> Segment:
    """What a device sends in a permute: a whole bar, in a colour that differs between devices of its group."""
    return Segment(0, 1, shade(ARRAY_COLOURS[lane.array], *drawn.part(device, lane.along)))


def sends(drawn: Picture, lane: Sent, sender: Device, receiver: Device) -> bool:
    """Whether a device sends to another device of its group."""
    link = drawn.part(sender, lane.along)[0], drawn.part(receiver, lane.along)[0]
    return link in lane.links if lane.kind == "permute" else sender != receiver


def arrows(drawn: Picture, lane: Sent) -> Iterator[tuple[float, float, str]]:
    """Where each arrow begins and ends, and its colour, that of what is sent: in a reduce-scatter, the receiver's."""
    for sender, receiver in product(drawn.devices, drawn.devices):
        if receiver in drawn.group(sender, lane.along) and sends(drawn, lane, sender, receiver):
            sent = (
                moving(drawn, lane, sender)
                if lane.kind == "permute"
                else own(drawn, lane, receiver if lane.kind == "reduce_scatter" else sender)
            )
            start, end = (drawn.x(drawn.devices.index(each)) + sent.middle * drawn.box for each in (sender, receiver))
            yield start, end, sent.colour


def draw_key(drawn: Picture, small: Sequence[Sent]) -> None:
    """Explain hatched bars and arrows, and list what is too small to be drawn, with its total bytes."""
    drawn.rect(MARGIN, drawn.y, 22, BAR, tint(GREY, 0.6), **HATCHED)
    drawn.text(MARGIN + 28, drawn.y + 9, "its own share of a sum, before all shares are added", 10, GREY)
    drawn.text(MARGIN, drawn.y + 24, "Lines: whose data reaches whom. The hardware chooses the route.", 10, GREY)
    drawn.y += 34
    names = ", ".join(dict.fromkeys(each.what for each in small))
    amount = size(sum(each.sent_bytes for each in small)).replace(" ", "\u00a0")  # not broken before the unit
    words = f"Not drawn, below {SMALL:.0%} each: {names} ({amount})." if small else ""
    for line in textwrap.wrap(words, 72):
        drawn.text(MARGIN, drawn.y + 8, line, 10, GREY)
        drawn.y += 12


def draw_schedule(drawn: Picture, schedule: Schedule) -> None:
    """Draw the operation of each stage at each tick, with the number of its microbatch; later chunks are paler."""
    left, width = MARGIN + 42, (WIDTH - 42 - 2 * MARGIN) / schedule.ticks
    drawn.y += 26
    drawn.text(MARGIN, drawn.y, f"the schedule: {schedule.name}", 13, weight="bold")
    drawn.text(WIDTH - MARGIN, drawn.y, "time \u2192", 10, GREY, ha="right")
    drawn.y += 8
    for stage, row in enumerate(schedule.table):
        drawn.text(MARGIN, drawn.y + 12, f"stage {stage}", 10, GREY)
        for tick, cell in enumerate(row):
            for place, op in enumerate(cell):  # a pair shares the width of its tick
                wide = width / len(cell)
                x, colour = left + tick * width + place * wide, tint(PASS_COLOURS[op.kind], 0.5 if op.chunk else 1)
                drawn.rect(x, drawn.y, 0.93 * wide, CELL - 1, colour)
                if wide > 11:
                    drawn.text(x + 0.465 * wide, drawn.y + 12, str(op.microbatch), 10, ha="center")
        drawn.y += CELL
    done = {op.kind for row in schedule.table for cell in row for op in cell}
    for place, kind in enumerate(kind for kind in PASSES if kind in done):
        drawn.rect(left + 80 * place, drawn.y + 5, 12, 10, PASS_COLOURS[kind])
        drawn.text(left + 80 * place + 17, drawn.y + 14, PASSES[kind], 10, GREY)
    drawn.text(WIDTH - MARGIN, drawn.y + 14, "number: microbatch; empty: idle", 10, GREY, ha="right")
    drawn.y += 22


def tint(colour: str, strength: float) -> str:
    """Mix a colour with white. Strength 1 is the colour, and 0 is white."""
    red, green, blue = (1 - strength * (1 - channel) for channel in to_rgb(colour))
    return to_hex((red, green, blue))


def shade(colour: str, index: int, count: int) -> str:
    """The shade of one of `count` parts. The first part is the darkest."""
    return tint(colour, 1 - 0.6 * index / (count - 1) if count > 1 else 0.85)


def write(name: str, folder: Path = FOLDER) -> Path:
    """Write the picture of a strategy with the model of its page."""
    path, drawn = folder / f"{name}.svg", io.StringIO()
    about = {"Title": f"{name}: what each device holds and sends", "Date": None, "Creator": None}
    with themed(), mpl.rc_context(FONTS):
        figure = picture(overview(name, "nano-moe" if name == "expert" else "gpt2"))
        figure.savefig(drawn, format="svg", metadata=about)
    path.write_text(re.sub(r"\s*\n(?=[LQCMz\"])", " ", drawn.getvalue()), encoding="utf-8")  # a path in one line
    return path


if __name__ == "__main__":
    for strategy in sys.argv[1:] or STRATEGIES:
        write(strategy)
