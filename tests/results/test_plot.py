"""`meshmark plot` draws a file by what it is, into one picture or a folder, and functions draw in a notebook."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from benchmarks.cases.columns import COLUMNS
from results import load, plot
from results.figures.palette import STRATEGY_COLOURS
from results.figures.tables import Scaling
from results.records.rows import METRICS
from tests.commands import command
from tests.processes import ROOT
from tests.results.synthetic import row, sweep, write_run

main = command("plot")
HEADERS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
KINDS = {
    "run.json": "a folder",
    "log.jsonl": "a folder",
    "found.json": "a picture",
    "scaling.json": "a picture",
    "trace.json": "a picture",
    "schedule.json": "a picture",
    "overview.json": "a picture",
}
"""A file of each kind, and what it is drawn into by default."""


@pytest.mark.parametrize("name", KINDS)
def test_a_file_of_any_kind_is_one_picture_or_a_folder(
    name: str, valid_files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A suffix of a picture is one file, in its format, of the size and without the title that is asked for.

    A path without a suffix is a folder, and so is a folder that exists. Without --out, what is written lies next to the
    file. Paths are printed.
    """
    path = tmp_path / name
    path.write_bytes((valid_files / name).read_bytes())
    said = capsys.readouterr()
    for suffix, header in HEADERS.items():
        out = tmp_path / "new" / f"picture{suffix}"
        main([str(path), f"--out={out}", "--size=6x4", "--font-size=8", "--no-title"])
        said = capsys.readouterr()
        assert said.out.split() == [str(out)]
        assert len(said.err.splitlines()) == 1  # the caption
        assert out.read_bytes().startswith(header)
    assert len([*(tmp_path / "new").iterdir()]) == len(HEADERS)
    with Image.open(tmp_path / "new" / "picture.png") as picture:
        assert picture.size == (900, 600)
        assert picture.info["Description"] in said.err
    (tmp_path / "a.folder").mkdir()
    main([str(path), f"--out={tmp_path / 'a.folder'}"])
    main([str(path)])
    printed = list(map(Path, capsys.readouterr().out.split()))
    assert all(each.is_file() for each in printed)
    assert any((tmp_path / "a.folder").iterdir())
    beside = tmp_path / f"{path.stem}-figures" if KINDS[name] == "a folder" else path.with_suffix(".png")
    assert printed[-1] in (beside, beside / "captions.txt")


def test_options_choose_what_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The caption counts the rows that were not asked for; `single` stays, as the others are compared with it."""
    run = write_run(tmp_path / "run.json", sweep())
    chosen = ["--strategy=fsdp", "--devices=2,8", "--metric=step_time", "--batch-size=8"]
    main([str(run), f"--out={tmp_path / 'x.svg'}", "--no-title", *chosen])
    said = capsys.readouterr().err
    assert said.startswith("Time of a step against devices: synthetic, batch 8, float32, virtual CPU devices.")
    assert "37 of 40 rows not drawn: 32 not chosen by --strategy, 2 not chosen by --devices, 3 of another batch" in said


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("scaling", ["strong", "weak"])
def test_a_metric_is_drawn_on_axes(metric: str, scaling: Scaling, tmp_path: Path) -> None:
    """Of a frame that may be filtered: colours, ideals and limits are those of the command, and the axes return."""
    rows = sweep()
    for each in rows:
        each["extra_info"] |= {"virtual_devices": False, "model_flops_utilization": 0.4}
    frame = load(write_run(tmp_path / "run.json", rows))
    wanted = frame[frame["strategy"].isin(["single", "data", "fsdp"])]
    figure, axes = plt.subplots()
    drawn = getattr(plot, metric)(wanted, axes, scaling=scaling)
    assert drawn is axes
    legend = axes.get_legend()
    assert legend
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts[:3] == ["single", "data", "fsdp"]
    assert ("ideal: linear" in texts) == (metric not in ("memory", "mfu"))
    colours = {line.get_color() for line in axes.lines}
    assert {STRATEGY_COLOURS[name] for name in texts[:3]} <= colours
    assert axes.get_xlabel() == "devices"
    batch = 8 if scaling == "weak" else 16
    values = wanted[wanted["per_device" if scaling == "weak" else "global_batch_sequences"] == batch]
    expected = values[f"weak_{metric}" if scaling == "weak" and f"weak_{metric}" in frame else metric]
    found = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.lines])
    scale = 2**20 if metric == "memory" else 1
    assert all(np.isclose(found * scale, value, rtol=1e-3).any() for value in expected)
    plt.close(figure)


def test_a_frame_of_nothing_is_refused(tmp_path: Path) -> None:
    """With what is wrong and how to choose rows."""
    frame = load([write_run(tmp_path / "run.json", [row(), row(dtype="bfloat16")])])
    with pytest.raises(ValueError, match=r"the frame has 2 workloads; keep the rows of one"):
        plot.throughput(frame)
    with pytest.raises(ValueError, match="no batch has throughput for several numbers of devices"):
        plot.throughput(frame[frame["dtype"] == "float32"])


def test_intervals_are_over_launches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of merged runs a point is the mean of the launches, its interval is theirs, and the caption says how many."""
    runs = []
    for launch, factor in enumerate((1.0, 1.1, 1.2)):
        rows = [row(), row("data", "data=2")]
        for each in rows:
            facts = each["extra_info"]
            facts |= {name: factor * facts[name] for name in facts if name.startswith("step_seconds")}
            facts["tokens_per_second"] /= factor
            each["stats"] = {"data": [facts["step_seconds_median"]]}
        runs.append(str(write_run(tmp_path / f"{launch}.json", rows)))
    merged = tmp_path / "merged.json"
    command("merge")([*runs, "--out", str(merged)])
    capsys.readouterr()
    main([str(merged), f"--out={tmp_path / 'x.svg'}", "--no-title"])
    assert "Numbers are over 3 launches." in capsys.readouterr().err
    frame = load(merged)
    one = load(runs[1])
    np.testing.assert_allclose(frame["throughput"], one["throughput"], rtol=5e-3)
    assert (frame["throughput_high"] / frame["throughput_low"] > 1.4).all()  # Student's t of three launches


def test_the_guide_documents_the_columns_that_load_adds(tmp_path: Path) -> None:
    """Each column in the guide's table is there, and each that is not of the record is in the table."""
    run = write_run(tmp_path / "run.json", [row()])
    text = (ROOT / "docs" / "reference" / "notebook.md").read_text(encoding="utf-8")
    table = text.partition("| column | what it is |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    documented = {name.strip("` ") for cell in cells for name in cell.split(",")}
    added = {*map(str, load(run))} - {*row()["extra_info"]} - {*COLUMNS}
    ends = {name for name in added if name.endswith(("_low", "_high", "_ideal"))}
    assert added - ends == documented - {"METRIC_low", "METRIC_high", "METRIC_ideal"} - {*COLUMNS}
