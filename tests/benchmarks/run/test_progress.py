"""Long work shows that it lives."""

import time

import pytest

from benchmarks.run.progress import SILENT_SECONDS, say_regularly


def test_a_line_says_what_is_done_and_for_how_long(capfd: pytest.CaptureFixture[str]) -> None:
    """As long as the work takes, and not after it; nothing is said where there is nothing to say."""
    doing = ["compiling a, 2 left"]
    with say_regularly(lambda: doing[0], every_seconds=0.02):
        time.sleep(0.2)
        doing[0] = ""
        time.sleep(0.05)
        silent = capfd.readouterr().err
        time.sleep(0.2)
        assert "so far" not in capfd.readouterr().err
    lines = silent.splitlines()
    assert len(lines) > 1
    assert set(lines) == {"compiling a, 2 left, 0:00 so far"}
    assert SILENT_SECONDS <= 15


def test_a_duration_is_that_of_what_is_done_now(capfd: pytest.CaptureFixture[str]) -> None:
    """What was begun since the last line has no duration yet, because nobody saw when it began."""
    doing = ["compiling a"]
    with say_regularly(lambda: doing[0], every_seconds=1.2):
        time.sleep(0.6)
        doing[0] = "compiling b"
        time.sleep(2.4)
    assert capfd.readouterr().err.splitlines() == ["compiling b", "compiling b, 0:01 so far"]
