"""Several processes on this machine:

    python -m benchmarks.launch --processes 2 --devices-per-process 4 -- --preset micro --strategy data

Each runs `pytest benchmarks` with what stands behind the `--`. On CPUs they have virtual devices, and talk through gloo
and the loopback; where there are GPUs, each process has so many of its own. The first process has the terminal; what
another says to stderr is shown behind its number. When one ends badly all are ended, and its exit status is this one's.
With JAX_PLATFORMS=cpu GPUs are left alone.
"""

import argparse
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import IO

from benchmarks.commandline.ending import INTERRUPTED
from benchmarks.commandline.ending import run as run_command
from benchmarks.commandline.main import program
from benchmarks.statuses import IN_ORDER

GRACE_SECONDS = 30.0
"""For the others, when one has died, to write what they have measured."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser(
        prog=program("python -m benchmarks.launch"),
        description="Run `pytest benchmarks` in several processes on this machine.",
    )
    parser.add_argument("--processes", type=int, required=True, metavar="N")
    parser.add_argument("--devices-per-process", type=int, default=1, metavar="D", help="default: %(default)s")
    parser.add_argument("pytest", nargs="*", metavar="-- OPTION", help="of `pytest benchmarks`")
    options = parser.parse_args(arguments)
    if min(options.processes, options.devices_per_process) < 1:
        parser.error("--processes and --devices-per-process are whole numbers of at least 1")
    gpus = visible_gpus()
    wanted = options.processes * options.devices_per_process
    if gpus and len(gpus) < wanted:
        parser.error(
            f"{options.processes} processes of {options.devices_per_process} take {wanted} GPUs of {len(gpus)}"
        )
    where = f"127.0.0.1:{free_port()}"
    started: list[subprocess.Popen[str]] = []
    numbers = signal.SIGINT, signal.SIGTERM
    heard: list[int] = []

    def hear(number: int, _: object) -> None:
        heard.append(number)
        tell(started, signal.SIGTERM)  # for Ctrl-C, too: a process that is about to start hears it without a traceback

    before = {number: signal.signal(number, hear) for number in numbers}
    try:
        for index in range(options.processes):
            command = [sys.executable, "-m", "pytest", str(Path(__file__).parent), "--coordinator", where]
            command += ["--processes", str(options.processes), "--process-id", str(index), *options.pytest]
            own = environment(index, options.devices_per_process, gpus)
            output, errors = (None, None) if index == 0 else (subprocess.DEVNULL, subprocess.PIPE)
            # In a group of its own: what it starts is told, and killed, with it.
            process = subprocess.Popen(command, env=own, stdout=output, stderr=errors, text=True, process_group=0)
            started.append(process)
            if process.stderr:
                threading.Thread(target=pass_on, args=(process.stderr, index), daemon=True).start()
        status = wait(started)
        return INTERRUPTED if heard and status == 128 + signal.SIGTERM else status
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        tell(started, signal.SIGKILL)


def environment(index: int, devices: int, gpus: Sequence[str]) -> dict[str, str]:
    """Of process number `index`: its own devices, and how it talks to the others.

    >>> environment(1, 2, ["0", "1", "2", "3"])["CUDA_VISIBLE_DEVICES"]
    '2,3'
    >>> environment(1, 2, [])["JAX_NUM_CPU_DEVICES"]
    '2'
    """
    if gpus:
        return os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(gpus[index * devices : (index + 1) * devices])}
    own = {"JAX_NUM_CPU_DEVICES": str(devices), "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo", "JAX_PLATFORMS": "cpu"}
    return os.environ | own


def visible_gpus() -> list[str]:
    """The GPUs that processes may take, as CUDA counts them; none where JAX takes another platform.

    It does where it is told to, and where it is told nothing and has no plugin for CUDA.
    """
    if os.environ.get("JAX_PLATFORMS", "cuda" if has_cuda() else "cpu") not in ("cuda", "gpu"):
        return []
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [gpu for gpu in visible.split(",") if gpu not in ("", "-1")]
    return [str(index) for index, _ in enumerate(Path("/proc/driver/nvidia/gpus").glob("*"))]


def has_cuda() -> bool:
    """Whether JAX has a plugin for CUDA."""
    return any("cuda" in plugin.name for plugin in entry_points(group="jax_plugins"))


def free_port() -> int:
    """A port of the loopback that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def pass_on(errors: IO[str], index: int) -> None:
    """Say whose they are."""
    for line in errors:
        print(f"[{index}] {line}", end="", file=sys.stderr, flush=True)


def wait(started: Sequence[subprocess.Popen[str]]) -> int:
    """Wait for all; when one has ended badly, end the others. The exit status of the first that did, or of the first.

    Where cases have failed they have done so in all of them: that is an end in good order.
    """
    bad, deadline = 0, math.inf
    while any(process.poll() is None for process in started):
        bad = bad or next((each for each in map(subprocess.Popen.poll, started) if each not in (None, *IN_ORDER)), 0)
        if bad and deadline == math.inf:
            deadline = time.monotonic() + GRACE_SECONDS
            tell(started, signal.SIGTERM)
        if time.monotonic() > deadline:
            tell(started, signal.SIGKILL)
        time.sleep(0.1)
    statuses = [process.wait() for process in started]
    status = bad or next((status for status in statuses if status not in IN_ORDER), statuses[0])
    return 128 - status if status < 0 else status


def tell(started: Sequence[subprocess.Popen[str]], number: int) -> None:
    """Send a signal to those that still run, and to all that they have started."""
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, number)


if __name__ == "__main__":
    run_command(main)
