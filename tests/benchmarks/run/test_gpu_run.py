"""The script for one GPU runs where there is none, with a small model."""

import json
from pathlib import Path

import pytest

from benchmarks.run import gpu_run
from benchmarks.run.gpu_run import GROUPS


def test_it_times_steps_and_reads_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each variant has the same loss, a time and its kernels; the trace of the first is read into kinds of kernels."""
    monkeypatch.setattr("sys.argv", ["gpu_run", "--out", str(tmp_path), "--preset", "nano"])
    monkeypatch.setattr(gpu_run, "TorchTraining", None)
    monkeypatch.setattr(gpu_run, "find_spec", lambda name: None)
    assert gpu_run.main() == 0
    (group,) = json.loads((tmp_path / "gpu_run.json").read_text())["groups"]
    losses = [step["loss_first"] for step in group["steps"].values()]
    assert losses == pytest.approx([losses[0]] * len(losses), abs=0.01)
    assert all(step["ms"] > 0 and step["kernels"] > 0 for step in group["steps"].values())
    assert group["steps"]["default"]["traced_ms"]["matmul"] > 0


def test_all_steps_can_be_built_and_differ() -> None:
    """Options and sizes of the groups exist."""
    cases = [case for group in GROUPS for _, case in group.cases()]
    for case in cases:
        case.build()  # it raises for options that do not exist
    assert len({(str(case), case.preset, case.remat, case.compiler_options) for case in cases}) == len(cases)
