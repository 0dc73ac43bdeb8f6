"""Run the benchmarks in several processes on this machine:

    meshmark launch --processes 2 --devices-per-process 4 -- --preset micro --strategy data

Each process runs `pytest benchmarks` with the options after `--`. On CPUs, processes have virtual devices and
communicate by gloo over the loopback interface. Where there are GPUs, each process gets its own. JAX_PLATFORMS=cpu
leaves GPUs unused. The first process owns the terminal; stderr of the others is shown with their number in front. When
one process fails, all are ended, and its exit status is returned.
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

from benchmarks.cli.ending import Refused
from benchmarks.cli.starting import bound
from benchmarks.cli.statuses import INTERRUPTED, NORMAL_EXITS

MOST_PROCESSES = max(64, 4 * (os.cpu_count() or 1))
"""Each process loads JAX, which takes seconds of a core and 300 MiB."""
MOST_DEVICES = 1024
"""Virtual devices of a process have a thread each."""
GPU = "cuda", "gpu"
"""JAX's names of the platform whose devices `launch` divides."""
GRACE_SECONDS = 30.0
"""Time for the other processes to write their results after one has failed."""


def main(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    asked = os.environ.get("JAX_PLATFORMS", "")
    gpus = visible_gpus()
    if asked and not gpus and first_platform() != "cpu":
        problem = "no GPU is visible" if first_platform() in GPU else "launch uses GPUs or virtual CPU devices only"
        raise Refused(f"JAX_PLATFORMS={asked}, but {problem}; set it to cpu for virtual CPU devices")
    needed = options.processes * options.devices_per_process
    if gpus and len(gpus) < needed:
        wanted = f"{options.processes} processes of {options.devices_per_process} GPUs"
        raise Refused(f"{wanted} need {needed}, and there are {len(gpus)}")
    if options.processes > MOST_PROCESSES or options.devices_per_process > MOST_DEVICES:
        problem = f"{options.processes} processes of {options.devices_per_process} devices are too many"
        raise Refused(f"{problem} for this machine; use at most {MOST_PROCESSES} processes of {MOST_DEVICES} devices")
    kind = "GPUs" if gpus else "virtual CPU devices"
    print(f"{options.processes} processes of {options.devices_per_process} {kind}", file=sys.stderr)
    return launch(options, gpus)


def launch(options: argparse.Namespace, gpus: Sequence[str]) -> int:
    """Start all processes, wait for them, and return the exit status."""
    coordinator = f"127.0.0.1:{free_port()}"
    running: list[subprocess.Popen[str]] = []
    stop_signals = signal.SIGINT, signal.SIGTERM
    received: list[int] = []

    def on_signal(number: int, _: object) -> None:
        received.append(number)
        send_signal(running, signal.SIGTERM)  # for Ctrl-C too: SIGTERM prints no traceback in a starting process

    handlers_before = {number: signal.signal(number, on_signal) for number in stop_signals}
    try:
        for index in range(options.processes):
            command = [sys.executable, "-m", "pytest", str(Path(__file__).parents[1]), "--coordinator", coordinator]
            command += ["--processes", str(options.processes), "--process-id", str(index), *options.pytest]
            env = environment(index, options.devices_per_process, gpus) | bound()
            output, errors = (None, None) if index == 0 else (subprocess.DEVNULL, subprocess.PIPE)
            # In a separate process group, so that its children are signalled with it.
            process = subprocess.Popen(command, env=env, stdout=output, stderr=errors, text=True, process_group=0)
            running.append(process)
        for index, process in enumerate(running):
            if process.stderr:
                threading.Thread(target=forward_stderr, args=(process.stderr, index), daemon=True).start()
        status = wait(running)
        return INTERRUPTED if received and status == 128 + signal.SIGTERM else status
    finally:
        for number, handler in handlers_before.items():
            signal.signal(number, handler)
        send_signal(running, signal.SIGKILL)


def environment(index: int, devices: int, gpus: Sequence[str]) -> dict[str, str]:
    """Environment of process `index`: its own devices, of these GPUs or else virtual ones, and how it communicates.

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
    """Ids of the GPUs that may be used, as in CUDA_VISIBLE_DEVICES; none if JAX uses another platform."""
    if first_platform() not in GPU:
        return []
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [gpu for gpu in visible.split(",") if gpu not in ("", "-1")]
    return [str(index) for index, _ in enumerate(Path("/proc/driver/nvidia/gpus").glob("*"))]


def first_platform() -> str:
    """The platform that JAX uses: the first in JAX_PLATFORMS; without one CUDA if its plugin is there, or else CPUs."""
    has_cuda = any("cuda" in plugin.name for plugin in entry_points(group="jax_plugins"))
    return os.environ.get("JAX_PLATFORMS", "").partition(",")[0] or ("cuda" if has_cuda else "cpu")


def free_port() -> int:
    """An unused port of the loopback interface."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def forward_stderr(errors: IO[str], index: int) -> None:
    """Print the stderr of a process with its number in front of each line."""
    with errors:
        for line in errors:
            print(f"[{index}] {line}", end="", file=sys.stderr, flush=True)


def wait(running: Sequence[subprocess.Popen[str]]) -> int:
    """Wait for all processes; when one fails, end the others.

    The exit status is that of the first process that failed, or else of process 0. Failed cases are no failure of the
    process here, because they fail in all processes.
    """
    bad, deadline = 0, math.inf
    while any(process.poll() is None for process in running):
        bad = bad or next(
            (status for status in map(subprocess.Popen.poll, running) if status not in (None, *NORMAL_EXITS)), 0
        )
        if bad and deadline == math.inf:
            deadline = time.monotonic() + GRACE_SECONDS
            send_signal(running, signal.SIGTERM)
        if time.monotonic() > deadline:
            send_signal(running, signal.SIGKILL)
        time.sleep(0.1)
    statuses = [process.wait() for process in running]
    status = bad or next((status for status in statuses if status not in NORMAL_EXITS), statuses[0])
    return 128 - status if status < 0 else status


def send_signal(running: Sequence[subprocess.Popen[str]], number: int) -> None:
    """Send a signal to all processes that still run, and to their children."""
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, number)
