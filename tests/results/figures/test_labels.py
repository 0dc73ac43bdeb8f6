"""Tests of labels: no label covers a point, another label or its line, or leaves the axes."""

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from results.figures.labels import crossing, label_points, meets


def axes_of(points: np.ndarray) -> Axes:
    """Return axes from 0 to 1 with these points."""
    axes = Figure(figsize=(10, 6), layout="constrained").subplots()
    axes.plot(*points.T, "o")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    return axes


def boxes_of(axes: Axes) -> list[Bbox]:
    """Return the boxes that the texts take in pixels, without their lines."""
    figure = axes.get_figure(root=True)
    assert figure
    figure.draw_without_rendering()
    return [Text.get_window_extent(text) for text in axes.texts]


def cloud(number: int, width: float) -> np.ndarray:
    """Return random points in the middle of the axes, of shape [number, 2]."""
    return 0.5 + width * (np.random.default_rng(0).random((number, 2)) - 0.5)


@pytest.mark.parametrize("points", [cloud(10, 0.9), cloud(8, 0.1), np.full((3, 2), 0.5)], ids=["wide", "tight", "one"])
def test_labels_cover_nothing(points: np.ndarray) -> None:
    """Each text is written inside the axes, and no box overlaps another box, a point, or the line of another text."""
    axes = axes_of(points)
    texts = [f"data={number},fsdp=8,tensor=2" for number in range(len(points))]
    assert label_points(axes, points.tolist(), texts) == []
    assert [text.get_text() for text in axes.texts] == texts
    boxes = boxes_of(axes)
    pixels = axes.transData.transform(points)
    for number, box in enumerate(boxes):
        assert box.count_overlaps(boxes) == 1  # itself
        assert not box.count_contains(pixels)
        assert axes.bbox.count_contains(box.corners()) == 4
        lines = [
            Path([point, np.mean(other.get_points(), axis=0)])
            for point, other in zip(pixels, boxes, strict=True)
            if other is not box
        ]
        assert not any(line.intersects_bbox(box) for line in lines), number


def test_labels_spare_other_points() -> None:
    """A text covers none of the points without a text, however near they are."""
    points, others = np.array([[0.5, 0.5]]), cloud(60, 0.2)
    axes = axes_of(points)
    assert label_points(axes, points.tolist(), ["fsdp=8"], others.tolist()) == []
    assert not boxes_of(axes)[0].count_contains(axes.transData.transform(others))


def test_what_has_no_place_is_returned() -> None:
    """A text that is wider than the axes is not written but returned."""
    axes = axes_of(np.array([[0.5, 0.5]]))
    assert label_points(axes, [(0.5, 0.5), (0.2, 0.2)], ["wide " * 200, "narrow"]) == ["wide " * 200]
    assert [text.get_text() for text in axes.texts] == ["narrow"]


def test_lines_and_boxes_meet_as_in_matplotlib() -> None:
    """`meets` and `crossing` agree with matplotlib's paths on random lines and boxes."""
    generator = np.random.default_rng(0)
    lines, others = generator.random((2, 300, 4))
    boxes = np.hstack([others[:, :2], others[:, :2] + 0.3 * others[:, 2:]])
    paths = [Path(line.reshape(2, 2)) for line in lines]
    expected = [path.intersects_bbox(Bbox(box.reshape(2, 2))) for path, box in zip(paths, boxes, strict=True)]
    assert meets(lines, boxes).tolist() == expected
    expected = [path.intersects_path(Path(other.reshape(2, 2))) for path, other in zip(paths, others, strict=True)]
    assert crossing(lines, others).tolist() == [bool(each) for each in expected]
