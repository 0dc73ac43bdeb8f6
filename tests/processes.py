"""Processes that work together on this machine, each with a few virtual devices."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def environment(devices_each: int, **variables: Any) -> dict[str, str]:
    """Of a process with so many virtual devices, which compiles fast and not well."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ours = {
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices_each),
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
    }
    return inherited | ours | {name: str(value) for name, value in variables.items()}


def run_together(processes: int, devices_each: int, module: str, arguments: Sequence[str]) -> list[str]:
    """Run `python -m module HOST:PORT PROCESSES INDEX arguments` in each process; what each of them has printed.

    Raises:
        AssertionError: one of them failed; with what it said.
    """
    where = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", module, where, str(processes)]
    started = [
        subprocess.Popen(
            [*command, str(index), *arguments], cwd=ROOT, env=environment(devices_each), stdout=-1, stderr=-1, text=True
        )
        for index in range(processes)
    ]
    try:
        said = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (output, errors) in zip(started, said, strict=True):
        assert process.returncode == 0, f"{output}\n{errors}"
    return [output for output, _ in said]
