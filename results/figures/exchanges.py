"""Draws collectives as lanes: the data of each device before and after, and lines from senders to receivers."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from results.figures.grid import COLOURS, MARGIN, WIDTH, Grid, shade, size
from results.figures.svg import GREY, INK, LINE, Drawing, tint
from results.records.overviews import Device, Overview, Sent

SMALL = 0.01
"""Exchanges with a smaller share of all bytes are listed instead of drawn."""
ATTENTION = "keys and values", "tokens and heads"
"""Exchanges of attention across devices."""
BAR, GAP = 11, 32
"""Heights: of a bar, and between the bars of a lane."""
PHRASES = {
    "all_gather": "all-gather: each gets the parts of all",
    "reduce_scatter": "reduce-scatter: each gets its part of the sum",
    "all_reduce": "all-reduce: each gets the sum",
    "all_to_all": "all-to-all: all tokens of its own heads",
    "permute": "permute: each sends to its neighbours",
}
AROUND = "permute: each sends to the next in a ring"


@dataclass(frozen=True)
class Segment:
    """A stretch of a device's bar, from `start` to `end` as shares of the whole array, in the colour of its part.

    Attributes:
        top, bottom: as shares of the bar's height.
    """

    start: float
    end: float
    colour: str
    top: float = 0.0
    bottom: float = 1.0

    @property
    def middle(self) -> float:
        """Where lines begin and end."""
        return (self.start + self.end) / 2


def draw_exchanges(drawing: Drawing, grid: Grid) -> None:
    """Draw all lanes, and name what is too small for one."""
    sent = grid.overview.sent
    drawing.y += 12
    if not sent:
        draw_nothing(drawing, grid.overview)
        return
    total = sum(each.sent_bytes for each in sent)
    drawing.text(MARGIN, drawing.y + 10, f"each device sends {size(total)} in a step", 13, font_weight="bold")
    drawing.y += 22
    small: list[Sent] = []
    for lane, members in lanes(sent).items():
        if (sent_bytes := sum(each.sent_bytes for each in members)) < SMALL * total:
            small += members
        else:
            draw_lane(drawing, grid, replace(lane, sent_bytes=sent_bytes))
    draw_key(drawing)
    draw_small(drawing, small)


def draw_nothing(drawing: Drawing, overview: Overview) -> None:
    """Say that nothing is sent, or who decides what is."""
    words = "nothing is sent" if overview.sent is not None else "the compiler decides what is sent"
    drawing.text(MARGIN, drawing.y + 10, words, 13, font_weight="bold")
    drawing.y += 14
    if overview.twin:
        drawing.text(MARGIN, drawing.y + 14, f"The same by hand, with its collectives: {overview.twin}.", 10, GREY)
        drawing.y += 18


def lanes(sent: Sequence[Sent]) -> dict[Sent, list[Sent]]:
    """Exchanges that differ in what is sent alone share a lane; those of attention have their own."""
    found: dict[Sent, list[Sent]] = {}
    for each in sent:
        what = each.what if each.what in ATTENTION else each.array
        found.setdefault(replace(each, what=what, sent_bytes=0), []).append(each)
    return found


def draw_lane(drawing: Drawing, grid: Grid, lane: Sent) -> None:
    """Draw one collective."""
    overview = grid.overview
    draw_title(drawing, lane)
    above, below = drawing.y + BAR, drawing.y + BAR + GAP
    drawing.text(MARGIN, above - 2, "before", 10, GREY)
    drawing.text(MARGIN, below + BAR - 2, "after", 10, GREY)
    shares = lane.kind in ("all_reduce", "reduce_scatter")
    with drawing.group(stroke_width=1.1):
        for start, end, line_colour in lines(grid, lane):
            drawing.arrow((start, above + 2), (end, below - 1), line_colour)
    for index, device in enumerate(overview.devices):
        draw_bar(drawing, grid.x(index), above - BAR, grid.box, before(overview, lane, device), hatched=shares)
        draw_bar(drawing, grid.x(index), below, grid.box, after(overview, lane, device))
    drawing.y = below + BAR + 16


def draw_title(drawing: Drawing, lane: Sent) -> None:
    """Name a lane: when it runs, what is sent along which axes, how many bytes, and what the collective does."""
    y, colour = drawing.y, COLOURS[lane.array]
    drawing.rect(MARGIN, y, WIDTH - 2 * MARGIN, 30, tint(colour, 0.1), rx=4)
    drawing.text(MARGIN + 6, y + 12.5, lane.when, 11, tint(colour, 1), font_weight="bold")
    what = f"{lane.what} along {' × '.join(lane.along)}"
    drawing.text(MARGIN + 6, y + 25, AROUND if is_ring(lane) else PHRASES[lane.kind], 10, INK)
    drawing.text(WIDTH - MARGIN - 6, y + 12.5, size(lane.sent_bytes), 11, font_weight="bold", text_anchor="end")
    drawing.text(WIDTH - MARGIN - 6, y + 25, what, 10, INK, text_anchor="end")
    drawing.y += 36


def is_ring(lane: Sent) -> bool:
    """Whether each sends to the next, and the last to the first; two send to each other, as neighbours do."""
    size = len(lane.links)
    return size > 2 and all(receiver == (sender + 1) % size for sender, receiver in lane.links)


def draw_bar(
    drawing: Drawing, x: float, y: float, width: float, segments: Sequence[Segment], hatched: bool = False
) -> None:
    """Draw what one device has of an array: its segments, hatched where they are its share of a sum."""
    drawing.rect(x, y, width, BAR, "#ffffff", stroke=LINE)
    for each in segments:
        left, length = x + each.start * width, (each.end - each.start) * width
        top, height = y + each.top * BAR, (each.bottom - each.top) * BAR
        drawing.rect(left, top, length, height, each.colour)
        if hatched:
            drawing.rect(left, top, length, height, "url(#share)")


def before(overview: Overview, lane: Sent, device: Device) -> list[Segment]:
    """What a device has before a collective."""
    if lane.kind == "permute":
        return [moving(overview, lane, device)]
    together = lane.kind in ("reduce_scatter", "all_reduce")
    return segments(overview, lane, device) if together else [own(overview, lane, device)]


def after(overview: Overview, lane: Sent, device: Device) -> list[Segment]:
    """What a device has after it; after a permutation what has arrived, side by side if from several."""
    if lane.kind == "permute":
        arrived = [
            moving(overview, lane, other)
            for other in overview.group(device, lane.along)
            if sends(overview, lane, other, device)
        ]
        parts = len(arrived)
        return [replace(each, start=i / parts, end=(i + 1) / parts) for i, each in enumerate(arrived)]
    if lane.kind == "reduce_scatter":
        return [own(overview, lane, device)]
    whole = segments(overview, lane, device)
    if lane.kind == "all_to_all":
        index, count = overview.part(device, lane.along)
        return [replace(each, top=index / count, bottom=(index + 1) / count) for each in whole]
    return whole


def own(overview: Overview, lane: Sent, device: Device) -> Segment:
    """The part of a device, where the array is split most."""
    index, count = overview.part(device, lane.split)
    return Segment(index / count, (index + 1) / count, shade(COLOURS[lane.array], index, count))


def segments(overview: Overview, lane: Sent, device: Device) -> list[Segment]:
    """The parts of all devices of its group; of an array that is not split along the group, its own."""
    return [*dict.fromkeys(own(overview, lane, other) for other in overview.group(device, lane.along))]


def moving(overview: Overview, lane: Sent, device: Device) -> Segment:
    """What a device sends in a permutation, in a colour of its own."""
    index, count = overview.part(device, lane.along)
    return Segment(0, 1, shade(COLOURS[lane.array], index, count))


def sends(overview: Overview, lane: Sent, sender: Device, receiver: Device) -> bool:
    """Whether a device sends to another of its group."""
    link = overview.part(sender, lane.along)[0], overview.part(receiver, lane.along)[0]
    return link in lane.links if lane.kind == "permute" else sender != receiver


def lines(grid: Grid, lane: Sent) -> Iterator[tuple[float, float, str]]:
    """Where each line begins and ends, and its colour: that of the part that goes along it."""
    overview = grid.overview
    numbers = {tuple(device.items()): index for index, device in enumerate(overview.devices)}
    for sender in overview.devices:
        for receiver in overview.group(sender, lane.along):
            if sends(overview, lane, sender, receiver):
                part = moved(overview, lane, sender, receiver)
                start, end = (grid.x(numbers[tuple(each.items())]) for each in (sender, receiver))
                yield start + part.middle * grid.box, end + part.middle * grid.box, part.colour


def moved(overview: Overview, lane: Sent, sender: Device, receiver: Device) -> Segment:
    """What goes from one device to another: the sender's part, or of a sum the receiver's."""
    if lane.kind == "permute":
        return moving(overview, lane, sender)
    return own(overview, lane, receiver if lane.kind == "reduce_scatter" else sender)


def draw_key(drawing: Drawing) -> None:
    """Say what a hatched bar is, and what lines are."""
    x, y = MARGIN, drawing.y
    drawing.rect(x, y, 22, BAR, tint("#5b6672", 0.6))
    drawing.rect(x, y, 22, BAR, "url(#share)")
    drawing.text(x + 28, y + 9, "its own share of a sum, before all shares are added", 10, GREY)
    drawing.text(x, y + 24, "Lines: whose data reaches whom. The hardware chooses the route.", 10, GREY)
    drawing.y += 34


def draw_small(drawing: Drawing, small: Sequence[Sent]) -> None:
    """Name what is too small to be drawn."""
    if not small:
        return
    names = ", ".join(dict.fromkeys(each.what for each in small))
    amount = size(sum(each.sent_bytes for each in small)).replace(" ", "\u00a0")  # on one line with its unit
    words = f"Not drawn, below {SMALL:.0%} each: {names} ({amount})."
    for line in textwrap.wrap(words, 72):
        drawing.text(MARGIN, drawing.y + 8, line, 10, GREY)
        drawing.y += 12
