"""The script for one GPU runs where there is none, with a small model."""

import json
import re
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from benchmarks.devices.topology import Topology
from benchmarks.program.kernels import KINDS
from benchmarks.run import gpu_run
from benchmarks.run.gpu_run import GROUPS, PARTS_BY_KINDS, table_of_kinds
from benchmarks.run.traces import IDLE, OTHER
from benchmarks.simulate.machines import machine
from benchmarks.simulate.step import predict_seconds
from strategies.costs.predict import predict


def test_it_times_steps_and_reads_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each variant has the same loss, a time and its kernels; the trace of the first is read into kinds of kernels."""
    monkeypatch.setattr("sys.argv", ["gpu_run", "--out", str(tmp_path), "--preset", "nano"])
    monkeypatch.setattr(gpu_run, "TorchTraining", None)
    monkeypatch.setattr(gpu_run, "find_spec", lambda name: None)
    assert gpu_run.main() == 0
    (group,) = json.loads((tmp_path / "gpu_run.json").read_text())["groups"]
    losses = [step["loss_first"] for step in group["steps"].values()]
    assert losses == pytest.approx([losses[0]] * len(losses), abs=0.01)
    assert all(step["ms"] > 0 and step["kernels"] > 0 for step in group["steps"].values())
    traced = group["steps"]["default"]["traced_ms"]
    assert traced["matmul"] > 0
    printed = capsys.readouterr().err.splitlines()
    assert [line for line in table_of_kinds(traced, None) if line in printed] == table_of_kinds(traced, None)


def test_each_part_of_a_prediction_is_of_one_kind_of_kernels() -> None:
    """What is predicted of a step on one GPU is beside the trace once, and adds up to the step."""
    (_, case), *_ = GROUPS[0].cases()
    on_h100 = replace(case, topology=Topology.parse("h100:1x1"))
    cost = predict("single", case.config, case.mesh, case.training(), on_h100.backend)
    timeline = predict_seconds(cost, machine("meshmark_gpus", "h100"), Topology.parse("h100:1x1"))
    parts = {name: 1e3 * seconds for name, seconds in timeline.parts.items()}
    table = [re.split("  +", line) for line in table_of_kinds({"matmul": 1.5, "pass": 1.0, "copy": 0.5}, parts)[1:]]
    assert sum(float(known) for _, _, known in table if known != "?") == pytest.approx(sum(parts.values()), abs=0.04)
    assert {kinds: ms for kinds, ms, _ in table if ms != "0.00"} == {"matmul": "1.50", "pass, copy": "1.50"}
    assert {*chain.from_iterable(PARTS_BY_KINDS)} == {*KINDS, IDLE, OTHER}


def test_all_steps_can_be_built_and_differ() -> None:
    """Options and sizes of the groups exist."""
    cases = [case for group in GROUPS for _, case in group.cases()]
    for case in cases:
        case.build()  # it raises for options that do not exist
    assert len({(str(case), case.preset, case.remat, case.compiler_options) for case in cases}) == len(cases)
