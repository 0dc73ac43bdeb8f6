"""`meshmark train --dtype float16`: a run that is resumed goes on with its loss scale."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.train import main
from benchmarks.training.plan import CHECKPOINTS
from tests.benchmarks.training.small_run import RECIPE, SMALL, lines

pytestmark = pytest.mark.usefixtures("_built_once")
RUN = (
    *("--dtype=float16", "--option=loss_scale=64", "--option=loss_scale_growth_steps=2", "--steps=5"),
    *("--log-every=1", "--evaluation-batches=1", "--checkpoint-every=3"),
)
"""The loss scale doubles with every second step, and the checkpoint lies between two such steps."""


def logged(out: Path) -> list[dict[str, Any]]:
    """What a log says of steps and evaluations, without their times."""
    return [line | {"tokens_per_second": 0} for line in lines(out) if line["kind"] != "run"]


def test_a_resumed_run_has_the_losses_and_scales_of_the_whole_one(tmp_path: Path) -> None:
    """Every loss, gradient norm and loss scale is that of the uninterrupted run, bit for bit."""
    whole, half = tmp_path / "whole", tmp_path / "half"
    assert main([*SMALL, *RECIPE, *RUN, f"--out={whole}"]) == 0
    assert [line["loss_scale"] for line in logged(whole) if line["kind"] == "step"] == [64, 128, 128, 256, 256]
    shutil.copytree(whole, half)
    shutil.rmtree(half / CHECKPOINTS / "5")
    assert main([*SMALL, *RECIPE, *RUN, f"--out={half}", "--resume"]) == 0
    assert logged(half) == logged(whole)
