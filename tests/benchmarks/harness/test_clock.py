"""Where the time of a run goes."""

import re
import time
from contextlib import suppress

from benchmarks.harness.clock import Clock


def test_phases_add_up_and_failures_count() -> None:
    """A phase is the sum of its stretches, and takes the time it took even if it fails."""
    clock = Clock()
    with clock.phase("compile"):
        time.sleep(0.01)
    with suppress(KeyError), clock.phase("compile"):
        time.sleep(0.01)
        raise KeyError
    assert 0.02 <= clock.seconds["compile"] <= clock.total_seconds


def test_split_names_the_overhead() -> None:
    """What no phase claims is said too, as a share of the whole."""
    clock = Clock()
    clock.start -= 100
    clock.seconds |= {"compile": 60.0, "timed": 20.0}
    assert re.fullmatch(r"100 s: compile 60 s, timed 20 s, other 20 s \(20%\)", str(clock))
