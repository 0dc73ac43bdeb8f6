"""The figure of scaling has every point where something fits, in the colour of what it waits for."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex

from results.figures.frame import caption_of
from results.figures.palette import LIMIT_COLOURS
from results.figures.predicted_scaling import figure_of
from results.records.documents import NUMBERS, SCHEMA_VERSION
from results.records.documents import read_search as read
from results.records.reading import RecordError
from tests.processes import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "scaling" / "gpt3-6.7b-h100.json"


def point(scaling: str, devices: int, seconds: float | None, limit: str | None = None) -> dict[str, Any]:
    """A point of a step that takes so long."""
    batch = 64 if scaling == "strong" else 4 * devices
    used = None if seconds is None else batch * 1024 / seconds / devices / 8192
    layout = {"strategy": "fsdp", "mesh": f"fsdp={devices}", "microbatches": 1, "remat": "dots", "options": {}}
    known = {"predicted_seconds": seconds, "model_flops_utilization": used, "waits_for": limit and {limit: 0.5}}
    sizes = {"scaling": scaling, "devices": devices, "global_batch_sequences": batch}
    return layout | dict.fromkeys(NUMBERS) | known | sizes | {"status": "fits" if seconds else "infeasible"}


def scaled(points: list[dict[str, Any]]) -> dict[str, Any]:
    """The document of a search on several numbers of devices."""
    work = {"preset": "gpt2", "param_count": 124, "sequence_tokens": 1024, "dtype": "bfloat16"}
    facts = {"topology": "h100:1x8", "devices": 8, "capacity_bytes": 80, "usable_bytes": 68}
    known = {"machine": "meshmark_gpus", "interval": [0.5, 2.0], "global_batch_sequences": 64}
    return {"kind": "search", "schema_version": SCHEMA_VERSION, **work, **facts, **known, "candidates": points}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of the command; on 32 devices the batch is too small."""
    points = [point("strong", 8, 2.0, "matmuls"), point("strong", 16, 1.5, "latency"), point("strong", 32, None)]
    points += [point("weak", 8, 1.0, "matmuls"), point("weak", 16, 1.0, "matmuls"), point("weak", 32, 1.5, "latency")]
    (tmp_path / "scaling.json").write_text(json.dumps(scaled(points)))
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


def test_the_example_can_be_drawn() -> None:
    """The committed file has today's keys, and its picture is beside it."""
    facts, rows = read(EXAMPLE)
    assert facts["preset"] == "gpt3-6.7b"
    assert {*rows["scaling"]} == {"strong", "weak"}
    assert "Nothing fits" not in caption_of(figure_of(facts, rows))  # something does everywhere
    assert EXAMPLE.with_suffix(".png").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "scaling"}, "was not written by `meshmark search --json FILE` of this version"),
        ({"schema_version": 2}, "has schema_version 2 and this meshmark reads 3; write it again"),
        ({"schema_version": 4}, "has schema_version 4 and this meshmark reads 3; update meshmark"),
    ],
)
def test_what_is_no_such_file_is_refused(path: Path, change: dict[str, Any], message: str) -> None:
    """With what is wrong with it."""
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RecordError, match=message):
        read(path)


def test_nothing_fits_is_nothing_to_draw(path: Path) -> None:
    """The command says so."""
    facts, rows = read(path)
    with pytest.raises(RecordError, match="no candidate fits"):
        figure_of(facts, rows[rows["predicted_seconds"].isna()])
