"""results/measured/README.md has what its records say, and what is predicted today."""

import dataclasses
import statistics
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.devices.topology import OUR_KINDS, Topology
from benchmarks.simulate.machines import machine
from benchmarks.simulate.step import predict_seconds
from results.records.reading import read_run, rows_of
from strategies import PRESETS, TrainConfig
from strategies.costs.predict import predict
from tests.processes import ROOT

FOLDER = ROOT / "results" / "measured"
PAGE = (FOLDER / "README.md").read_text()
SECTIONS = {title: body for title, _, body in (part.partition("\n") for part in PAGE.split("\n## ")[1:])}
MOST = {
    "One H100, whose traces gave the constants": 0.05,
    "One H100, later": 0.1,
    "One H200": 0.06,
    "One H200, later": 0.07,
}
"""Section -> the mean error that predictions of its steps stay below."""
PREDICTED = 4
"""The column of predicted milliseconds. Versions of JAX keep more or less of a layer, which takes time to write."""


def steps_of(section: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the file and the facts of each step in bfloat16 whose record a section names."""
    for path in sorted(FOLDER.glob("*.json")):
        if f"`{path.name}`" in section:
            rows = (row["extra_info"] for row in rows_of(read_run(path)))
            yield from ((path.name, info) for info in rows if info["dtype"] == "bfloat16")


def seconds(info: dict[str, Any]) -> float:
    """Seconds of the step of a row by today's formulas and constants. Their matmuls had no epilogues yet."""
    preset, *sizes = info["preset"].split(",")
    changes = {name: int(size) for name, size in (each.split("=") for each in sizes)}
    train = TrainConfig(info["global_batch_sequences"], dtype="bfloat16", remat=info["remat"], unroll=info["unroll"])
    cost = predict("single", dataclasses.replace(PRESETS[preset], **changes), "data=1", train, "cuda")
    kind = OUR_KINDS[info["device_kind"]]
    its = machine("meshmark_gpus", kind)
    kernels = dataclasses.replace(its.stack.kernels, epilogues=None)
    its = dataclasses.replace(its, stack=dataclasses.replace(its.stack, kernels=kernels))
    return predict_seconds(cost, its, Topology.parse(f"{kind}:1x1")).step_seconds


def line_of(file: str, info: dict[str, Any]) -> list[str]:
    """Cells of the table: times, tokens, and memory as compiled and by formula."""
    measured, predicted = 1e3 * info["step_seconds_median"], 1e3 * seconds(info)
    held = info["memory.total_bytes"], info["predicted.argument_bytes"] + info["predicted.temp_bytes"]
    step = f"`{file}`", str(info["global_batch_sequences"]), f"{measured:.1f}", f"{info['tokens_per_second']:,.0f}"
    return [*step, f"{predicted:.1f}", f"{predicted / measured:.2f}", *(f"{size / 2**30:.2f}" for size in held)]


@pytest.mark.parametrize("title", MOST)
def test_the_table_is_of_the_records(title: str) -> None:
    """Each row is one measured step, with today's prediction; and their mean error is said, and stays as small."""
    section, steps = SECTIONS[title], [*steps_of(SECTIONS[title])]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line[:3] == "| `"]
    table = [[file, *others] for file, _, *others in cells]
    noisy = sorted(file for file, info in steps if info["noisy"])
    assert sorted(file.strip("`") for file, step, *_ in cells if step.endswith(", *noisy*")) == noisy
    for shown, expected in zip(sorted(table), sorted(line_of(*step) for step in steps), strict=True):
        ratio = PREDICTED + 1
        assert [*shown[:PREDICTED], *shown[ratio + 1 :]] == [*expected[:PREDICTED], *expected[ratio + 1 :]]
        assert float(shown[PREDICTED]) == pytest.approx(float(expected[PREDICTED]), rel=0.03)
        assert float(shown[ratio]) == pytest.approx(float(shown[PREDICTED]) / float(shown[2]), abs=0.011)
    mean = statistics.mean(abs(float(row[PREDICTED + 1]) - 1) for row in table)
    assert f"{len(table)} steps, {100 * mean:.0f}% off on average" in " ".join(section.split()).lower()
    assert statistics.mean(abs(seconds(info) / info["step_seconds_median"] - 1) for _, info in steps) < MOST[title]
