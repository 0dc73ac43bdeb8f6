"""The figure of scaling has every point where something fits, in the colour of what it waits for."""

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex

from results.figures.frame import caption_of
from results.figures.palette import LIMIT_COLOURS
from results.figures.predicted_scaling import figure_of
from results.records.documents import read_search as read
from tests.processes import ROOT
from tests.results.documents import point, search

EXAMPLE = ROOT / "docs" / "examples" / "scaling" / "gpt3-6.7b-h100.json"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of the command; on 32 devices the batch is too small."""
    points = [point("strong", 8, 2.0, "matmuls"), point("strong", 16, 1.5, "latency"), point("strong", 32, None)]
    points += [point("weak", 8, 1.0, "matmuls"), point("weak", 16, 1.0, "matmuls"), point("weak", 32, 1.5, "latency")]
    (tmp_path / "scaling.json").write_text(json.dumps(search(*points)))
    return tmp_path / "scaling.json"


def test_every_point_is_drawn_in_the_colour_of_its_limit(path: Path) -> None:
    """Seconds above, utilization below; strong on the left, weak on the right. What does not fit is counted."""
    figure = figure_of(*read(path))
    found = []
    for axes in figure.axes:
        dots = [drawn for drawn in axes.collections if isinstance(drawn, PathCollection)]
        places = [tuple(np.asarray(each.get_offsets())[0].tolist()) for each in dots]
        colours = [to_hex(np.asarray(each.get_facecolor())[0]) for each in dots]
        found.append([(*place, colour) for place, colour in zip(places, colours, strict=True)])
    matmuls, latency = LIMIT_COLOURS["matmuls"], LIMIT_COLOURS["latency"]
    assert found[0] == [(8, 2.0, matmuls), (16, 1.5, latency)]
    assert found[1] == [(8, 1.0, matmuls), (16, 1.0, matmuls), (32, 1.5, latency)]
    assert found[2] == [(8, 50.0, matmuls), (16, pytest.approx(100 / 3), latency)]
    ideal = [
        np.asarray(line.get_ydata()).tolist()
        for axes in figure.axes
        for line in axes.lines
        if line.get_linestyle() == "--"
    ]
    assert ideal == [[2.0, 1.0], [1.0, 1.0, 1.0]]
    assert [axes.get_title() for axes in figure.axes[:2]] == [
        "strong scaling: 64 sequences",
        "weak scaling: 4 sequences a device",
    ]
    assert "-50% to +100% with a probability of 80%" in caption_of(figure)
    assert "Nothing fits at 1 of 6 points" in caption_of(figure)
