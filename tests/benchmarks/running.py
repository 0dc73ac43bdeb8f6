"""Start `pytest benchmarks` in a process of its own, and read the report that it writes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.run.publish import UNTIMED
from tests.processes import LIMIT_SECONDS, ROOT, environment

TINY = ("--model=layers=2,embed=16,heads=2,sequence=16", "--batch-size=4", "--rounds=6")
Process = subprocess.CompletedProcess[str]
Rows = dict[str, dict[str, Any]]
FAST = ("-p", "no:hypothesispytest", "-p", "no:jaxtyping", "--assert=plain")
"""Disable plugins that are slow to load and not needed here."""
PLUGINS = ("-p", "tests.benchmarks.with_faulty_strategies", *FAST)
COMMAND = (sys.executable, "-m", "pytest", *PLUGINS, "benchmarks", *TINY)
"""Run the benchmarks on a tiny model, with the planted strategies registered."""


def start(*options: str, single: str = "single", alone: bool = False, **variables: Any) -> subprocess.Popen[str]:
    """Start the benchmarks in a process of their own, with options and environment variables.

    Args:
        options: of pytest.
        single: the planted strategy that takes the place of one device; "" leaves the real ones in theirs.
        alone: out of reach of what is pressed, in a group of processes that can be killed at once.
        variables: of the environment.
    """
    env, command = environment(SINGLE=single, **variables), [*COMMAND, *options]
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=-1, stderr=-1, text=True, start_new_session=alone)


def finish(process: subprocess.Popen[str]) -> Process:
    """Wait until a process ends; terminate it if it takes too long."""
    with process:
        try:
            output, errors = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise
    return Process(process.args, process.returncode, output, errors)


def run(*options: str, **variables: Any) -> Process:
    """Run the benchmarks from start to finish."""
    return finish(start(*options, **variables))


def rows(report: Path) -> Rows:
    """The rows of a report by case id, refusing a report that is not strict JSON."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    content = json.loads(report.read_text(), parse_constant=refuse)
    # Bencher's pytest adapter reads these of each row, and refuses a file in which one is not a number.
    assert {"machine_info", "commit_info"} <= content.keys()
    for row in content["benchmarks"]:
        assert {type(row["stats"][name]) for name in ("mean", "median", "stddev", "iqr")} <= {float, int}, row[
            "fullname"
        ]
    benchmarks = [*content["benchmarks"], *content[UNTIMED]]
    return {row["name"].partition("[")[2].removesuffix("]"): row for row in benchmarks}


def statuses(report: Path) -> dict[str, str]:
    """The status of each case in a report."""
    return {name: row["extra_info"]["status"] for name, row in rows(report).items()}


def bare(*arguments: str, folder: Path = ROOT, **variables: Any) -> subprocess.Popen[str]:
    """Start the benchmarks, by whatever arguments name them, without planted strategies."""
    command = [sys.executable, "-m", "pytest", *FAST, *(arguments or ["benchmarks"])]
    return subprocess.Popen(command, cwd=folder, env=environment(**variables), stdout=-1, stderr=-1, text=True)
