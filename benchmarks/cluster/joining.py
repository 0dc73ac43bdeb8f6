"""A timeout for the start of several processes: a line says early what is waited for, and another ends the process.

JAX alone waits in silence, and then aborts the process with a stack of C++.
"""

import os
import socket
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

SILENT_SECONDS = 5.0


def processes_asked(option: Namespace) -> bool:
    """Whether the options ask for several processes.

    Raises:
        ValueError: they say too little, or too much.
    """
    by_hand = {"--coordinator": option.coordinator, "--processes": option.processes, "--process-id": option.process_id}
    missing = [name for name, value in by_hand.items() if value is None]
    if option.distributed and len(missing) < len(by_hand):
        raise ValueError(f"--distributed finds out what {', '.join(by_hand)} say; leave it out, or leave them out")
    if 0 < len(missing) < len(by_hand):
        raise ValueError(f"{', '.join(by_hand)} go together; {', '.join(missing)} missing")
    if not missing and option.process_id >= option.processes:
        raise ValueError(f"--process-id {option.process_id} is none of {option.processes} processes, 0 the first")
    if option.coordinator is not None:
        require_address(option.coordinator)
    return option.distributed or not missing


@contextmanager
def patience(option: Namespace) -> Iterator[None]:
    """Wait for what is inside, `--join-timeout` seconds at most; then this process ends, as where options are wrong."""
    arrived = threading.Event()
    watch = threading.Thread(target=_watch, args=(option, arrived), daemon=True)
    watch.start()
    try:
        yield
    finally:
        arrived.set()
        watch.join()


def _watch(option: Namespace, arrived: threading.Event) -> None:
    silent = min(SILENT_SECONDS, option.join_timeout / 2)
    if arrived.wait(silent):
        return
    print(f"waiting for {awaited(option)}, {option.join_timeout:g} seconds at most", file=sys.stderr, flush=True)
    if not arrived.wait(option.join_timeout - silent):
        came = f"waited {option.join_timeout:g} seconds for {awaited(option)}"
        advice = "start all processes with the same options, or raise --join-timeout"
        print(f"ERROR: {came}; {advice}", file=sys.stderr, flush=True)
        os._exit(pytest.ExitCode.USAGE_ERROR)


def awaited(option: Namespace) -> str:
    """Which processes this one waits for, and whether process 0 answers."""
    if option.distributed:
        return "the other processes of the cluster"
    if option.process_id == 0:
        return f"the other {option.processes - 1} of {option.processes} processes to come to {option.coordinator}"
    return f"process 0 at {option.coordinator}{unreachable(option.coordinator)}"


def unreachable(where: str) -> str:
    """Why nobody answers at HOST:PORT, or that somebody does.

    >>> unreachable("127.0.0.1:1")
    ' (Connection refused)'
    """
    host, _, port = where.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
    except OSError as error:
        return f" ({error.strerror or error})"
    return ", where others are missing"


def require_address(where: str) -> None:
    """See that a coordinator's address can be one.

    Raises:
        ValueError: it has no host or no port.
    """
    host, _, port = where.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f"--coordinator {where} is no address; give HOST:PORT, such as node0:12345")
