"""What a training run prints while it trains."""

import pytest

from benchmarks.training.loop import ERASE, Progress


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> Progress:
    """Progress of a run that was resumed after step 10, at a second for each look at the clock."""
    seconds = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(seconds)))
    return Progress(steps=110, after=10, silent=False)


def test_a_line_has_loss_throughput_and_the_time_left(resumed: Progress, capsys: pytest.CaptureFixture[str]) -> None:
    """The time left is that of the steps that are left, as fast as those of this part of the run so far."""
    for step in (20, 30, 110):
        resumed.step(step, 3.25, 6841.2)
    assert capsys.readouterr().out.splitlines() == [
        "step 20/110: loss 3.2500, 6,841 tokens/s, about 0:09 left",
        "step 30/110: loss 3.2500, 6,841 tokens/s, about 0:08 left",
        "step 110/110: loss 3.2500, 6,841 tokens/s",
    ]


def test_on_a_terminal_the_latest_step_stays_in_place(resumed: Progress, capsys: pytest.CaptureFixture[str]) -> None:
    """A step takes the place of the one before; other messages have a line of their own."""
    resumed.in_place = True
    resumed.step(20, 3.25, 6841.2)
    resumed.say("stopped")
    assert (
        capsys.readouterr().out == f"{ERASE}step 20/110: loss 3.2500, 6,841 tokens/s, about 0:09 left{ERASE}stopped\n"
    )
