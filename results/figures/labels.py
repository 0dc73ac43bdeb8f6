"""Placement of labels near points, so that labels cover neither each other nor the points.

Boxes and lines are arrays of shape [..., 4] in pixels. A box is x and y of its lower left corner, then of its upper
right corner. A line is x and y of one end, then of the other. Functions of two such arrays broadcast.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

Point = tuple[float, float]

MARKER = 7
"""Half the height and width of the marker at a point, in typographic points."""
MARGIN = 8
"""Difference between the size of a text's box and of the text, in pixels, in width and in height."""
DISTANCES = np.arange(8, 240, 8)
"""Candidate distances of a text from its point, in typographic points. A place costs its distance, plus penalties."""
ANGLES = np.arange(36) * math.tau / 36
CROSSING = 200.0
"""Penalty for a line that crosses another line or a point."""
CONFLICT = 1e4
"""Penalty for a text that overlaps another text or its line. After the last round, such a text is dropped."""
ROUNDS = 5
"""Number of rounds of the local search. Each round places every text again, given the places of the others."""
STYLE: dict[str, Any] = {
    "size": "x-small",
    "ha": "center",
    "va": "center",
    "zorder": 6,
    "bbox": {"boxstyle": "square,pad=0.15", "facecolor": "white", "alpha": 0.8, "linewidth": 0},
    "arrowprops": {"arrowstyle": "-", "color": "black", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3},
}


class Places(NamedTuple):
    """Places of texts: their boxes, and the lines from their points to the middles of the boxes."""

    boxes: np.ndarray
    lines: np.ndarray

    def at(self, index: Any) -> "Places":
        """Return the places at an index or mask."""
        return Places(self.boxes[index], self.lines[index])


Options = tuple[Places, np.ndarray]
"""Possible places of a text, and the cost of each."""


def label_points(axes: Axes, points: Sequence[Point], texts: Sequence[str], others: Sequence[Point] = ()) -> list[str]:
    """Write a text near each point, inside the axes, with a line from it to the point.

    No text covers a point, one of the other points, another text or its line. A local search keeps texts near their
    points and avoids crossing lines. It runs from several orders of the texts, and the cheapest result is used.

    Call this function last: a later change of the axes' limits or of the figure's layout moves the points.

    Args:
        axes: the axes that contain the points.
        points: x and y of each point, in the units of the axes.
        texts: one text for each point, the most important first.
        others: x and y of the points without a text.

    Returns:
        The texts for which no place was found. They are not written.
    """
    figure = axes.get_figure(root=True)
    assert figure
    figure.draw_without_rendering()  # the layout determines the position of the axes
    pixels = figure.dpi / 72  # pixels of a typographic point
    centres = axes.transData.transform(np.reshape([*points, *others], (-1, 2)))
    marks = np.hstack([centres - MARKER * pixels, centres + MARKER * pixels])
    options = [
        options_of(number, marks, text_size(axes, text), np.array(axes.bbox.extents), pixels)
        for number, text in enumerate(texts)
    ]
    by_x = centres[: len(texts), 0].argsort(kind="stable").tolist()
    orders = list(range(len(texts))), by_x, by_x[::-1]
    chosen, _ = min((settled(options, order) for order in orders), key=lambda found: found[1])
    kept = without_conflicts(chosen)
    for number in kept:
        offset = (chosen.lines[number, 2:] - chosen.lines[number, :2]) / pixels
        label = axes.annotate(texts[number], points[number], tuple(offset), textcoords="offset points", **STYLE)
        label.set_in_layout(False)
    return [text for number, text in enumerate(texts) if number not in kept]


def options_of(number: int, marks: np.ndarray, size: np.ndarray, frame: np.ndarray, pixels: float) -> Options:
    """Return the places of a text inside a frame that cover no marker, and their costs regardless of other texts."""
    places, costs = places_around((marks[number, :2] + marks[number, 2:]) / 2, size, pixels)
    costs += CROSSING * meets(places.lines[:, None], np.delete(marks, number, axis=0)).sum(axis=-1)
    is_free = is_inside(places.boxes, frame) & ~overlap(places.boxes[:, None], marks).any(axis=-1)
    return places.at(is_free), costs[is_free]


def settled(options: Sequence[Options], order: list[int]) -> tuple[Places, float]:
    """Choose a place for each text: in several rounds, the cheapest one given the places of the other texts.

    Returns:
        The places, which are NaN for a text without options, and the sum of their costs.
    """
    chosen = Places(*np.full((2, len(options), 4), np.nan))  # NaN overlaps nothing
    cost = np.zeros(len(options))
    for number in order * ROUNDS:
        places, costs = options[number]
        if not len(costs):
            continue
        others = chosen.at(np.arange(len(options)) != number)
        costs = costs + CROSSING * crossing(places.lines[:, None], others.lines).sum(axis=-1)
        costs += CONFLICT * conflicts(places, others).sum(axis=-1)
        best = costs.argmin()
        chosen.boxes[number], chosen.lines[number], cost[number] = places.boxes[best], places.lines[best], costs[best]
    return chosen, float(cost.sum())


def without_conflicts(chosen: Places) -> list[int]:
    """Return the indices of the texts that can be written. Of two conflicting texts, the first is kept."""
    kept: list[int] = []
    for number in np.flatnonzero(np.isfinite(chosen.boxes).all(axis=-1)):
        if not conflicts(chosen.at([number]), chosen.at(kept)).any():
            kept.append(int(number))
    return kept


def places_around(centre: np.ndarray, size: np.ndarray, pixels: float) -> tuple[Places, np.ndarray]:
    """Return candidate places for a text of this size around a point, and their distances in typographic points."""
    distances, angles = (grid.reshape(-1, 1) for grid in np.meshgrid(DISTANCES, ANGLES, indexing="ij"))
    middles = centre + np.hstack([np.cos(angles), np.sin(angles)]) * (size / 2 + distances * pixels)
    lines = np.hstack([np.broadcast_to(centre, middles.shape), middles])
    return Places(np.hstack([middles - size / 2, middles + size / 2]), lines), distances[:, 0].astype(float)


def conflicts(places: Places, others: Places) -> np.ndarray:
    """Return for each pair of a place and another whether the text of one overlaps the text or line of the other."""
    boxes, lines = places.boxes[:, None], places.lines[:, None]
    return overlap(boxes, others.boxes) | meets(lines, others.boxes) | meets(others.lines, boxes)


def overlap(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return whether boxes overlap."""
    return np.all((boxes[..., :2] < others[..., 2:]) & (others[..., :2] < boxes[..., 2:]), axis=-1)


def is_inside(boxes: np.ndarray, frame: np.ndarray) -> np.ndarray:
    """Return for each box whether it is inside a frame."""
    return np.all((boxes[..., :2] >= frame[:2]) & (boxes[..., 2:] <= frame[2:]), axis=-1)


def meets(lines: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Return whether lines intersect boxes: neither an axis of the box nor the normal of the line separates them."""
    ends = lines[..., :2], lines[..., 2:]
    spans = np.concatenate([np.minimum(*ends), np.maximum(*ends)], axis=-1)
    middles, halves = (boxes[..., :2] + boxes[..., 2:]) / 2, (boxes[..., 2:] - boxes[..., :2]) / 2
    along = ends[1] - ends[0]
    distance = np.abs(cross(along, middles - ends[0]))
    return overlap(spans, boxes) & (
        distance < np.abs(along[..., 0]) * halves[..., 1] + np.abs(along[..., 1]) * halves[..., 0]
    )


def crossing(lines: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return whether lines cross: the two ends of each line are on opposite sides of the other line."""

    def parted(lines: np.ndarray, others: np.ndarray) -> np.ndarray:
        begin, along = lines[..., :2], lines[..., 2:] - lines[..., :2]
        return cross(along, others[..., :2] - begin) * cross(along, others[..., 2:] - begin) < 0

    return parted(lines, others) & parted(others, lines)


def cross(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the cross product of vectors in the plane."""
    return left[..., 0] * right[..., 1] - left[..., 1] * right[..., 0]


def text_size(axes: Axes, text: str) -> np.ndarray:
    """Return the width and height of a text in pixels, with a margin."""
    label = axes.text(0, 0, text, size=STYLE["size"])
    size = np.array(label.get_window_extent().size)
    label.remove()
    return size + MARGIN
