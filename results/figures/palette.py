"""All colours and markers of figures, diagrams and pages: a thing looks the same wherever it is drawn.

Any two colours of one table differ by at least 0.08 in OKLab, in normal vision and as simulated for each of the three
kinds of dichromacy. A strategy's colour has a contrast of at least 3 to white, as WCAG 2.1 asks of graphics. Colours of
strategies differ in grey, too, and a marker of its own tells each apart without colour.
"""

from collections.abc import Iterable
from typing import NamedTuple, get_args

import seaborn as sns
from matplotlib.markers import MarkerStyle

from results.figures.tables import PARTS, TIMES
from results.records.documents import Limit

MARKERS = "osD^vPX<>ph*d"
"""Markers of matplotlib. Their number, 13, has no factor in common with the 12 colours: 156 looks."""

STRATEGY_COLOURS = {
    "single": "#333333",
    "data": "#2a01ff",
    "zero1": "#1e8a9f",
    "zero2": "#8c9a32",
    "fsdp": "#406c0a",
    "hsdp": "#371102",
    "tensor": "#b45864",
    "context": "#8252c0",
    "pipeline": "#cb4ff6",
    "three_d": "#864064",
    "auto": "#5d2f84",
    "expert": "#3504bd",
    "explicit": "#030005",
}
"""The strategies of meshmark, in the order in which legends name them."""

FIRST_OWN = 3
"""With this place of the first colour of users' strategies, more than a hundred of them have looks of their own."""

INK, GREY, LINE, PAPER = "#1f2933", "#5b6672", "#c9d1d9", "#fcfcfa"
"""Text, captions, outlines and the ground of pictures."""
PURE_BLACK, WHITE, BAND = "black", "white", "0.95"
"""Edges of markers and lines of reference, the inside of hollow markers and edges of patches, bands behind points."""
INDIGO, TEAL, SAND, RED, SKY, BROWN, BLACK = "#332288", "#2aa198", "#e8d88a", "#dd6655", "#88ccee", "#8a4513", "#222222"

PART_COLOURS = dict(zip(PARTS, (INDIGO, TEAL, SKY, RED, BLACK), strict=True))
"""What holds a device's memory. The diagrams of the strategies draw arrays in these colours, too."""

TIME_COLOURS = dict(zip(TIMES, (INDIGO, SKY, TEAL, RED, SAND, BROWN, BLACK), strict=True))
"""What the time of a step is spent on."""

PASS_COLOURS = {"F": SKY, "B": RED, "W": SAND}
"""The passes of a pipeline schedule: forward, backward, and the gradients of weights. Black text on them is legible."""

LANE_COLOURS = {
    "compute": INDIGO,
    "compute, forward": SKY,
    "memory": SAND,
    "exposed communication": RED,
    "pipeline bubble": BLACK,
    "waits for the host": BROWN,
    "hidden communication": TEAL,
}
"""What happens in the lanes of a replayed step."""

LIMIT_COLOURS = dict(zip(get_args(Limit), (INDIGO, SKY, TEAL, RED, SAND, BROWN, BLACK), strict=True))
"""What limits a predicted step."""


def device_colours(count: int) -> list[str]:
    """Return a colour for each device, around the circle of hues: a number tells neighbours apart, too."""
    return list(sns.husl_palette(count, s=0.75, l=0.68).as_hex())


class StrategyLook(NamedTuple):
    """How a strategy is drawn: a colour as #rrggbb, and a marker of matplotlib."""

    colour: str
    marker: str


def in_order(strategies: Iterable[str]) -> list[str]:
    """Return all names in the order of legends: the strategies of meshmark, then others by name."""
    return [*STRATEGY_COLOURS, *sorted(set(strategies) - STRATEGY_COLOURS.keys())]


def strategy_looks(strategies: Iterable[str]) -> dict[str, StrategyLook]:
    """Give each strategy its look, in the order of legends.

    A strategy of meshmark has the same look whatever it is drawn with. Others, which users register, take the colours
    in turn with other markers; the colour of `single` is left to `single`.
    """
    asked, colours = set(strategies), list(STRATEGY_COLOURS.values())
    ours = len(colours)
    looks = {}
    for number, name in enumerate(in_order(asked)):
        colour = colours[number] if number < ours else colours[1 + (number - ours + FIRST_OWN) % (ours - 1)]
        looks[name] = StrategyLook(colour, MARKERS[number % len(MARKERS)])
    return {name: look for name, look in looks.items() if name in asked}


def symbol_path(marker: str) -> str:
    """Return a marker of matplotlib as the path of an SVG shape in a square of 12 units.

    >>> symbol_path("s")
    'M1.5 10.5L10.5 10.5L10.5 1.5L1.5 1.5Z'
    """
    style = MarkerStyle(marker)
    path = style.get_path().transformed(style.get_transform())
    letters = {path.MOVETO: "M", path.LINETO: "L", path.CURVE3: "Q", path.CURVE4: "C", path.CLOSEPOLY: "Z"}
    words = []
    for points, code in path.iter_segments():
        numbers = [f"{6 + 9 * value * sign:.3g}" for value, sign in zip(points, (1, -1) * len(points), strict=False)]
        words.append(letters[code] + ("" if code == path.CLOSEPOLY else " ".join(numbers)))
    return "".join(words)
