"""The laws of the figure of a search: every candidate is counted, and the compiled ones are where the compiler says."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Annotation

from results.figures.feasibility import CELLS, LABELLED, beaten_by_none, figure_of
from results.figures.palette import STRATEGY_COLOURS
from results.frontier import main, read
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


def test_the_frontier_is_beaten_by_none(found: Path) -> None:
    """Of what fits; a candidate that is larger and slower than another is not on it."""
    best = beaten_by_none(read(found)[1])
    assert list(best["formula.needed_bytes"] / GIB) == [2, 4, 12]
    assert list(best["formula.tokens_per_second_per_device"]) == [60, 80, 100]


def test_every_candidate_is_counted(found: Path) -> None:
    """In the cell of its memory and throughput if it is drawn, and if it is not, in the caption."""
    figure = figure_of(*read(found))
    (cells,) = [drawn for drawn in figure.axes[0].collections if drawn.get_array() is not None]
    assert np.asarray(cells.get_array()).sum() == 5
    for point in ((2, 60), (4, 80), (8, 70), (12, 100), (20, 110)):
        width, height = (end / number for end, number in zip((24, 1.2 * 110), CELLS, strict=True))
        distances = (np.asarray(cells.get_offsets()) - point) / (width, height)
        assert (np.abs(distances) <= 0.7).all(axis=-1).any(), point
    assert "5 of 7 candidates drawn" in figure.get_supxlabel()
    assert "1 are infeasible, 1 need more than 1.5 times" in figure.get_supxlabel()
    title = "gpt2 (124.0M parameters), 64 sequences of 1024 tokens, bfloat16, on 16 devices of v5e:4x4"
    assert title in figure.get_suptitle()


def test_the_frontier_is_drawn(found: Path) -> None:
    """As steps from the smallest to the fastest, with a marker of its strategy on each candidate."""
    axes = figure_of(*read(found)).axes[0]
    (steps,) = [line for line in axes.lines if line.get_label() == "frontier, by formula"]
    assert np.asarray(steps.get_xydata()).tolist() == [[2, 60], [4, 80], [12, 100]]
    marks = [drawn for drawn in axes.collections if drawn.get_array() is None]
    drawn = {tuple(point) for mark in marks for point in np.asarray(mark.get_offsets()).tolist()}
    assert drawn == {(2, 60), (4, 80), (12, 100)}
    assert to_hex(marks[0].get_facecolor()[0]) == STRATEGY_COLOURS["tensor"]  # type: ignore[index]


def test_arrows_lead_to_what_the_compiler_said(found: Path) -> None:
    """From the formula's point; what was given up keeps its height, and a device's memory is a line."""
    axes = figure_of(*read(found)).axes[0]
    texts = [text for text in axes.texts if isinstance(text, Annotation)]
    arrows = [(text.xyann, text.xy) for text in texts if not text.get_text()]
    assert arrows == [((12, 100), (14, 90)), ((4, 80), (20, 80))]
    marks = [tuple(np.asarray(line.get_xydata())[0]) for line in axes.lines if len(np.asarray(line.get_xydata())) == 1]
    assert marks == [(14, 90), (20, 80)]
    (limit,) = [line for line in axes.lines if line.get_label() == "a device's memory"]
    assert set(np.asarray(limit.get_xdata())) == {16}


def test_compiled_points_are_named_by_their_mesh(found: Path) -> None:
    """Each beside its point; and what needs more memory than the density shows is inside the axes, too."""
    facts, rows = read(found)
    rows.loc[1, "compiled.needed_bytes"] = 30 * GIB
    axes = figure_of(facts, rows).axes[0]
    named = [(text.get_text(), text.xy) for text in axes.texts if isinstance(text, Annotation) and text.get_text()]
    assert named == [("fsdp=16", (14, 90)), ("fsdp=16", (30, 80))]
    assert axes.get_xlim()[1] > 30


def test_many_compiled_points_are_numbered(found: Path) -> None:
    """A number beside each point, and a list that says which mesh has which, in the order of the candidates."""
    facts, rows = read(found)
    many = pd.concat([rows.iloc[:1]] * (LABELLED + 1), ignore_index=True)
    many["mesh"] = [f"fsdp={number}" for number in range(len(many))]
    many["compiled.needed_bytes"] = GIB * np.linspace(1, 20, len(many))
    axes = figure_of(facts, many).axes[0]
    written = [text.get_text() for text in axes.texts if text.get_text()]
    assert written == [str(number) for number in range(1, len(many) + 1)]
    legend = axes.get_legend()
    assert legend
    assert [text.get_text() for text in legend.get_texts()] == [f"{n + 1}  fsdp={n}" for n in range(len(many))]


@pytest.mark.parametrize("which", ["status != 'fits'", "`compiled.needed_bytes`.isna()", "strategy == 'data'"])
def test_what_there_is_not_is_not_drawn(found: Path, which: str) -> None:
    """Without candidates that fit there is no frontier, without compiled ones no arrow; the rest is drawn."""
    facts, rows = read(found)
    figure = figure_of(facts, rows.query(which))
    assert len(rows.query(which)) > 0
    assert figure.get_supxlabel().split(" candidates")[0].endswith(f"of {len(rows.query(which))}")


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
        ({"kind": "compiled"}, "was not written by `python -m benchmarks.feasibility"),
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
