"""Runs steps of GitHub workflows as a runner would: in bash, with the commands that are installed there."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.processes import LIMIT_SECONDS, environment

MESHMARK = f'exec {sys.executable} -m benchmarks "$@"'
"""A script that stands in for the installed command."""


def install(folder: Path, scripts: Mapping[str, str]) -> None:
    """Write scripts that stand in for commands, by their names, where `run_step` finds them."""
    (folder / "bin").mkdir(exist_ok=True)
    for name, line in scripts.items():
        script = folder / "bin" / name
        script.write_text(f"#!/bin/bash\n{line}\n")
        script.chmod(0o755)


def run_step(script: str, runner: Path, where: Path, **variables: Any) -> subprocess.CompletedProcess[str]:
    """Run a step in a folder, in bash without a profile. `runner` has the installed scripts, and gets the summary."""
    files = {"RUNNER_TEMP": runner, "GITHUB_OUTPUT": runner / "output", "GITHUB_STEP_SUMMARY": runner / "summary"}
    path = f"{runner / 'bin'}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    env = environment(**{**files, "PATH": path, **variables})
    options = {"cwd": where, "env": env, "capture_output": True, "text": True, "timeout": LIMIT_SECONDS}
    return subprocess.run(command, **options)
