"""Tests of the figures' data: which rows count, the ideal throughput, efficiency, memory and the frontier."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from results.figures.canvas import throughput_axis
from results.figures.curves import (
    PARTS,
    case_labels,
    frontier,
    is_counted,
    left_out,
    memory_by_case,
    scaling,
    widest_batch,
    workloads,
)
from results.records.rows import load
from tests.results.synthetic import failed, row, sweep, write_run

STATUSES = ["infeasible", "oom", "compile_error", "timeout", "nan_loss", "mismatch", "interrupted", "error"]


@pytest.fixture
def read(tmp_path: Path):
    """Return a function that writes rows to a file and loads them."""
    return lambda rows: load([write_run(tmp_path / "run.json", rows)])


def on_real_devices(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Turn rows on virtual devices into rows on GPUs, in place, and return them."""
    for benchmark in rows:
        benchmark["extra_info"] |= {"virtual_devices": False, "platform": "gpu", "device_kind": "NVIDIA H200"}
    return rows


@pytest.mark.parametrize("status", STATUSES)
def test_only_finished_rows_count(read, status: str) -> None:
    """A row whose status is not ok is left out of all curves, even if it has numbers, and is counted by its status."""
    rows = read([row(), row("data", "data=2", status=status), failed(status, "data", "data=4")])
    assert is_counted(rows).tolist() == [True, False, False]
    assert left_out(rows) == {status: 2}
    assert set(scaling(rows)["strategy"]) == set(memory_by_case(rows)["strategy"]) == {"single"}


@pytest.mark.parametrize(("verdict", "why"), [(False, "not equal to single"), (None, "not compared with single")])
def test_only_equal_rows_count(read, verdict: bool | None, why: str) -> None:
    """A finished row is left out if its step was not found equal to that of one device."""
    rows = read([row(), row("data", "data=2", matches_single=verdict)])
    assert is_counted(rows).tolist() == [True, False]
    assert left_out(rows) == {why: 1}


def test_every_row_counts_or_is_left_out(read) -> None:
    """The rows that count and the rows left out add up to all rows."""
    rows = read(
        [*sweep(), *(failed(status, "fsdp", "fsdp=16", batch) for batch, status in enumerate(STATUSES, start=1))]
    )
    assert is_counted(rows).sum() + sum(left_out(rows).values()) == len(rows)


def test_the_ideal_of_virtual_devices_is_flat(read) -> None:
    """The ideal of any number of virtual devices is the throughput of `single`, because they share one machine."""
    points = scaling(read(sweep([16])))
    single = points.loc[points["strategy"] == "single", "tokens_per_second"].item()
    assert points["ideal_tokens_per_second"].unique().tolist() == [single]


def test_the_ideal_of_real_devices_is_linear(read) -> None:
    """The ideal of n real devices is n times the throughput of `single`."""
    points = scaling(read(on_real_devices(sweep([16]))))
    single = points.loc[points["strategy"] == "single", "tokens_per_second"].item()
    np.testing.assert_array_equal(points["ideal_tokens_per_second"], points["devices"] * single)


@pytest.mark.parametrize("devices", [list, on_real_devices], ids=["virtual", "real"])
def test_efficiency_is_throughput_over_the_ideal(read, devices) -> None:
    """Efficiency times ideal throughput is throughput, and the efficiency of `single` is 1 at each batch."""
    points = scaling(read(devices(sweep([8, 16]))))
    np.testing.assert_allclose(points["efficiency"] * points["ideal_tokens_per_second"], points["tokens_per_second"])
    assert points.loc[points["strategy"] == "single", "efficiency"].tolist() == [1, 1]


@pytest.mark.parametrize("devices", [list, on_real_devices], ids=["virtual", "real"])
def test_efficiency_is_of_pairs(read, devices) -> None:
    """Efficiency and its interval are from blocks of the same rounds; else efficiency is throughput over the ideal."""
    slow = row("data", "data=2", relative_to_single=2.0, relative_to_single_low=1.6, relative_to_single_high=2.5)
    unpaired: dict[str, Any] = {f"relative_to_single{end}": None for end in ("", "_low", "_high")}
    alone = row("data", "data=8", **unpaired)
    _, slow, alone = scaling(read(devices([row(), slow, alone]))).to_dict("records")
    machines = 1 if devices is list else 2
    found = [machines * slow[f"efficiency{end}"] for end in ("_low", "", "_high")]
    assert found == pytest.approx([0.4, 0.5, 0.625])
    assert alone["efficiency"] == alone["tokens_per_second"] / alone["ideal_tokens_per_second"]
    assert np.isnan([alone["efficiency_low"], alone["efficiency_high"]]).all()


def test_intervals_of_throughput_are_those_of_time(read) -> None:
    """The lower bound of throughput belongs to the upper bound of step time, and the median lies between the bounds."""
    points = scaling(read(sweep([16])))
    tokens = points["global_batch_sequences"] * points["sequence_tokens"]
    np.testing.assert_allclose(points["tokens_per_second_low"] * points["step_seconds_high"], tokens)
    np.testing.assert_allclose(points["tokens_per_second_high"] * points["step_seconds_low"], tokens)
    assert points["tokens_per_second"].between(points["tokens_per_second_low"], points["tokens_per_second_high"]).all()


def test_there_is_no_ideal_without_single(read) -> None:
    """A row whose batch `single` was not measured at has a throughput but no efficiency."""
    unpaired: dict[str, Any] = {"relative_to_single": None}
    points = scaling(read([row(batch=8), row("data", "data=2", 8), row("data", "data=2", 16, **unpaired)]))
    assert points["efficiency"].notna().tolist() == [True, True, False]
    assert points["tokens_per_second"].notna().all()


def test_the_best_row_is_the_fastest(read) -> None:
    """Each strategy, number of devices and batch has exactly one best row, and it is the fastest."""
    points = scaling(read(sweep([8, 16])))
    for _, same in points.groupby(["strategy", "devices", "global_batch_sequences"]):
        assert same["best"].sum() == 1
        assert same.loc[same["best"], "tokens_per_second"].item() == same["tokens_per_second"].max()
    assert not points["best"].all()


def test_memory_parts_add_up(read) -> None:
    """The parts of a device's memory add up to its total: arguments, temporaries and outputs, minus aliased bytes."""
    cases = memory_by_case(read(sweep([16])))
    np.testing.assert_array_equal(cases[list(PARTS)].sum(axis="columns"), cases["memory.total_bytes"])


def test_memory_is_sorted(read) -> None:
    """Cases are in order of decreasing memory, and none is lost."""
    rows = read(sweep([8, 16]))
    totals = memory_by_case(rows)["memory.total_bytes"].tolist()
    assert totals == sorted(rows["memory.total_bytes"], reverse=True)


def test_cases_have_different_labels(read) -> None:
    """A label has strategy, mesh, batch and the rest of the test's name, and differs between all rows of a run."""
    rows = read(sweep([8, 16]))
    labels = case_labels(rows)
    assert len(set(labels)) == len(rows)
    assert "three_d data=2,pipeline=2,tensor=2 b16" in labels


def test_rows_without_memory_have_no_parts(read) -> None:
    """A row without a total size has no parts of memory."""
    unknown: dict[str, Any] = {"memory.total_bytes": None}
    assert memory_by_case(read([row(**unknown)])).empty


def test_the_frontier_is_what_no_row_beats() -> None:
    """A row is on the frontier exactly if no other row of the frontier is at least as fast and at most as large."""
    generator = np.random.default_rng(0)
    rows = pd.DataFrame(generator.integers(0, 12, size=(60, 2)), columns=["memory.total_bytes", "tokens_per_second"])
    edge = frontier(rows)

    def no_worse(row: pd.Series, other: pd.Series) -> bool:
        faster = row["tokens_per_second"] >= other["tokens_per_second"]
        return bool(faster and row["memory.total_bytes"] <= other["memory.total_bytes"])

    for index, inside in rows.iterrows():
        assert any(no_worse(kept, inside) for at, kept in edge.iterrows() if at != index) == (index not in edge.index)


def test_the_widest_batch_has_the_most_rows(read) -> None:
    """The widest batch is the one at which the most rows count, and the largest of these if several tie."""
    assert widest_batch(read(sweep([8, 16]))) == 16
    assert widest_batch(read([*sweep([8, 16]), failed("oom", "fsdp", "fsdp=16", 32)])) == 16
    assert widest_batch(read([*sweep([8]), row(batch=16)])) == 8


def test_different_work_has_different_figures(read) -> None:
    """Rows of different precision or size are split. Each row is in one part, and each part has its own label."""
    rows = read([*sweep([16]), *(row(batch=16, dtype="bfloat16"), row(batch=16, preset="other"))])
    parts = dict(workloads(rows))
    assert [len(part) for part in parts.values()] == [len(sweep([16])), 1, 1]
    assert list(parts)[1] == "synthetic-10000000-128-bfloat16-none"


def test_curves_leave_their_input_alone(read) -> None:
    """No function of the curves changes its input rows."""
    rows = read([*sweep(), failed("oom", "fsdp", "fsdp=16")])
    before = rows.copy(deep=True)
    for curve in (is_counted, left_out, widest_batch, scaling, memory_by_case, frontier):
        curve(rows)
    pd.testing.assert_frame_equal(rows, before)


def test_no_interval_is_cut_off() -> None:
    """The axis of throughput reaches beyond an interval that is ten times as wide as its point is high."""
    points = pd.DataFrame({"tokens_per_second": [1.0], "ideal_tokens_per_second": [1.0], "virtual_devices": [True]})
    axes = Figure().add_subplot()
    throughput_axis(axes, points.assign(tokens_per_second_low=0.5, tokens_per_second_high=10.0))
    assert axes.get_ylim()[1] > 10.0
