"""Draws each collective as a lane: every device's data before and after it, with lines from senders to receivers."""

import dataclasses
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from results.figures.grid import MARGIN, WIDTH, Grid, shade, size
from results.figures.palette import ARRAY_COLOURS, GREY, INK, LINE, WHITE
from results.figures.svg import Drawing, tint
from results.records.overviews import Device, Overview, Sent

SMALL = 0.01
"""Smallest share of all bytes sent at which a lane is drawn. Smaller ones are listed below the lanes."""
ATTENTION = "keys and values", "tokens and heads"
"""What attention sends between devices. Each of these has its own lane."""
BAR, GAP = 11, 32
"""Height of a bar, and of the gap between the two bars of a lane."""
PHRASES = {
    "all_gather": "all-gather: each gets the parts of all",
    "reduce_scatter": "reduce-scatter: each gets its part of the sum",
    "all_reduce": "all-reduce: each gets the sum",
    "all_to_all": "all-to-all: each gets its own part from all",
    "permute": "permute: each sends to its neighbours",
}
AROUND = "permute: each sends to the next in a ring"


@dataclass(frozen=True)
class Segment:
    """A filled rectangle in a device's bar: one part of an array.

    Attributes:
        start, end: left and right edges, as fractions of the whole array.
        colour: colour of the part.
        top, bottom: upper and lower edges, as fractions of the bar's height.
    """

    start: float
    end: float
    colour: str
    top: float = 0.0
    bottom: float = 1.0

    @property
    def middle(self) -> float:
        """Position where lines begin and end, as a fraction of the whole array."""
        return (self.start + self.end) / 2


def draw_exchanges(drawing: Drawing, grid: Grid) -> None:
    """Draw all lanes and the key, and list the exchanges that are too small for a lane."""
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
            draw_lane(drawing, grid, msgspec.structs.replace(lane, sent_bytes=sent_bytes))
    draw_key(drawing)
    draw_small(drawing, small)


def draw_nothing(drawing: Drawing, overview: Overview) -> None:
    """Write that nothing is sent or that the compiler decides, and name the strategy with explicit collectives."""
    words = "nothing is sent" if overview.sent is not None else "the compiler decides what is sent"
    drawing.text(MARGIN, drawing.y + 10, words, 13, font_weight="bold")
    drawing.y += 14
    if overview.twin:
        drawing.text(MARGIN, drawing.y + 14, f"The same by hand, with its collectives: {overview.twin}.", 10, GREY)
        drawing.y += 18


def lanes(sent: Sequence[Sent]) -> dict[Sent, list[Sent]]:
    """Group exchanges into lanes. Exchanges that differ only in `what` share a lane, except those of attention."""
    found: dict[Sent, list[Sent]] = {}
    for each in sent:
        what = each.what if each.what in ATTENTION else each.array
        found.setdefault(msgspec.structs.replace(each, what=what, sent_bytes=0), []).append(each)
    return found


def draw_lane(drawing: Drawing, grid: Grid, lane: Sent) -> None:
    """Draw one collective: its title, a bar for each device before and after it, and the lines between them."""
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
    """Draw the title of a lane: when it runs, what it sends along which axes, its bytes, and its kind of collective."""
    y, colour = drawing.y, ARRAY_COLOURS[lane.array]
    drawing.rect(MARGIN, y, WIDTH - 2 * MARGIN, 30, tint(colour, 0.1), rx=4)
    drawing.text(MARGIN + 6, y + 12.5, lane.when, 11, INK, font_weight="bold")
    what = f"{lane.what} along {' × '.join(lane.along)}"
    drawing.text(MARGIN + 6, y + 25, AROUND if is_ring(lane) else PHRASES[lane.kind], 10, INK)
    drawing.text(WIDTH - MARGIN - 6, y + 12.5, size(lane.sent_bytes), 11, font_weight="bold", text_anchor="end")
    drawing.text(WIDTH - MARGIN - 6, y + 25, what, 10, INK, text_anchor="end")
    drawing.y += 36


def is_ring(lane: Sent) -> bool:
    """Return whether each device sends to the next, and the last to the first. Two devices are neighbours."""
    size = len(lane.links)
    return size > 2 and all(receiver == (sender + 1) % size for sender, receiver in lane.links)


def draw_bar(
    drawing: Drawing, x: float, y: float, width: float, segments: Sequence[Segment], hatched: bool = False
) -> None:
    """Draw the bar of one device: the segments of the array that it has, hatched if they are its share of a sum."""
    drawing.rect(x, y, width, BAR, WHITE, stroke=LINE)
    for each in segments:
        left, length = x + each.start * width, (each.end - each.start) * width
        top, height = y + each.top * BAR, (each.bottom - each.top) * BAR
        drawing.rect(left, top, length, height, each.colour)
        if hatched:
            drawing.rect(left, top, length, height, "url(#share)")


def before(overview: Overview, lane: Sent, device: Device) -> list[Segment]:
    """Return the segments that a device has before a collective."""
    if lane.kind == "permute":
        return [moving(overview, lane, device)]
    together = lane.kind in ("reduce_scatter", "all_reduce")
    return segments(overview, lane, device) if together else [own(overview, lane, device)]


def after(overview: Overview, lane: Sent, device: Device) -> list[Segment]:
    """Return the segments that a device has after a collective. Those received in a permute are side by side."""
    if lane.kind == "permute":
        arrived = [
            moving(overview, lane, other)
            for other in overview.group(device, lane.along)
            if sends(overview, lane, other, device)
        ]
        parts = len(arrived)
        return [dataclasses.replace(each, start=i / parts, end=(i + 1) / parts) for i, each in enumerate(arrived)]
    if lane.kind == "reduce_scatter":
        return [own(overview, lane, device)]
    whole = segments(overview, lane, device)
    if lane.kind == "all_to_all":
        index, count = overview.part(device, lane.along)
        return [dataclasses.replace(each, top=index / count, bottom=(index + 1) / count) for each in whole]
    return whole


def own(overview: Overview, lane: Sent, device: Device) -> Segment:
    """Return a device's part of the array where it is split most, before or after the collective."""
    index, count = overview.part(device, lane.split)
    return Segment(index / count, (index + 1) / count, shade(ARRAY_COLOURS[lane.array], index, count))


def segments(overview: Overview, lane: Sent, device: Device) -> list[Segment]:
    """Return the distinct parts of the devices in a device's group: one part if the group does not split the array."""
    return [*dict.fromkeys(own(overview, lane, other) for other in overview.group(device, lane.along))]


def moving(overview: Overview, lane: Sent, device: Device) -> Segment:
    """Return what a device sends in a permute: a whole bar, in a colour that differs between devices of its group."""
    index, count = overview.part(device, lane.along)
    return Segment(0, 1, shade(ARRAY_COLOURS[lane.array], index, count))


def sends(overview: Overview, lane: Sent, sender: Device, receiver: Device) -> bool:
    """Return whether a device sends to another device of its group."""
    link = overview.part(sender, lane.along)[0], overview.part(receiver, lane.along)[0]
    return link in lane.links if lane.kind == "permute" else sender != receiver


def lines(grid: Grid, lane: Sent) -> Iterator[tuple[float, float, str]]:
    """Yield for each line the x where it begins, the x where it ends, and its colour: that of the part that is sent."""
    overview = grid.overview
    numbers = {tuple(device.items()): index for index, device in enumerate(overview.devices)}
    for sender in overview.devices:
        for receiver in overview.group(sender, lane.along):
            if sends(overview, lane, sender, receiver):
                part = moved(overview, lane, sender, receiver)
                start, end = (grid.x(numbers[tuple(each.items())]) for each in (sender, receiver))
                yield start + part.middle * grid.box, end + part.middle * grid.box, part.colour


def moved(overview: Overview, lane: Sent, sender: Device, receiver: Device) -> Segment:
    """Return what one device sends to another: the sender's part, or the receiver's part in a reduce-scatter."""
    if lane.kind == "permute":
        return moving(overview, lane, sender)
    return own(overview, lane, receiver if lane.kind == "reduce_scatter" else sender)


def draw_key(drawing: Drawing) -> None:
    """Draw the key, which explains hatched bars and lines."""
    x, y = MARGIN, drawing.y
    drawing.rect(x, y, 22, BAR, tint(GREY, 0.6))
    drawing.rect(x, y, 22, BAR, "url(#share)")
    drawing.text(x + 28, y + 9, "its own share of a sum, before all shares are added", 10, GREY)
    drawing.text(x, y + 24, "Lines: whose data reaches whom. The hardware chooses the route.", 10, GREY)
    drawing.y += 34


def draw_small(drawing: Drawing, small: Sequence[Sent]) -> None:
    """List the exchanges that are too small to be drawn, with their total bytes."""
    if not small:
        return
    names = ", ".join(dict.fromkeys(each.what for each in small))
    amount = size(sum(each.sent_bytes for each in small)).replace(" ", "\u00a0")  # not broken before the unit
    words = f"Not drawn, below {SMALL:.0%} each: {names} ({amount})."
    for line in textwrap.wrap(words, 72):
        drawing.text(MARGIN, drawing.y + 8, line, 10, GREY)
        drawing.y += 12
