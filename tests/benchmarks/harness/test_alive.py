"""Long work shows that it lives."""

import time

import pytest

from benchmarks.harness.alive import SILENT_SECONDS, Alive


def test_a_line_says_what_is_done_and_for_how_long(capfd: pytest.CaptureFixture[str]) -> None:
    """As long as the work takes, and not after it; nothing is said where there is nothing to say."""
    doing = ["compiling a, 2 left"]
    with Alive(lambda: doing[0], every_seconds=0.02):
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
