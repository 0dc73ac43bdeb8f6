"""What feasibility found, drawn: where formulas put each candidate, where its compiler did, and what no other beats."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from results.frontier import beaten_by_none, figure_of, main, read
from results.records.reading import RecordError

GIB = 2**30


def candidate(strategy: str, gib: float | None, speed: float | None, **others: Any) -> dict[str, Any]:
    """What formulas say of one."""
    status = "infeasible" if gib is None else "fits" if gib <= 16 else "too_large"
    formula = {"formula.needed_bytes": gib and gib * GIB, "formula.tokens_per_second_per_device": speed}
    compiled = {"compiled.needed_bytes": None, "compiled.tokens_per_second_per_device": None}
    return {"strategy": strategy, "status": status, **formula, **compiled, **others}


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


def test_every_candidate_is_a_point_or_is_counted(found: Path) -> None:
    """Those that are feasible and not too far out, at what they need and the speed that they may have."""
    figure = figure_of(*read(found))
    (axes,) = figure.axes
    points = sorted(tuple(point) for drawn in axes.collections for point in drawn.get_offsets().tolist())  # type: ignore[union-attr]
    assert points == [(2, 60), (4, 80), (8, 70), (12, 100), (20, 110)]
    assert "5 of 7 candidates drawn" in figure.get_supxlabel()
    assert "1 are infeasible, 1 need more than 1.5 times" in figure.get_supxlabel()
    assert "gpt2 (124.0M parameters), 64 × 1024 tokens, bfloat16, on 16 devices of v5e:4x4" in figure.get_suptitle()


def test_arrows_lead_to_what_the_compiler_said(found: Path) -> None:
    """From the formula's point; what was given up keeps its height, and a device's memory is a line."""
    (axes,) = figure_of(*read(found)).axes
    arrows = [(tuple(text.xyann), tuple(text.xy)) for text in axes.texts]  # type: ignore[attr-defined]
    assert arrows == [((12, 100), (14, 90)), ((4, 80), (20, 80))]
    marks = [tuple(map(float, line.get_xydata()[0])) for line in axes.lines if len(line.get_xydata()) == 1]  # type: ignore[arg-type, index]
    assert marks == [(14, 90), (20, 80)]
    (limit,) = [line for line in axes.lines if line.get_label() == "a device's memory"]
    assert set(limit.get_xdata()) == {16}  # type: ignore[arg-type]


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
        ({"kind": "compiled"}, "no file of `python -m benchmarks.feasibility"),
        ({"schema_version": 2}, "has schema 2, not 1"),
        ({"capacity_bytes": None}, "capacity_bytes is None, not int"),
        ({"candidates": []}, "its `candidates` are no list of rows"),
        ({"candidates": [{"status": "fits", "strategy": "fsdp"}]}, "candidate None lacks formula.needed_bytes"),
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
