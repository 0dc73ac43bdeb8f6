"""Options and a timeout for joining a multi-process run.

While processes are missing, an early line says which ones this process waits for. After `--join-timeout` the process
exits with an error. JAX on its own waits silently and then aborts with a C++ stack trace.
"""

import os
import re
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.cli.options import JOIN_TIMEOUT, LOST_AFTER
from benchmarks.cli.statuses import REFUSED

NOTICE_SECONDS = 5.0
"""Time after which a process says what it waits for."""


def several_processes_requested(option: Namespace) -> bool:
    """Whether the options ask for a multi-process run."""
    manual = {"--coordinator": option.coordinator, "--processes": option.processes, "--process-id": option.process_id}
    missing = [name for name, value in manual.items() if value is None]
    if option.distributed and len(missing) < len(manual):
        raise ValueError(f"--distributed detects {', '.join(manual)}; remove --distributed, or those")
    if 0 < len(missing) < len(manual):
        raise ValueError(f"{', '.join(manual)} go together; {', '.join(missing)} missing")
    alone = len(missing) == len(manual) and not option.distributed
    if alone and (option.join_timeout, option.lost_after) != (JOIN_TIMEOUT, LOST_AFTER):
        raise ValueError("--join-timeout and --lost-after are of several processes; remove them, or pass --distributed")
    if not missing and option.process_id >= option.processes:
        raise ValueError(f"--process-id {option.process_id} is none of {option.processes} processes, 0 the first")
    if option.coordinator is not None:
        require_address(option.coordinator)
    return option.distributed or not missing


@contextmanager
def join_timeout(option: Namespace) -> Iterator[None]:
    """Limit the time spent in the body to `--join-timeout` seconds.

    When time is up, the process exits with the status of a usage error.
    """
    joined = threading.Event()
    watch = threading.Thread(target=_watch, args=(option, joined), daemon=True)
    watch.start()
    try:
        yield
    finally:
        joined.set()
        watch.join()


def _watch(option: Namespace, joined: threading.Event) -> None:
    notice_seconds = min(NOTICE_SECONDS, option.join_timeout / 2)
    if joined.wait(notice_seconds):
        return
    print(
        f"waiting for {awaited_processes(option)}, {option.join_timeout:g} seconds at most", file=sys.stderr, flush=True
    )
    if not joined.wait(option.join_timeout - notice_seconds):
        problem = f"waited {option.join_timeout:g} seconds for {awaited_processes(option)}"
        advice = "start all processes with the same options, or raise --join-timeout"
        print(f"ERROR: {problem}; {advice}", file=sys.stderr, flush=True)
        os._exit(REFUSED)


def awaited_processes(option: Namespace) -> str:
    """Describe which processes this one waits for."""
    if option.distributed:
        return "the other processes of the cluster"
    if option.process_id == 0:
        return f"the other {option.processes - 1} of {option.processes} processes to connect to {option.coordinator}"
    return f"process 0 at {option.coordinator}, or processes that it waits for"


def require_address(where: str) -> None:
    """Check that the coordinator's address has the form HOST:PORT."""
    host, _, port = where.rpartition(":")
    if not host or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 2**16:
        raise ValueError(f"--coordinator {where} is not an address; pass HOST:PORT, such as node0:12345")
