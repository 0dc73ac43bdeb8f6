"""The picture of a replayed step."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex

from results.figures.lanes import lanes
from results.figures.palette import LANE_COLOURS
from results.records.traces import read
from tests.commands import command

main = command("plot")

SPANS = [
    ("compute", 0, 4),
    ("exposed", 4, 2),
    ("memory", 6, 1),
    ("exposed", 7, 1),
    ("between hosts", 1, 5),
    ("inside a host", 5, 3),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A trace of a step of eight milliseconds."""
    names = ["compute", "memory", "exposed", "idle", "between hosts", "inside a host"]
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "name": "thread_name", "args": {"name": name}} for name in names
    ]
    events += [
        {"ph": "X", "pid": 0, "name": "x", "cat": cat, "ts": 1e3 * ts, "dur": 1e3 * dur} for cat, ts, dur in SPANS
    ]
    facts = {"kind": "replay", "case": "fsdp-fsdp=4-b4", "devices": "4 x H100"}
    (tmp_path / "step.json").write_text(json.dumps({"otherData": facts, "traceEvents": events}))
    return tmp_path / "step.json"


def test_what_a_link_sends_is_hidden_or_exposed(path: Path) -> None:
    """What a link sends while the device waits is exposed, and the rest hidden. Lanes without spans have no row."""
    figure = lanes(read(path))
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        *("compute", "memory", "exposed", "between hosts", "inside a host")
    ]
    colours = {colour: what for what, colour in LANE_COLOURS.items()}
    drawn = [
        (int(box.y0), colours[to_hex(np.asarray(collection.get_facecolor())[0])], float(box.x0), float(box.x1))
        for collection in axes.collections
        for box in (each.get_extents() for each in collection.get_paths())
    ]
    assert [each[1:] for each in drawn if each[0] == 3] == [
        ("hidden communication", 1, 6),
        ("exposed communication", 4, 6),
    ]
    assert [each[1:] for each in drawn if each[0] == 4] == [
        ("hidden communication", 5, 8),
        ("exposed communication", 5, 6),
        ("exposed communication", 7, 8),
    ]
    assert axes.get_xlim() == (0, 8)
    assert "exposed communication: 3.0 ms" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert "A step of 8.0 ms" in figure.get_suptitle()
    assert lanes(read(path), (2, 3)).axes[0].get_xlim() == (2, 3)


def test_stages_of_a_prediction_are_rows(tmp_path: Path) -> None:
    """A row for each, with what it does side by side; the lane of passes, which names the same, is not drawn."""
    events: list[dict[str, Any]] = []
    for pid, spans in enumerate([[("compute", 0, 3), ("idle", 3, 5)], [("idle", 0, 3), ("compute", 3, 5)]]):
        events.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": f"stage {pid}"}})
        names = ("compute", "idle", "passes")
        events += [{"ph": "M", "pid": pid, "name": "thread_name", "args": {"name": name}} for name in names]
        for cat, ts, dur in (*spans, ("passes", 0, 8)):
            events.append({"ph": "X", "pid": pid, "name": "x", "cat": cat, "ts": 1e3 * ts, "dur": 1e3 * dur})
    facts = {"kind": "prediction", "case": "pipeline-pipeline=2-b4", "devices": "h100:1x2"}
    (tmp_path / "step.json").write_text(json.dumps({"otherData": facts, "traceEvents": events}))
    figure = lanes(read(tmp_path / "step.json"))
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["stage 0", "stage 1"]
    assert axes.get_xlim() == (0, 8)
    assert "A step of 8.0 ms, as predicted" in figure.get_suptitle()
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["compute: 4.0 ms", "pipeline bubble: 4.0 ms"]


def test_forward_and_backward_passes_have_two_colours(tmp_path: Path) -> None:
    """Compute in a pass that is named F is forward, and the rest backward; together they are all compute."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "name": "thread_name", "args": {"name": name}} for name in ("passes", "compute", "memory")
    ]
    spans = [("F0", "passes", 0, 4), ("B0", "passes", 4, 5), ("matmul", "compute", 0, 3), ("launches", "memory", 3, 1)]
    for name, cat, ts, dur in (*spans, ("matmul", "compute", 4, 5)):
        events.append({"ph": "X", "pid": 0, "name": name, "cat": cat, "ts": 1e3 * ts, "dur": 1e3 * dur})
    facts = {"kind": "prediction", "case": "data-data=1-b4", "devices": "h100:1x1"}
    (tmp_path / "step.json").write_text(json.dumps({"otherData": facts, "traceEvents": events}))
    figure = lanes(read(tmp_path / "step.json"))
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["compute, forward: 3.0 ms", "compute, backward: 5.0 ms", "memory: 1.0 ms"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["compute", "memory"]
    drawn = [
        (to_hex(np.asarray(collection.get_facecolor())[0]), float(box.x0), float(box.x1))
        for collection in figure.axes[0].collections
        for box in (each.get_extents() for each in collection.get_paths())
    ]
    assert [span for colour, *span in drawn if colour == LANE_COLOURS["compute, forward"]] == [[0, 3]]


FACTS = {"kind": "replay", "case": "fsdp", "devices": "v5e:4x4"}
LANE = {"ph": "M", "pid": 0, "name": "thread_name", "args": {"name": "compute"}}
SPAN = {"ph": "X", "pid": 0, "name": "dot", "cat": "compute", "ts": 0, "dur": 1}


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([], "is the trace of a step in which nothing happens"),
        ([SPAN], "traceEvents[0] is in the lane 'compute', which no event before it names"),
        ([LANE, SPAN | {"dur": -1}], "traceEvents[1]: dur is -1; it must be a number of at least 0"),
        ([LANE, SPAN | {"dur": "long"}], "traceEvents[1]: dur is 'long'; it must be a number"),
        ([LANE, "span"], "traceEvents[1] is 'span'; it must be an object"),
    ],
)
def test_what_is_no_trace_is_not_drawn(
    events: Any, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is no trace ends the command with 5 and a line that says so, before anything is drawn."""
    path = tmp_path / "step.json"
    path.write_text(json.dumps({"otherData": FACTS, "traceEvents": events}))
    with pytest.raises(SystemExit, match="5"):
        main([str(path)])
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("--out=x.xyz", 5, "x.xyz has no suffix of a picture"),
        ("--out={path}", 5, "would overwrite the input"),
        ("--between=3,2", 2, "'3,2' is not an interval; write its begin and its end"),
        ("--between=now", 2, "'now' is not an interval"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    options: str, code: int, words: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options are checked before anything is drawn."""
    with pytest.raises(SystemExit, match=str(code)):
        main([str(path), options.format(path=path)])
    assert words in capsys.readouterr().err
