"""How a training run ends before its last step: it is told to stop, or what it computes is not finite."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.training.loop import Stopping
from benchmarks.training.plan import CHECKPOINTS
from strategies.checkpoints.info import positions
from tests.benchmarks.training.small_run import OFTEN, SMALL, lines, losses
from tests.commands import command
from tests.processes import ROOT, environment
from tests.strategies.sampling import nightly

main = command("train")

pytestmark = pytest.mark.usefixtures("_built_once")


@pytest.mark.usefixtures("_interruptible")
def test_a_second_signal_ends_at_once() -> None:
    """The first signal is noted, the second one ends the process with 130; before and after, Python's handler acts."""
    code = "import os, signal; from benchmarks.training.loop import Stopping; stopping = Stopping()\n"
    code += "before = signal.getsignal(signal.SIGTERM)\n"
    code += "with stopping.listening(): os.kill(os.getpid(), signal.SIGTERM); print(stopping.requested, flush=True)\n"
    code += "assert signal.getsignal(signal.SIGTERM) == before\n"
    code += "with stopping.listening(): os.kill(os.getpid(), signal.SIGINT); print('still here')\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "True\n")


class StopsAfter(Stopping):
    """Is told to stop after this many steps."""

    steps = 0

    @property
    def requested(self) -> bool:
        """Counts the questions, of which there is one before each step."""
        self.steps -= 1
        return self.steps < 0

    @requested.setter
    def requested(self, value: bool) -> None:
        """Nothing else tells it to stop."""


@pytest.mark.parametrize("steps", [3, *nightly(0)])
def test_the_last_step_before_a_stop_is_logged(steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped between two lines of the log, or before the first step, the state is saved; it can be resumed there."""
    monkeypatch.setattr("benchmarks.training.train.Stopping", type("_", (StopsAfter,), {"steps": steps}))
    for resume in ([], ["--resume"]):
        assert main([*SMALL, f"--out={tmp_path / 'run'}", *resume]) == 130
    assert positions(tmp_path / "run" / CHECKPOINTS) == sorted({steps, 2 * steps})
    assert [step for kind, step in losses(tmp_path / "run") if kind == "step"] == ([3, 6] if steps else [])


def test_what_is_saved_at_a_stop_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is stopped after its loss was lost, before a line of the log said so, is not saved."""
    monkeypatch.setattr("benchmarks.training.train.Stopping", type("_", (StopsAfter,), {"steps": 4}))
    wild = ("--learning-rate=1e18", "--clip-norm=inf", "--warmup-steps=0", "--log-every=100")
    assert main([*SMALL, *wild, f"--out={tmp_path / 'run'}"]) == 1
    assert positions(tmp_path / "run" / CHECKPOINTS) == []


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run whose loss overflows ends with 1 and a line that names the step; there is nothing to resume."""
    wild = ("--learning-rate=1e18", "--clip-norm=1e18", "--warmup-steps=0", "--steps=9")
    assert main([*SMALL, *OFTEN, *wild, f"--out={tmp_path / 'run'}"]) == 1
    assert re.search(r"loss nan and .* at step \d; train into another --out", capsys.readouterr().err)
    assert lines(tmp_path / "run")[-1]["loss"] is None
    assert positions(tmp_path / "run" / CHECKPOINTS) == []
    for resume in ([], ["--resume"]):
        with pytest.raises(SystemExit, match="2"):
            main([*SMALL, f"--out={tmp_path / 'run'}", *resume])
        assert "it has no checkpoint; remove" in capsys.readouterr().err
