"""`meshmark export --to-huggingface` and `meshmark train --init`: weights of a run, with which another one begins."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.training.plan import CHECKPOINTS
from strategies.huggingface import safetensors
from strategies.huggingface.folder import FILE
from tests.benchmarks.training.small_run import OFTEN, SMALL, losses
from tests.commands import command
from tests.strategies.equality import ROUNDING
from tests.strategies.quick import ahead_of_time

train, export = command("train"), command("export")


def test_an_exported_run_goes_on_with_its_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under another strategy, without options of the model: the first validation loss is the last one of the run.

    A weight that is not finite is named, and nothing is trained.
    """
    first, second, folder = tmp_path / "first", tmp_path / "second", tmp_path / "folder"
    begin = [*OFTEN, "--steps=1", "--batch-size=8"]
    with ahead_of_time():
        assert train(["--preset=nano-llama", "--model=key_heads=2", *SMALL, *begin, f"--out={first}"]) == 0
        assert export([str(first / CHECKPOINTS), f"--to-huggingface={folder}"]) == 0
        others = [*begin, f"--init={folder}", f"--out={second}"]
        assert train(["--strategy=pipeline", "--mesh=pipeline=2", *others]) == 0
    assert losses(second)["evaluation", 0] == pytest.approx(losses(first)["evaluation", 1], rel=ROUNDING["float32"])
    name = [*safetensors.opened(folder / FILE)][-1]
    for wrong in ("nan", "-inf"):
        content = (folder / FILE).read_bytes()
        (folder / FILE).write_bytes(content[:-4] + np.float32(wrong).tobytes())
        assert train([*begin, f"--init={folder}", f"--out={tmp_path / wrong}"]) == 5
        assert f"folder: {name} has {wrong} among its weights; name a folder" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        train([*others, "--model=layers=3"])
    assert "config.json has layers=2, which cannot be layers=3" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        export([str(first / CHECKPOINTS), f"--to-huggingface={folder}", "--format=csv"])
    assert "--format is of a run, and --to-huggingface of checkpoints" in capsys.readouterr().err
