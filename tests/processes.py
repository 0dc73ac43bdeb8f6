"""Start and wait for processes that a test runs together on this machine, each with a few virtual devices."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.cluster.launch import free_port

ROOT = Path(__file__).parents[1]
QUICK = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
"""XLA options that compile fast without optimising, to the same HLO (see conftest.py)."""
OLDER_EMITTERS = "--xla_cpu_use_fusion_emitters=false"
"""XLA's older loop emitter compiles faster. It fuses differently (tests/strategies/quick.py)."""

LIMIT_SECONDS = 1200
"""The timeout of a test's process. It takes 10 seconds, and 360 beside thirty others on two cores."""

Ended = subprocess.CompletedProcess[str]


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder, and return its output."""
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@cache
def quick_flags() -> str:
    """XLA options that compile fast, without the older emitters where this version of XLA no longer has them."""
    known = OLDER_EMITTERS in os.environ.get("XLA_FLAGS", "")
    if not known:
        flags = {"XLA_FLAGS": OLDER_EMITTERS, "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-c", "import jax; jax.devices()"]  # which ends at once if a flag is unknown
        known = not subprocess.run(command, env=os.environ | flags, capture_output=True).returncode
    return f"{QUICK} {OLDER_EMITTERS}" if known else QUICK


def environment(**variables: Any) -> dict[str, str]:
    """The environment of a process that a test starts: CPUs, fast compilation, and no trace of the pytest around it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ours = {"PYTHONPATH": str(ROOT), "XLA_FLAGS": quick_flags(), "JAX_PLATFORMS": "cpu"}
    return inherited | ours | {name: str(value) for name, value in variables.items()}


def peer_environment(devices_each: int, **variables: Any) -> dict[str, str]:
    """The environment of one of several processes, with this many virtual devices."""
    ours = {
        "JAX_NUM_CPU_DEVICES": devices_each,
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
    }
    return environment(**ours | variables)


def start_together(
    processes: int, devices_each: int, *command: str, folder: Path = ROOT, **variables: Any
) -> list[subprocess.Popen[str]]:
    """Start `python` with the same arguments in each process, where `{}` stands for its number.

    Args:
        processes: how many.
        devices_each: virtual devices of each.
        command: the arguments.
        folder: where.
        variables: of the environment.
    """
    env = peer_environment(devices_each, **variables)
    commands = ([sys.executable, *(part.replace("{}", str(i)) for part in command)] for i in range(processes))
    return [subprocess.Popen(each, cwd=folder, env=env, stdout=-1, stderr=-1, text=True) for each in commands]


def finish_together(started: Sequence[subprocess.Popen[str]], timeout_seconds: float = LIMIT_SECONDS) -> list[Ended]:
    """Wait for all processes; the exit status and the output of each."""
    deadline = time.monotonic() + timeout_seconds
    try:
        said = [process.communicate(timeout=max(1, deadline - time.monotonic())) for process in started]
    finally:
        for process in started:
            process.kill()
    return [Ended(process.args, process.returncode, *texts) for process, texts in zip(started, said, strict=True)]


def run_together(processes: int, devices_each: int, module: str, arguments: Sequence[str]) -> list[str]:
    """Run `python -m module HOST:PORT PROCESSES INDEX arguments` in each process; what each of them has printed.

    Raises:
        AssertionError: one of them failed; with what it said.
    """
    where = f"127.0.0.1:{free_port()}", str(processes), "{}"
    ended = finish_together(start_together(processes, devices_each, "-m", module, *where, *arguments))
    for process in ended:
        assert process.returncode == 0, f"{process.stdout}\n{process.stderr}"
    return [process.stdout for process in ended]
