"""Plugin: the process that measures registers the strategies with a planted fault (`faulty_strategies.py`).

Environment variables choose what happens when the report is about to be written: with TWICE, Ctrl-C is pressed; with
ROOM, the limit of the file size is lifted.
"""

import os
import resource
import signal

from benchmarks.run import supervise

supervise.PROGRAM = "tests.benchmarks.faulty_strategies"


def pytest_benchmark_update_json() -> None:
    """Press Ctrl-C or lift the limit of the file size, if the environment says so."""
    if "TWICE" in os.environ:
        signal.raise_signal(signal.SIGINT)
    if "ROOM" in os.environ:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
