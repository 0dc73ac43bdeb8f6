"""`meshmark train --dtype float16`, clipping nothing: the loss scale is resumed, and infinities are written as JSON."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.training.plan import CHECKPOINTS, LOG
from strategies.checkpoints.info import INFO
from tests.benchmarks.training.small_run import RECIPE, SMALL, lines
from tests.commands import command

main = command("train")

pytestmark = pytest.mark.usefixtures("_built_once")
RUN = (
    *("--dtype=float16", "--option=loss_scale=64", "--option=loss_scale_growth_steps=2", "--clip-norm=inf"),
    *("--steps=5", "--log-every=1", "--evaluation-batches=1", "--checkpoint-every=3"),
)
"""The loss scale doubles after every second step, and the checkpoint lies between two such steps."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert main([*SMALL, *RECIPE, *RUN, f"--out={out}"]) == 0
    return out


def logged(out: Path) -> list[dict[str, Any]]:
    """What a log says of steps and evaluations, without their times."""
    return [line | {"tokens_per_second": 0} for line in lines(out) if line["kind"] != "run"]


@pytest.mark.factorisations
def test_a_resumed_run_has_the_losses_and_scales_of_the_whole_one(whole: Path, tmp_path: Path) -> None:
    """Every loss, gradient norm and loss scale is that of the uninterrupted run, bit for bit."""
    assert [line["loss_scale"] for line in logged(whole) if line["kind"] == "step"] == [64, 64, 128, 128, 256]
    half = shutil.copytree(whole, tmp_path / "half")
    shutil.rmtree(half / CHECKPOINTS / "5")
    assert main([*SMALL, *RECIPE, *RUN, f"--out={half}", "--resume"]) == 0
    assert logged(half) == logged(whole)


def strict(text: str) -> Any:
    """Parse JSON, without the numbers that Python adds to it."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


def test_what_is_not_finite_is_still_json(whole: Path) -> None:
    """A run that clips nothing writes a log and a checkpoint that any JSON parser reads."""
    for line in (whole / LOG).read_text().splitlines():
        strict(line)
    assert strict((whole / CHECKPOINTS / "5" / INFO).read_text())["metadata"]["recipe"]["clip_norm"] == "inf"
