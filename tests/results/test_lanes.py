"""The picture of a replayed step."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from results.figures.lanes import lanes
from results.figures.palette import LANE_COLOURS
from results.records.traces import read
from tests.results.documents import spans, trace
from tests.results.pictures import legend_of

SENDING = ("exposed", 4, 2), ("memory", 6, 1), ("exposed", 7, 1), ("between hosts", 1, 5), ("inside a host", 5, 3)


def drawn(*events: dict[str, Any], kind: str = "prediction", **how: Any) -> tuple[Figure, Axes]:
    """The picture of a trace, and its axes."""
    figure = lanes(read(Path("step.json"), trace(*events, kind=kind)), **how)
    (axes,) = figure.axes
    return figure, axes


def boxes(axes: Axes) -> list[tuple[int, str, float, float]]:
    """The row, what it shows, the start and the end of each box, in milliseconds."""
    named = {colour: what for what, colour in LANE_COLOURS.items()}
    return [
        (int(box.y0), named[to_hex(np.asarray(collection.get_facecolor())[0])], float(box.x0), float(box.x1))
        for collection in axes.collections
        for box in (each.get_extents() for each in collection.get_paths())
    ]


def rows(axes: Axes) -> list[str]:
    """The names of the rows."""
    return [label.get_text() for label in axes.get_yticklabels()]


def test_what_a_link_sends_is_hidden_or_exposed() -> None:
    """What a link sends while the device waits is exposed, and the rest hidden. Lanes without spans have no row."""
    events = [*spans(("idle", 0, 0))[:1], *spans(("compute", 0, 4), *SENDING)]
    figure, axes = drawn(*events, kind="replay")
    assert rows(axes) == ["compute", "exposed", "memory", "between hosts", "inside a host"]
    hidden, exposed = "hidden communication", "exposed communication"
    assert [each[1:] for each in boxes(axes) if each[0] == 3] == [(hidden, 1, 6), (exposed, 4, 6)]
    assert [each[1:] for each in boxes(axes) if each[0] == 4] == [(hidden, 5, 8), (exposed, 5, 6), (exposed, 7, 8)]
    assert axes.get_xlim() == (0, 8)
    assert "exposed communication: 3.0 ms" in legend_of(figure)
    assert "A step of 8.0 ms" in figure.get_suptitle()
    assert drawn(*events, kind="replay", between_ms=(2, 3))[1].get_xlim() == (2, 3)


def test_stages_of_a_prediction_are_rows() -> None:
    """A row for each, with what it does side by side; the lane of passes, which names the same, is not drawn."""
    works = (
        spans(("compute", 0, 3), ("idle", 3, 5), ("passes", 0, 8)),
        spans(("idle", 0, 3), ("compute", 3, 5), ("passes", 0, 8), pid=1),
    )
    names = [{"ph": "M", "pid": pid, "name": "process_name", "args": {"name": f"stage {pid}"}} for pid in (0, 1)]
    figure, axes = drawn(*names, *works[0], *works[1])
    assert rows(axes) == ["stage 0", "stage 1"]
    assert axes.get_xlim() == (0, 8)
    assert "A step of 8.0 ms, as predicted" in figure.get_suptitle()
    assert legend_of(figure) == ["compute: 4.0 ms", "pipeline bubble: 4.0 ms"]


def test_forward_and_backward_passes_have_two_colours() -> None:
    """Compute in a pass that is named F is forward, and the rest backward; together they are all compute."""
    passes = ("passes", 0, 4, "F0"), ("passes", 4, 5, "B0")
    figure, axes = drawn(*spans(*passes, ("compute", 0, 3), ("memory", 3, 1, "launches"), ("compute", 4, 5)))
    assert legend_of(figure) == ["compute, forward: 3.0 ms", "compute, backward: 5.0 ms", "memory: 1.0 ms"]
    assert rows(axes) == ["compute", "memory"]
    assert [span for _, what, *span in boxes(axes) if what == "compute, forward"] == [[0, 3]]
