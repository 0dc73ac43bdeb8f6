"""`meshmark train --check` compares the step with one device before it trains."""

from pathlib import Path

import pytest

from benchmarks.training import train as train_module
from benchmarks.training.plan import CHECKPOINTS
from strategies.checkpoints.info import positions
from tests.benchmarks.training.small_run import FSDP, RUN
from tests.commands import command
from tests.strategies.wrong_gradients import scaled, strategy_with

main = command("train")


def test_a_step_may_be_checked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --check a run begins only if its step equals one device; otherwise it ends and says which weight differs."""
    options = [*FSDP, *RUN, "--steps=1", "--check"]
    assert main([*options, f"--out={tmp_path / 'sound'}"]) == 0
    assert "equals one device: " in capsys.readouterr().err
    monkeypatch.setattr(train_module, "STRATEGIES", {"fsdp": strategy_with("fsdp", scaled(0.5, "norm1"))})
    assert main([*options, f"--out={tmp_path / 'wrong'}"]) == 1
    assert "gradient of blocks.norm1." in capsys.readouterr().err
    assert not positions(tmp_path / "wrong" / CHECKPOINTS)
