"""The laws of the figures of runs: complete, honest in their words, the same each time, and drawn without JAX."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.container import ErrorbarContainer

from results import load
from results.figures.frame import PLAIN, Style, caption_of
from results.figures.run import BY_NAME, FIGURES, OF_REAL_DEVICES, drawings_of_run
from results.figures.tables import TIMES
from results.records.rows import is_counted
from tests.commands import command
from tests.processes import ROOT
from tests.results.documents import carried
from tests.results.pictures import bars_of, counted, drawn, legend_of, names_of, points_of
from tests.results.synthetic import SHARES, STRATEGIES, edited, failed, row, sweep, write_run

main = command("plot")
WITHOUT_JAX = """
import sys
for absent in ("jax", "jaxlib", "flax", "optax"):
    sys.modules[absent] = None
from benchmarks.cli.main import main
path, folder = sys.argv[1:]
for arguments in (["plot", path, "--out", folder], ["page", path, "--out", f"{folder}.html"]):
    try:
        main(arguments)
    except SystemExit as ended:
        assert not ended.code
"""
OF_SWEEPS = [name for name in BY_NAME if name.startswith(("utilization", "step_time_vs_tokens", "time_and_memory"))]
"""Figures that need several microbatches, batches, windows or routings; they have files of tests of their own."""
OF_ALL = [figure.name for figure in FIGURES if figure.name not in OF_SWEEPS]
ON_VIRTUAL_DEVICES = [name for name in OF_ALL if name not in OF_REAL_DEVICES]
OF_ONE_BATCH = [name for name in OF_ALL if name != "throughput_vs_batch" and "weak" not in name]
PLACES = ("single", "data=1"), ("data", "data=2")
CURVES = ["throughput_vs_devices", "efficiency_vs_devices", "throughput_vs_devices_weak"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run in which one case was infeasible and one was wrong."""
    wrong = row("tensor", "tensor=16", status="mismatch", matches_single=False)
    path = tmp_path_factory.mktemp("runs") / "run.json"
    return write_run(path, [*sweep(), failed("infeasible", "pipeline", "pipeline=16"), wrong])


@pytest.fixture(scope="module")
def rows(run: Path) -> pd.DataFrame:
    """The run's rows."""
    return load(run)


def test_figures_and_pages_need_no_jax_and_figures_come_out_the_same(run: Path, tmp_path: Path) -> None:
    """Each is written as PNG and as SVG, where nothing but the records can be imported, and the same each time."""
    main([str(run), "--out", str(tmp_path / "one")])
    command = [sys.executable, "-c", WITHOUT_JAX, str(run), str(tmp_path / "two")]
    *printed, page = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    assert (page, carried(Path(page))["parts"][0]["count"]) == (str(tmp_path / "two.html"), len(sweep()) + 2)
    names = [f"{name}{suffix}" for name in ON_VIRTUAL_DEVICES for suffix in (".png", ".svg")]
    assert printed == [str(tmp_path / "two" / name) for name in (*names, "captions.txt")]
    for path in map(Path, printed):
        assert path.read_bytes() == (tmp_path / "one" / path.name).read_bytes()
        assert path.read_bytes().startswith({".png": b"\x89PNG", ".svg": b"<?xml"}.get(path.suffix, b""))


def test_a_figure_is_what_its_rows_have(rows: pd.DataFrame) -> None:
    """On virtual devices speed-up is throughput in another unit; of `single` alone nothing is compared."""
    assert names_of(rows) == ON_VIRTUAL_DEVICES
    assert names_of(rows.assign(virtual_devices=False)) == OF_ALL
    single = rows[rows["strategy"] == "single"]
    assert names_of(single) == ["memory_per_device", "throughput_vs_batch", "where_time_goes"]
    assert names_of(single[single["global_batch_sequences"] == 16]) == ["memory_per_device", "where_time_goes"]


@pytest.mark.parametrize("name", OF_ONE_BATCH)
def test_a_figure_names_what_it_shows(rows: pd.DataFrame, name: str) -> None:
    """Each strategy that it draws, in its legend or next to its bar, and no other; how many rows it lacks, and why."""
    figure = drawn(rows[rows["strategy"] != "fsdp"], name)
    bars = {label.get_text().split()[0] for axes in figure.axes for label in axes.get_yticklabels()}
    named = {*legend_of(figure)} | bars
    assert STRATEGIES.keys() - {"fsdp"} <= named
    assert "fsdp" not in named
    said = figure.get_supxlabel() + "".join(legend.get_title().get_text() for legend in figure.legends)
    other = sum(rows["strategy"] != "fsdp") - len(counted(points_of(rows[rows["strategy"] != "fsdp"], name)))
    assert said.replace("\n", " ").startswith(f"{other} of {sum(rows['strategy'] != 'fsdp')} rows not drawn: ")
    for reason in ("of another batch", "1 infeasible", "1 mismatch"):
        assert reason in said.replace("\n", " ")


@pytest.mark.parametrize("name", ["throughput_vs_devices", "efficiency_vs_devices"])
@pytest.mark.parametrize(
    ("virtual", "devices", "ideal"),
    [(True, "virtual CPU devices", "ideal: one device"), (False, "cpu", "ideal: linear")],
)
def test_virtual_devices_are_called_virtual(
    rows: pd.DataFrame, name: str, virtual: bool, devices: str, ideal: str
) -> None:
    """The title says what the devices are, and the legend what is ideal on them."""
    figure = drawn(rows.assign(virtual_devices=virtual), name)
    assert figure.get_suptitle().endswith(f", {devices}")
    assert ideal in legend_of(figure)


def intervals_of(axes: Axes) -> list[list[float]]:
    """Both ends of each vertical interval that is drawn, by seaborn or as an error bar."""
    bars = [bar.lines[2] for bar in axes.containers if isinstance(bar, ErrorbarContainer)]
    found = [segment[:, 1] for lines in bars for line in lines for segment in line.get_segments()]
    found += [
        np.asarray(line.get_ydata(), float)
        for line in axes.lines
        if np.asarray(line.get_xdata()).size == 2 and np.ptp(np.asarray(line.get_xdata(), float)) == 0
    ]
    return sorted([float(ends.min()), float(ends.max())] for ends in found if np.isfinite(ends).all())


@pytest.mark.parametrize(
    ("name", "metric", "virtual"),
    [
        ("throughput_vs_devices", "throughput", True),
        ("throughput_vs_devices", "throughput", False),
        ("efficiency_vs_devices", "efficiency", False),
        ("speedup_vs_devices", "speedup", False),
        ("throughput_vs_devices_weak", "throughput", True),
        ("efficiency_vs_devices_weak", "weak_efficiency", False),
        ("step_time_vs_devices", "step_time", True),
    ],
)
def test_no_interval_is_cut_off(rows: pd.DataFrame, name: str, metric: str, virtual: bool) -> None:
    """Each point has its interval from the lower to the upper end, inside the axes, also one ten times as wide."""
    low, high = f"{metric}_low", f"{metric}_high"
    wide = rows.assign(virtual_devices=virtual, **{high: 10 * rows[high], low: rows[low] / 10})
    axes = drawn(wide, name).axes[0]
    expected = counted(points_of(wide, name))[["low", "high"]].to_numpy().tolist()
    assert intervals_of(axes) == pytest.approx(np.array(sorted(expected)))
    bottom, top = axes.get_ylim()
    assert bottom <= min(expected)[0]
    assert max(max(each) for each in expected) < top


def test_the_tradeoff_has_the_intervals_of_the_fastest_meshes(rows: pd.DataFrame) -> None:
    """The first panel is of two devices, with `single`; other meshes are pale and have none."""
    points = points_of(rows, "throughput_vs_memory").query("left_out == '' and best and devices in (1, 2)")
    expected = points[["throughput_low", "throughput_high"]].to_numpy().tolist()
    assert intervals_of(drawn(rows, "throughput_vs_memory").axes[0]) == pytest.approx(np.array(sorted(expected)))


def test_a_frontier_of_one_case_is_not_named(rows: pd.DataFrame) -> None:
    """There is nothing to trade: one case is the fastest and the smallest of all."""
    assert "frontier" in legend_of(drawn(rows, "throughput_vs_memory"))
    one = rows[rows["strategy"].isin(["single", "data"]) & (rows["devices"] <= 2)]
    assert "frontier" not in legend_of(drawn(one, "throughput_vs_memory"))


def test_batches_are_panels(rows: pd.DataFrame) -> None:
    """With all batches each has a panel and its rows; with one batch there is no panel to name."""
    figure = drawn(rows, "throughput_vs_devices", batch="all")
    assert [axes.get_title() for axes in figure.axes] == ["global batch 8", "global batch 16"]
    one = drawn(rows, "throughput_vs_devices", batch=8)
    assert [axes.get_title() for axes in one.axes] == [""]
    assert intervals_of(figure.axes[0]) == intervals_of(one.axes[0])
    weak = drawn(rows, "throughput_vs_devices_weak", batch="all")
    assert [axes.get_title() for axes in weak.axes] == [f"{n} sequences a device" for n in (2, 4, 8)]


def test_throughput_against_batch_has_a_panel_for_each_number_of_devices(rows: pd.DataFrame) -> None:
    """Of strategies with several batches."""
    few = rows[rows["strategy"].isin(["single", "fsdp"]) | (rows["global_batch_sequences"] == 16)]
    figure = drawn(few, "throughput_vs_batch")
    assert [axes.get_title() for axes in figure.axes] == ["2 devices", "4 devices", "8 devices"]
    assert legend_of(figure) == ["single", "fsdp"]


@pytest.mark.parametrize(
    "name", ["throughput_vs_devices", "throughput_vs_memory", "memory_per_device", "where_time_goes"]
)
def test_a_figure_fits_a_column_of_a_paper(rows: pd.DataFrame, name: str) -> None:
    """3.3 inches wide, in letters of 8 points: nothing is outside of the picture, and a title is one line."""
    size = 3.3, 6.0 if name in ("memory_per_device", "where_time_goes") else 3.4
    for title in (True, False):
        figure = drawn(rows, name, Style(size, 8.0, title))
        figure.draw_without_rendering()
        box = figure.get_tightbbox()
        assert min(box.x0, box.y0) > -0.02
        assert box.x1 < size[0] + 0.02
        assert box.y1 < size[1] + 0.02
        assert "\n" not in figure.get_suptitle()
        assert bool(figure.get_suptitle()) == title
        assert "rows not drawn" in caption_of(figure)


def test_a_caption_names_all_meshes_of_a_strategy(rows: pd.DataFrame) -> None:
    """Whose fastest mesh differs by the number of devices."""
    points = points_of(rows, "throughput_vs_devices").query("left_out == '' and strategy == 'three_d'")
    assert points["mesh"].nunique() == 2
    assert f"three_d on {' or '.join(points['mesh'])}" in caption_of(drawn(rows, "throughput_vs_devices"))


def test_different_work_is_drawn_apart(tmp_path: Path) -> None:
    """Each workload that has rows that count has its figures in a folder of its own; others are counted."""
    lost = failed("oom", "data", "data=2")
    lost["extra_info"]["preset"] = "too large"
    made = [row(*place, dtype=dtype) for dtype in ("float32", "bfloat16") for place in PLACES]
    drawings = drawings_of_run(load(write_run(tmp_path / "run.json", [*made, lost])), PLAIN)
    folders = sorted({drawing.name.partition("/")[0] for drawing in drawings})
    assert folders == ["synthetic-10000000-128-bfloat16-none", "synthetic-10000000-128-float32-none"]
    assert "3 of 5 rows not drawn: 2 of another workload, 1 oom." in caption_of(drawings[0].figure())


def test_a_noisy_run_says_so(tmp_path: Path, rows: pd.DataFrame) -> None:
    """A remark warns of a run in which a step differed too much from itself, and by how much."""
    loud = load(write_run(tmp_path / "loud.json", [row(noisy=True, canary_ratio_low=0.88)]))
    assert "Noisy" not in caption_of(drawn(rows, "memory_per_device"))
    said = "Noisy run: the same step timed twice differed by -12% to +4%."
    assert drawn(loud, "memory_per_device").legends[0].get_title().get_text() == said


def test_parts_of_the_time_add_up(tmp_path: Path, rows: pd.DataFrame) -> None:
    """Bars are as long as the parts of the steps, negative ones to the left; across them is the measured interval."""
    axes = drawn(rows, "where_time_goes").axes[0]
    points = counted(points_of(rows, "where_time_goes"))
    widths = {part: sum(width for *_, width in bars) for part, bars in bars_of(axes).items()}
    milliseconds = points["step_time"].sum()
    assert widths == pytest.approx({part: SHARES[part.replace(" ", "_")] * milliseconds for part in TIMES})
    (measured,) = [bar for bar in axes.containers if isinstance(bar, ErrorbarContainer)]
    (lines,) = measured.lines[2]
    assert isinstance(lines, LineCollection)
    ends = points[["step_time_low", "step_time_high"]].to_numpy()
    np.testing.assert_allclose([segment[:, 0] for segment in lines.get_segments()], ends)
    unknown: dict[str, Any] = {f"attribution.{part}_seconds": None for part in SHARES}
    without = load(write_run(tmp_path / "run.json", [edited(row(), unknown)]))
    assert not is_counted(points_of(without, "where_time_goes")).any()
