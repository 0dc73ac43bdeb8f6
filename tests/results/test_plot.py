"""The laws of the figures: complete, honest in their words, the same each time, and drawn without JAX."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.container import BarContainer, ErrorbarContainer

from results.figures.canvas import look_of, what_was_run
from results.figures.curves import TIMES, attributed, scaling, several_batches
from results.figures.drawing import FIGURES, figures_of
from results.records.rows import load
from tests.commands import command
from tests.processes import ROOT
from tests.results.synthetic import SHARES, STRATEGIES, edited, failed, row, sweep, write_run

main = command("plot")
WITHOUT_JAX = """
import sys
for absent in ("jax", "jaxlib", "flax", "optax"):
    sys.modules[absent] = None
from benchmarks.cli.main import main
main(["plot", *sys.argv[1:]])
"""
TEMPORARIES = "temporaries (gradients, activations)"
HEADERS = {".png": b"\x89PNG", ".svg": b"<?xml"}
OF_PIPELINES = "utilization_vs_microbatches"
"""Drawn of pipelines with several numbers of microbatches (figures/test_utilization.py)."""
OF_EXPERTS = "step_time_vs_tokens"
"""Drawn of `expert` and `fsdp` with several batches (figures/test_experts.py)."""
OF_ALL = [name for name in FIGURES if name not in (OF_PIPELINES, OF_EXPERTS)]
ON_VIRTUAL_DEVICES = [name for name in OF_ALL if name != "parallel_efficiency"]
OF_ONE_BATCH = [name for name in OF_ALL if name != "throughput_vs_batch"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run in which one case was infeasible and one was wrong."""
    wrong = row("tensor", "tensor=16", status="mismatch", matches_single=False)
    path = tmp_path_factory.mktemp("runs") / "run.json"
    return write_run(path, [*sweep(), failed("infeasible", "pipeline", "pipeline=16"), wrong])


@pytest.fixture(scope="module")
def rows(run: Path) -> pd.DataFrame:
    """The run's rows at one global batch."""
    read = load([run])
    return read[read["global_batch_sequences"] == 16]


@pytest.fixture(scope="module")
def drawn(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run's figures."""
    out = tmp_path_factory.mktemp("figures")
    main([str(run), "--out", str(out)])
    return out


@pytest.mark.parametrize("suffix", HEADERS)
@pytest.mark.parametrize("name", ON_VIRTUAL_DEVICES)
def test_every_figure_is_written(drawn: Path, name: str, suffix: str) -> None:
    """Each figure is written as PNG and as SVG."""
    content = (drawn / name).with_suffix(suffix).read_bytes()
    assert content.startswith(HEADERS[suffix])
    assert len(content) > 5000


def test_figures_need_no_jax_and_come_out_the_same(run: Path, drawn: Path, tmp_path: Path) -> None:
    """Where nothing but the records can be imported, the command prints the paths of the very same pictures."""
    command = [sys.executable, "-c", WITHOUT_JAX, str(run), "--out", str(tmp_path)]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    assert printed == [str(tmp_path / f"{name}{suffix}") for name in ON_VIRTUAL_DEVICES for suffix in HEADERS]
    for path in map(Path, printed):
        assert path.read_bytes() == (drawn / path.name).read_bytes()


@pytest.mark.parametrize("name", OF_ONE_BATCH)
def test_every_strategy_is_named(rows: pd.DataFrame, name: str) -> None:
    """A figure names each strategy that counts, in its legend, over its panel or beside its bar."""
    figure = FIGURES[name](rows, look_of(rows["strategy"].unique()))
    legend = {text.get_text() for legend in figure.legends for text in legend.get_texts()}
    bars = {label.get_text().split()[0] for axes in figure.axes for label in axes.get_yticklabels()}
    assert set(STRATEGIES) <= legend | bars | {axes.get_title() for axes in figure.axes}


@pytest.mark.parametrize("name", OF_ONE_BATCH)
def test_what_was_left_out_is_said(rows: pd.DataFrame, name: str) -> None:
    """A figure says how many rows it does not show, and why."""
    figure = FIGURES[name](rows, look_of(rows["strategy"].unique()))
    assert figure.get_supxlabel() == f"2 of {len(rows)} rows left out: 1 infeasible, 1 mismatch"


@pytest.mark.parametrize("name", ["throughput_vs_devices", "parallel_efficiency"])
@pytest.mark.parametrize(
    ("virtual", "devices", "ideal"),
    [
        (True, "virtual devices that share one machine", "ideal: throughput of one device"),
        (False, "cpu", "ideal: linear speed-up"),
    ],
    ids=["virtual", "real"],
)
def test_virtual_devices_are_called_virtual(
    rows: pd.DataFrame, name: str, virtual: bool, devices: str, ideal: str
) -> None:
    """The title says what the devices are, and the legend what is ideal on them."""
    figure = FIGURES[name](rows.assign(virtual_devices=virtual), look_of(rows["strategy"].unique()))
    assert figure.get_suptitle().splitlines()[-1] == devices
    assert ideal in [text.get_text() for text in figure.legends[0].get_texts()]


def test_efficiency_is_drawn_of_real_devices_only(run: Path, rows: pd.DataFrame) -> None:
    """On virtual devices it is throughput in another unit: the ideal is flat. On real ones every figure is drawn."""
    every = load([run])
    assert figures_of(every, rows) == ON_VIRTUAL_DEVICES
    assert figures_of(every.assign(virtual_devices=False), rows) == OF_ALL


def interval_ends(axes: Axes) -> list[list[tuple[float, float]]]:
    """Return both ends of each interval that is drawn."""
    bars = [bar.lines[2] for bar in axes.containers if isinstance(bar, ErrorbarContainer)]
    return sorted(segment.tolist() for lines in bars for line in lines for segment in line.get_segments())


@pytest.mark.parametrize(
    ("name", "column", "which"),
    [
        ("throughput_vs_devices", "tokens_per_second", "best"),
        ("parallel_efficiency", "efficiency", "best"),
        ("throughput_vs_memory", "tokens_per_second", "devices in (1, 2)"),
    ],
)
def test_each_point_has_its_interval(rows: pd.DataFrame, name: str, column: str, which: str) -> None:
    """From the lower to the upper end, and the legend says what it is; of several meshes side by side, of the fastest.

    The first panel of several is of two devices, with `single`.
    """
    figure = FIGURES[name](rows, look_of(rows["strategy"].unique()))
    drawn = sorted([low[1], high[1]] for low, high in interval_ends(figure.axes[0]))
    expected = scaling(rows).query(which)[[f"{column}_low", f"{column}_high"]].to_numpy().tolist()
    assert drawn == pytest.approx(np.array(sorted(expected)))
    assert "95% interval" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_throughput_against_batch_is_of_strategies_with_several(run: Path, rows: pd.DataFrame) -> None:
    """A panel for each number of devices, with the points and intervals of those strategies; nothing of one batch."""
    every = load([run])
    wide = every[every["strategy"].isin(["single", "fsdp"]) | (every["global_batch_sequences"] == 16)]
    points = several_batches(wide)
    assert {*points["strategy"]} == {"single", "fsdp"}
    figure = FIGURES["throughput_vs_batch"](wide, look_of(wide["strategy"].unique()))
    assert [axes.get_title() for axes in figure.axes] == ["devices: 2", "devices: 4", "devices: 8"]
    drawn = sorted([low[1], high[1]] for low, high in interval_ends(figure.axes[0]))
    expected = points.query("best and devices in (1, 2)")[["tokens_per_second_low", "tokens_per_second_high"]]
    assert drawn == pytest.approx(np.array(sorted(expected.to_numpy().tolist())))
    assert "throughput_vs_batch" not in figures_of(rows, rows)


def test_one_device_alone_is_not_compared(run: Path) -> None:
    """Of a run of `single` the figures are its memory, where time goes, and throughput if it has several batches."""
    single = load([run]).query("strategy == 'single'")
    at_batch = single[single["global_batch_sequences"] == 16]
    assert figures_of(single, at_batch) == ["memory_per_device", "throughput_vs_batch", "where_time_goes"]
    assert figures_of(at_batch, at_batch) == ["memory_per_device", "where_time_goes"]


def test_strategies_stand_side_by_side(rows: pd.DataFrame) -> None:
    """No interval hides another: each has a place of its own, and the nearest tick is its number of devices."""
    figure = FIGURES["throughput_vs_devices"](rows, look_of(rows["strategy"].unique()))
    at = [low[0] for low, _ in interval_ends(figure.axes[0])]
    best = scaling(rows).query("best")
    assert len(np.unique(np.round(at, 6))) == len(best)
    assert sorted(2 ** np.round(np.log2(at))) == sorted(best["devices"])


def test_the_ideal_is_level_at_each_number_of_devices(rows: pd.DataFrame) -> None:
    """On real devices it spans the strategies that stand side by side, so that each is compared with its own ideal."""
    real = rows.assign(virtual_devices=False)
    axes = FIGURES["throughput_vs_devices"](real, look_of(rows["strategy"].unique())).axes[0]
    (ideal,) = [line for line in axes.collections if str(line.get_label()).startswith("ideal")]
    assert isinstance(ideal, LineCollection)
    at = np.array([low[0] for low, _ in interval_ends(axes)])
    expected = scaling(real).drop_duplicates("devices")["ideal_tokens_per_second"].tolist()
    levels = [(begin, end) for begin, end in ideal.get_segments()]
    assert [begin[1] for begin, _ in levels] == [end[1] for _, end in levels] == expected
    assert all(any(begin[0] < each < end[0] for begin, end in levels) for each in at)


@pytest.mark.parametrize(
    ("name", "column", "needs"),
    [
        ("parallel_efficiency", "strategy", "`single` at its batch"),
        ("memory_per_device", "memory.total_bytes", "memory sizes"),
        ("throughput_vs_memory", "memory.total_bytes", "memory sizes"),
    ],
)
def test_a_figure_without_numbers_says_so(rows: pd.DataFrame, name: str, column: str, needs: str) -> None:
    """Where no row has what a figure needs, the figure says what is missing."""
    lacking = rows.assign(**{column: "data" if column == "strategy" else float("nan")}, relative_to_single=float("nan"))
    figure = FIGURES[name](lacking, look_of(["data"]))
    assert f"no row has {needs}" in [text.get_text() for text in figure.texts]
    assert f"without {needs}" in figure.get_supxlabel()


def test_different_work_is_drawn_apart(tmp_path: Path) -> None:
    """Each workload that has rows that count has its figures in a folder of its own."""
    whole = [row(), row("data", "data=2")]
    half = [row(dtype="bfloat16"), row("data", "data=2", dtype="bfloat16")]
    lost = failed("oom", "data", "data=2")
    lost["extra_info"]["preset"] = "too large"
    main([str(write_run(tmp_path / "run.json", [*whole, *half, lost])), "--out", str(tmp_path / "out")])
    folders = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert folders == ["synthetic-10000000-128-bfloat16-none", "synthetic-10000000-128-float32-none"]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([failed("oom", "data", "data=2")], [], r"nothing to draw: no row was timed and equal to one device \(1 oom\)"),
        ([row(), row(batch=8)], ["--batch-size=7"], "nothing to draw with a global batch of 7; it can be 8, 16"),
        ([row(schema_version=5)], [], "update meshmark"),
    ],
    ids=["nothing counts", "no such batch", "unreadable"],
)
def test_the_command_fails_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list, options: list[str], message: str
) -> None:
    """What cannot be drawn ends the command with a status and the reason, and no traceback."""
    path = write_run(tmp_path / "run.json", rows)
    with pytest.raises(SystemExit, match="5"):
        main([str(path), "--out", str(tmp_path / "out"), *options])
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert error.count("\n") == 1


def test_noisy_run_says_so(tmp_path: Path) -> None:
    """The title of a figure warns of a run in which a step differed too much from itself, and by how much."""
    quiet = load([write_run(tmp_path / "quiet.json", sweep())])
    loud = load([write_run(tmp_path / "loud.json", [row(noisy=True, canary_ratio_low=0.88)])])
    assert "noisy" not in what_was_run(quiet)
    assert what_was_run(loud).endswith("; a noisy run: the same step timed twice differed by -12% to +4%")


def test_parts_of_the_time_are_drawn_where_they_are_known(tmp_path: Path, rows: pd.DataFrame) -> None:
    """Bars are as long as the parts of the step, less what is negative; without any part known there is no figure."""
    figure = FIGURES["where_time_goes"](rows, look_of(rows["strategy"].unique()))
    assert figure.axes[0].get_xlabel() == "time of a step (ms)"
    parts = [
        sum(bar.get_width() for bar in part) for part in figure.axes[0].containers if isinstance(part, BarContainer)
    ]
    milliseconds = 1e3 * rows.loc[rows["status"] == "ok", "step_seconds_median"].sum()
    assert parts == pytest.approx([SHARES[part.replace(" ", "_")] * milliseconds for part in TIMES])
    unknown = {f"attribution.{part}_seconds": None for part in SHARES}
    main([str(write_run(tmp_path / "run.json", [edited(row(), unknown)])), "--out", str(tmp_path)])
    assert {path.stem for path in tmp_path.glob("*.png")} == {"memory_per_device"}


def test_the_measured_time_has_its_interval(rows: pd.DataFrame) -> None:
    """It crosses the bar of its row, from the lower to the upper end, in milliseconds."""
    figure = FIGURES["where_time_goes"](rows, look_of(rows["strategy"].unique()))
    points = attributed(rows)
    ends = 1e3 * points[["step_seconds_low", "step_seconds_high"]].to_numpy()
    expected = [[[low, at], [high, at]] for at, (low, high) in enumerate(ends)]
    np.testing.assert_allclose(interval_ends(figure.axes[0]), sorted(expected))
