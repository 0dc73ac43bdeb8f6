"""The laws of the figure of a search: times and memory of the compiled candidates are those of their rows."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from results.figures.feasibility import TIMES, drawn_candidates, figure_of
from results.figures.palette import STRATEGY_COLOURS
from results.frontier import main
from results.records.documents import read_search as read
from results.records.reading import RecordError

GIB = 2**30


def candidate(strategy: str, gib: float | None, speed: float | None, **others: Any) -> dict[str, Any]:
    """Return a candidate that takes so much memory, in GiB, and has so much throughput, by formula."""
    status = "infeasible" if gib is None else "fits" if gib <= 16 else "too_large"
    formula = {"formula.needed_bytes": gib and gib * GIB, "formula.tokens_per_second_per_device": speed}
    compiled = {"compiled.needed_bytes": None, "compiled.tokens_per_second_per_device": None}
    return {"strategy": strategy, "mesh": f"{strategy}=16", "status": status, **formula, **compiled, **others}


CANDIDATES = [
    candidate("fsdp", 12, 100, **{"compiled.needed_bytes": 14 * GIB, "compiled.tokens_per_second_per_device": 90}),
    candidate("fsdp", 4, 80, **{"compiled.needed_bytes": 20 * GIB}),  # its compiler gave up
    candidate("tensor", 8, 70),
    candidate("tensor", 2, 60),
    candidate("data", 20, 110),
    candidate("data", 50, 120),  # too far out to be drawn
    candidate("pipeline", None, None),
]


@pytest.fixture
def found(tmp_path: Path) -> Path:
    """A file of the command."""
    document = {"kind": "feasibility", "schema_version": 1, "topology": "v5e:4x4", "chip": "v5e", "devices": 16}
    document |= {"capacity_bytes": 16 * GIB, "preset": "gpt2", "param_count": 124 * 10**6, "dtype": "bfloat16"}
    document |= {"global_batch_sequences": 64, "sequence_tokens": 1024, "candidates": CANDIDATES}
    path = tmp_path / "found.json"
    path.write_text(json.dumps(document))
    return path


def test_the_best_and_the_compiled_are_drawn(found: Path) -> None:
    """A line each, named by strategy, mesh and options, fastest predicted first, or by the least time."""
    facts, rows = read(found)
    shown = drawn_candidates(facts, rows)
    assert list(shown["formula.needed_bytes"] / GIB) == [20, 12, 4, 8]
    figure = figure_of(facts, rows)
    left, _ = figure.axes
    names = [label.get_text() for label in left.get_yticklabels()]
    assert names == ["data data=16", "fsdp fsdp=16", "fsdp fsdp=16", "tensor tensor=16"]
    assert "4 of 7 candidates drawn, 2 of them compiled" in figure.get_supxlabel()
    assert "By formula 4 fit, 2 are too large, 1 are infeasible" in figure.get_supxlabel()
    title = "gpt2 (124.0M parameters), 64 sequences of 1024 tokens, bfloat16, on 16 devices of v5e:4x4"
    assert title in figure.get_suptitle()


def test_times_are_those_of_the_throughputs(found: Path) -> None:
    """Tokens of a device over its throughput: least by formula, predicted, and replayed, on the line of a candidate."""
    facts, rows = read(found)
    rows.loc[0, "predicted.tokens_per_second_per_device"] = 200
    shown = drawn_candidates(facts, rows)
    milliseconds = 1e3 * 64 * 1024 / 16
    expected = [milliseconds / speed for speed in (100, 200, 90)]
    assert shown[[*TIMES]].iloc[0].tolist() == pytest.approx(expected)
    assert shown[[*TIMES]].iloc[1].isna().tolist() == [False, True, True]
    axes = figure_of(facts, rows).axes[0]
    points = [tuple(np.asarray(line.get_xydata())[0]) for line in axes.lines]
    assert points[:3] == [(pytest.approx(time), 0) for time in expected]
    assert [to_hex(line.get_color()) for line in axes.lines[:3]] == [STRATEGY_COLOURS["fsdp"]] * 3


def test_memory_is_beside_what_a_device_has(found: Path) -> None:
    """A bar as compiled, a tick by formula, and the line of the device; all inside the axes."""
    axes = figure_of(*read(found)).axes[1]
    assert [bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)] == [0, 14, 20, 0]
    ticks, limit = axes.lines
    assert np.asarray(ticks.get_xdata()).tolist() == [20, 12, 4, 8]
    assert {*np.asarray(limit.get_xdata())} == {16}
    assert axes.get_xlim()[1] > 20


@pytest.mark.parametrize(
    ("which", "drawn"), [("status != 'fits'", 1), ("`compiled.needed_bytes`.isna()", 2), ("strategy == 'data'", 1)]
)
def test_without_compiled_candidates_the_best_are_drawn(found: Path, which: str, drawn: int) -> None:
    """The first of each strategy and set of mesh axes, as the search ranks them."""
    facts, rows = read(found)
    caption = figure_of(facts, rows.query(which)).get_supxlabel()
    assert caption.startswith(f"{drawn} of {len(rows.query(which))} candidates drawn, 0 of them compiled")


def test_the_command_writes_a_picture(found: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside the file, unless it is told where; its ending says which kind."""
    main([str(found)])
    main([str(found), f"--out={found.parent / 'new' / 'picture.svg'}"])
    assert found.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (found.parent / "new" / "picture.svg").read_text()
    assert capsys.readouterr().out.split() == [
        str(found.with_suffix(".png")),
        str(found.parent / "new" / "picture.svg"),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "compiled"}, "was not written by `meshmark search"),
        ({"schema_version": 2}, "has schema_version 2 and this meshmark reads 1; update meshmark"),
    ],
)
def test_what_is_no_such_file_is_refused(found: Path, change: dict[str, Any], message: str) -> None:
    """With what is wrong with it."""
    found.write_text(json.dumps(json.loads(found.read_text()) | change))
    with pytest.raises(RecordError, match=message):
        read(found)


def test_nothing_feasible_is_nothing_to_draw(found: Path) -> None:
    """The rows say why."""
    facts, rows = read(found)
    with pytest.raises(RecordError, match="no candidate is feasible"):
        figure_of(facts, rows[rows["status"] == "infeasible"])
    assert math.isnan(rows["formula.needed_bytes"].iloc[-1])
