"""Tests of the figures' data: which rows count, ideals, speed-up, efficiency, memory and the frontier."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from results import load
from results.figures.batches import several_batches
from results.figures.memory import memory_cases
from results.figures.tables import (
    PARTS,
    attributed,
    case_labels,
    fastest,
    not_drawn,
    one_batch,
    reasons,
    scaling,
    widest_batch,
    workloads,
)
from results.figures.tradeoff import frontier
from results.figures.utilization import utilization
from results.records.rows import METRICS, is_counted
from tests.results.pictures import counted, names_of
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
    assert reasons(rows) == f"2 {status}"
    assert set(counted(memory_cases(rows))["strategy"]) == {"single"}


@pytest.mark.parametrize(("verdict", "why"), [(False, "not equal to single"), (None, "not compared with single")])
def test_only_equal_rows_count(read, verdict: bool | None, why: str) -> None:
    """A finished row is left out if its step was not found equal to that of one device."""
    rows = read([row(), row("data", "data=2", matches_single=verdict)])
    assert is_counted(rows).tolist() == [True, False]
    assert reasons(rows) == f"1 {why}"


def test_every_row_is_drawn_or_named(read) -> None:
    """Whatever a figure chooses, the rows of the file are those that it draws and those whose reason it counts."""
    rows = read([*sweep(), *(failed(status, "fsdp", "fsdp=16", batch) for batch, status in enumerate(STATUSES, 1))])
    ((_, chosen),) = one_batch(rows, None)
    for points in (
        *(scaling(chosen, metric, kind) for metric in METRICS for kind in ("strong", "weak")),
        *(choose(chosen) for choose in (several_batches, memory_cases, attributed, utilization)),
    ):
        assert sorted(points.index) == sorted(rows.index)
        drawn = int(is_counted(points).sum())
        said = not_drawn(points)
        assert said.startswith(f"{len(rows) - drawn} of {len(rows)} rows not drawn: ")
        counts = [int(part.split()[0]) for part in said.partition(": ")[2].split(", ")]
        assert sum(counts) == len(rows) - drawn
    assert not_drawn(read([row()])) == ""


def test_a_row_that_was_only_compiled_has_memory_and_no_time(read) -> None:
    """A run of --compile-only has memory to draw, in bars and against devices; curves of speed leave it out."""
    untimed: dict[str, Any] = {
        name: None for name in row()["extra_info"] if name.startswith(("step_", "tokens_", "relative_"))
    }
    places = [("single", "data=1"), ("fsdp", "fsdp=2"), ("fsdp", "fsdp=8")]
    rows = read([row(*place, kind="compiled", matches_single=None, **untimed) for place in places])
    assert reasons(rows) == "3 compiled only"
    assert names_of(rows) == ["memory_per_device"]
    assert is_counted(memory_cases(rows)).all()
    assert is_counted(scaling(rows, "memory")).all()
    assert not is_counted(scaling(rows, "throughput")).any()


@pytest.mark.parametrize(("devices", "machines"), [(list, [1, 1, 1, 1]), (on_real_devices, [1, 2, 4, 8])])
def test_the_ideal_is_that_of_single(read, devices, machines: list[int]) -> None:
    """n devices are ideally n times as fast as `single`; virtual ones, which share one machine, as fast."""
    points = counted(scaling(read(devices(sweep([16]))), "throughput"))
    single = points.loc[points["strategy"] == "single", "value"].item()
    assert sorted(points["ideal"].unique() / single) == sorted({*machines})
    np.testing.assert_allclose(points["throughput_ideal"] * points["step_time_ideal"], 1e3 * 16 * 128)


@pytest.mark.parametrize("devices", [list, on_real_devices], ids=["virtual", "real"])
def test_metrics_are_one_measurement(read, devices) -> None:
    """Efficiency times ideal throughput is throughput, speed-up that over `single`; each lies within its interval."""
    rows = read(devices(sweep([8, 16])))
    np.testing.assert_allclose(rows["efficiency"] * rows["throughput_ideal"], rows["throughput"])
    np.testing.assert_allclose(rows["throughput"] * rows["step_time"], 1e3 * rows["global_batch_sequences"] * 128)
    assert rows.loc[rows["strategy"] == "single", ["speedup", "efficiency"]].to_numpy().tolist() == [[1, 1], [1, 1]]
    for metric in ("throughput", "speedup", "efficiency", "step_time"):
        assert rows[metric].between(rows[f"{metric}_low"], rows[f"{metric}_high"]).all()


def test_weak_scaling_compares_with_the_batch_of_one_device(read) -> None:
    """Two devices with twice the batch of `single`, in the same time, are twice as fast: efficiency is 1."""
    rows = on_real_devices([row(batch=8), row("data", "data=2", 16), row("data", "data=4", 64)])
    for each in rows:
        each["extra_info"] |= {f"step_seconds_{end}": 0.5 for end in ("median", "low", "high")}
        each["extra_info"]["tokens_per_second"] = 128 * each["extra_info"]["global_batch_sequences"] / 0.5
    found = read(rows)
    assert found["weak_efficiency"].tolist()[:2] == [1, 1]
    assert found["weak_speedup"].tolist()[:2] == [1, 2]
    assert np.isnan(found["weak_efficiency"].iloc[2])  # `single` was not measured with 16 sequences
    points = counted(scaling(found, "throughput", "weak"))
    assert points["ideal"].tolist() == [2048, 4096]
    assert points["facet"].tolist() == [8, 8]


@pytest.mark.parametrize("devices", [list, on_real_devices], ids=["virtual", "real"])
def test_speed_up_is_of_pairs(read, devices) -> None:
    """It and its interval are from blocks of the same rounds; else both intervals add up in quadrature."""
    slow = row("data", "data=2", relative_to_single=2.0, relative_to_single_low=1.6, relative_to_single_high=2.5)
    unpaired: dict[str, Any] = {f"relative_to_single{end}": None for end in ("", "_low", "_high")}
    single, slow, alone = read(devices([row(), slow, row("data", "data=8", **unpaired)])).to_dict("records")
    assert [slow[f"speedup{end}"] for end in ("_low", "", "_high")] == pytest.approx([0.4, 0.5, 0.625])
    assert alone["speedup"] == pytest.approx(alone["throughput"] / single["throughput"])
    widths = [np.log(each["throughput_high"] / each["throughput"]) for each in (alone,)]
    widths += [np.log(single["throughput"] / single["throughput_low"])]
    assert np.log(alone["speedup_high"] / alone["speedup"]) == pytest.approx(np.hypot(*widths))


def test_there_is_no_ideal_without_single(read) -> None:
    """A row whose batch `single` was not measured at has a throughput but no efficiency."""
    unpaired: dict[str, Any] = {"relative_to_single": None}
    rows = read([row(batch=8), row("data", "data=2", 8), row("data", "data=2", 16, **unpaired)])
    assert rows["efficiency"].notna().tolist() == [True, True, False]
    assert rows["throughput"].notna().all()


def test_the_fastest_mesh_is_drawn(read) -> None:
    """Each strategy, number of devices and batch has exactly one point, and it is the fastest."""
    rows = read(sweep([8, 16]))
    points = counted(fastest(rows, "throughput"))
    same = rows.groupby(["strategy", "devices", "global_batch_sequences"])["throughput"]
    assert sorted(points["throughput"]) == sorted(same.max())
    assert len(points) < len(rows)


def test_memory_parts_add_up(read) -> None:
    """The parts of a device's memory add up to its total: arguments, temporaries and outputs, minus aliased bytes."""
    cases = counted(memory_cases(read(sweep([16]))))
    np.testing.assert_array_equal(cases[list(PARTS)].sum(axis="columns"), cases["memory.total_bytes"])


def test_memory_is_sorted(read) -> None:
    """Cases are in order of decreasing memory, and none is lost."""
    rows = read(sweep([8, 16]))
    totals = memory_cases(rows)["memory.total_bytes"].tolist()
    assert totals == sorted(rows["memory.total_bytes"], reverse=True)


def test_cases_have_different_labels(read) -> None:
    """A label has strategy, mesh, batch and the rest of the test's name, and differs between all rows of a run."""
    rows = read(sweep([8, 16]))
    labels = case_labels(rows)
    assert len(set(labels)) == len(rows)
    assert "three_d data=2,pipeline=2,tensor=2 b16" in labels
    assert "three_d data=2,pipeline=2,tensor=2" in case_labels(rows[rows["global_batch_sequences"] == 16])


def test_rows_without_memory_have_no_parts(read) -> None:
    """A row without a total size has no parts of memory."""
    unknown: dict[str, Any] = {"memory.total_bytes": None}
    assert counted(memory_cases(read([row(**unknown)]))).empty


def test_the_frontier_is_what_no_row_beats() -> None:
    """A row is on the frontier exactly if no other row of the frontier is at least as fast and at most as large."""
    generator = np.random.default_rng(0)
    rows = pd.DataFrame(generator.integers(0, 12, size=(60, 2)), columns=["memory", "throughput"])
    edge = frontier(rows)

    def no_worse(row: pd.Series, other: pd.Series) -> bool:
        return bool(row["throughput"] >= other["throughput"] and row["memory"] <= other["memory"])

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


def test_tables_leave_their_input_alone(read) -> None:
    """No function of the tables changes its input rows."""
    rows = read([*sweep(), failed("oom", "fsdp", "fsdp=16")])
    before = rows.copy(deep=True)
    for table in (
        is_counted,
        reasons,
        widest_batch,
        several_batches,
        memory_cases,
        frontier,
        attributed,
        utilization,
    ):
        table(rows)
    scaling(rows, "throughput")
    pd.testing.assert_frame_equal(rows, before)
