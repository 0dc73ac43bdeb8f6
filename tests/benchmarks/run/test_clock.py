"""The clock splits the wall time of a run into phases."""

import re
import time
from contextlib import suppress

from benchmarks.run.clock import Clock


def test_phases_add_up_and_failures_count() -> None:
    """A phase's time is the sum over its uses, including those that raised an error."""
    clock = Clock()
    with clock.phase("compile"):
        time.sleep(0.01)
    with suppress(KeyError), clock.phase("compile"):
        time.sleep(0.01)
        raise KeyError
    assert 0.02 <= clock.seconds["compile"] <= clock.total_seconds


def test_split_names_the_overhead() -> None:
    """The summary gives the time outside of all phases as `other`, with its share."""
    clock = Clock()
    clock.start -= 100
    clock.seconds |= {"compile": 60.0, "timed": 20.0}
    assert re.fullmatch(r"100 s: compile 60 s, timed 20 s, other 20 s \(20%\)", str(clock))


def test_a_running_phase_has_its_time() -> None:
    """It counts from the begin of the phase, and is 0 before and after it."""
    clock = Clock()
    assert clock.running_seconds("timed") == 0
    with clock.phase("timed"), clock.phase("compile"):
        time.sleep(0.01)
        assert 0.01 <= clock.running_seconds("timed") <= clock.total_seconds
    assert clock.running_seconds("timed") == 0
