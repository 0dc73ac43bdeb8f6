"""The laws of the figure of utilization against microbatches."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from results import load
from results.figures.frame import caption_of
from results.figures.utilization import utilization
from tests.results.pictures import counted, drawn, legend_of, names_of
from tests.results.synthetic import row, write_run

NAME = "utilization_vs_microbatches"
STAGES = 2


def swept(schedule: str, **changes: Any) -> list[dict[str, Any]]:
    """Rows of a pipeline of two stages, for 1 to 32 microbatches, whose bubbles are those of GPipe."""
    rows = []
    for microbatches in (1, 2, 4, 8, 16, 32):
        bubble = (STAGES - 1) / (microbatches + STAGES - 1)
        facts = {
            "microbatches": microbatches,
            "options": f"schedule={schedule}",
            "processes": STAGES,
            "predicted.bubble": bubble,
            "predicted.lockstep_bubble": 0.25,
            "step_seconds_median": 3.0,
            "step_seconds_low": 2.9,
            "step_seconds_high": 3.1,
            "tokens_per_second": 16 * 128 / 3,
            "relative_to_single": 3.0,
            "relative_to_single_low": 2.9,
            "relative_to_single_high": 3.1,
            "attribution.exposed_communication_seconds": 1.0,
            "attribution.schedule_bubble_seconds": 2 * bubble - 0.1,
            "attribution.lockstep_bubble_seconds": 0.1,
        }
        case = row("pipeline", f"pipeline={STAGES}", **facts | changes)
        case["name"] = f"test_step[pipeline-pipeline={STAGES}-b16-microbatches={microbatches}-schedule={schedule}]"
        rows.append(case)
    return rows


def loaded(tmp_path: Path, *rows: dict[str, Any]) -> pd.DataFrame:
    """The rows as they are read, with `single`."""
    return load([write_run(tmp_path / "run.json", [row(), *rows])])


def test_utilization_is_the_time_without_bubbles_over_the_time_with_them(tmp_path: Path) -> None:
    """Communication is left out: one second of three here. So what is measured is 1 - bubble, as by formula."""
    points = counted(utilization(loaded(tmp_path, *swept("gpipe"))))
    assert points["microbatches"].tolist() == [1, 2, 4, 8, 16, 32]
    assert points["formula"].tolist() == pytest.approx([1 / 2, 2 / 3, 4 / 5, 8 / 9, 16 / 17, 32 / 33])
    assert points["measured"].tolist() == pytest.approx(points["formula"].tolist())
    assert points["lockstep"].tolist() == pytest.approx((0.75 * points["formula"]).tolist())


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, True),
        ({"processes": 1}, False),
        ({"processes": 1, "virtual": False}, True),
        ({"attribution.schedule_bubble_seconds": None}, False),
    ],
    ids=str,
)
def test_what_shares_cores_is_not_drawn_as_measured(tmp_path: Path, changes: dict[str, Any], shown: bool) -> None:
    """Virtual devices of one process share its cores: a stage that idles leaves its own to the others."""
    virtual = changes.pop("virtual", True)
    rows = loaded(tmp_path, *swept("gpipe", **changes)).assign(virtual_devices=virtual)
    formulas = {"by formula: 1 - bubble", "by formula, ticks in lockstep"}
    assert {*legend_of(drawn(rows, NAME))} == formulas | ({"measured"} if shown else set())
    assert counted(utilization(rows))["measured"].notna().all() == shown


def test_a_panel_for_each_schedule(tmp_path: Path) -> None:
    """Each with its three curves over all numbers of microbatches; rows without stages are left out, and counted."""
    rows = loaded(tmp_path, *swept("gpipe"), *swept("zb-h1"))
    figure = drawn(rows, NAME)
    titles = [axes.get_title().replace("\n", " ") for axes in figure.axes]
    assert titles == [f"pipeline pipeline=2 schedule={name}" for name in ("gpipe", "zb-h1")]
    for axes, (_, part) in zip(figure.axes, counted(utilization(rows)).groupby("pipeline", sort=False), strict=True):
        lines = [np.asarray(line.get_ydata()).tolist() for line in axes.lines]
        assert lines == [part[column].tolist() for column in ("formula", "lockstep", "measured")]
    assert "1 of 13 rows not drawn: 1 without pipeline stages" in caption_of(figure)


def test_it_is_drawn_of_several_numbers_of_microbatches(tmp_path: Path) -> None:
    """Only then; records that were written before there were such columns have no such figure, and no error."""
    assert NAME not in names_of(loaded(tmp_path, swept("gpipe")[0], swept("1f1b")[1]))
    old = swept("gpipe")
    assert NAME in names_of(loaded(tmp_path, *old))
    for case in old:
        for column in ("predicted.bubble", "predicted.lockstep_bubble", "processes", "options"):
            del case["extra_info"][column]
    assert NAME not in names_of(loaded(tmp_path, *old))
