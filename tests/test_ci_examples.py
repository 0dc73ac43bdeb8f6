"""The workflows of docs/examples/ci: their steps run on this repository, as a runner would run them."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.processes import ROOT, git
from tests.results.gates.source_edits import EXACT, edited
from tests.runner import MESHMARK, install, run_step

WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "docs/examples/ci").glob("*.yml")}
PULL_REQUEST, PUSH = "pull_request", "push"
STAND_INS = {
    "meshmark": MESHMARK,
    "pytest": f'exec {sys.executable} -m pytest "$@"',
    "python": f'exec {sys.executable} "$@"',
    "bencher": 'test "$1" = run && cp "${@: -1}" "$RUNNER_TEMP/sent"',
}
"""What is installed on a runner. Bencher's command keeps the file that it would send."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files of this checkout as origin/main, and as the branch of a pull request."""
    folder = tmp_path / "checkout"
    for name in filter(None, git(ROOT, "ls-files", "-z").split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    for words in (
        ["init", "-q", "-b", "main"],
        ["add", "-A"],
        ["commit", "-qm", "The base"],
        ["update-ref", "refs/remotes/origin/main", "main"],
        ["checkout", "-q", "-b", "request"],
    ):
        git(folder, *words)
    install(tmp_path, STAND_INS)
    return folder


def steps(name: str, event: str) -> Iterator[dict[str, Any]]:
    """The steps of a workflow that an event starts and that run a command, but for the installation."""
    assert event in WORKFLOWS[name][True]  # YAML 1.1 reads the key `on` as true
    conditions = "always()", f"github.event_name == '{event}'"
    for step in WORKFLOWS[name]["jobs"]["meshmark"]["steps"]:
        command = step.get("run", "pip install")
        if not command.startswith("pip install") and step.get("if", "always()").partition(" && ")[0] in conditions:
            yield step


def run(checkout: Path, name: str, event: str, *, verdict: str = "nothing fails") -> str:
    """Run these steps in order, and return what they print; the first that fails without this verdict ends the test."""
    said = ""
    for step in steps(name, event):
        done = run_step(step["run"], checkout.parent, checkout, GITHUB_BASE_REF="main", PYTHONPATH="")
        said += done.stdout + done.stderr
        assert done.returncode == 0 or verdict in said, f"{step['run']}\n{said[-6000:]}"
    return said


@pytest.mark.parametrize("worse", [True, pytest.param(False, marks=pytest.mark.processes)])
def test_the_exact_gate_compares_a_request_with_its_base(checkout: Path, *, worse: bool) -> None:
    """The summary of the job has the report: green, or red if a gather has left its loop."""
    edit = next(edit for edit in EXACT if edit.name == "a gather out of its loop")
    if worse:
        (checkout / edit.file).write_text(edited(checkout, edit))
    run(checkout, "exact-gate", PULL_REQUEST, verdict="red: 1 worse")
    said = (checkout.parent / "summary").read_text()
    assert re.search(r"red: 1 worse" if worse else r"green: 1 same", said)
    assert ("collectives.all_gather.outside_loops" in said) == worse


@pytest.mark.processes
@pytest.mark.parametrize("name", ["github-action-benchmark", "bencher"])
def test_trackers_get_the_counters_of_each_case(checkout: Path, name: str) -> None:
    """The file that the action reads, or that Bencher's command sends, has what is sent by the case."""
    run(checkout, name, PUSH)
    (step,) = [step for step in WORKFLOWS[name]["jobs"]["meshmark"]["steps"] if "benchmark-action" in str(step)] or [{}]
    sent = json.loads((checkout / step["with"]["output-file-path"] if step else checkout.parent / "sent").read_text())
    assert "test_step[fsdp-fsdp=2-b16]" in str(sent)
    assert "collectives" in str(sent)


@pytest.mark.processes
def test_the_paired_gate_reports(checkout: Path) -> None:
    """It ends with green, or inconclusive on a busy machine, and its report is in the summary."""
    run(checkout, "paired-gate", PULL_REQUEST)
    assert re.search(r"(green|inconclusive): 1 \w+", (checkout.parent / "summary").read_text())


@pytest.mark.processes
def test_pytest_benchmark_compares_with_the_last_run_of_main(checkout: Path) -> None:
    """A run of main is saved, with which the pull request's is compared. Beside other processes it may be slower."""
    run(checkout, "pytest-benchmark", PUSH)
    assert len([*(checkout / ".benchmarks").rglob("0001_*.json")]) == 1
    assert "(0001_" in run(checkout, "pytest-benchmark", PULL_REQUEST, verdict="Performance has regressed")


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_as_in_our_own_ci(name: str) -> None:
    """Those that our workflow uses have its commits."""
    ours = re.findall(r"uses: (\S+)@(\S+)", (ROOT / ".github/workflows/ci.yml").read_text())
    used = [step["uses"].split("@") for step in WORKFLOWS[name]["jobs"]["meshmark"]["steps"] if "uses" in step]
    assert used
    assert all(commit == dict(ours)[action] for action, commit in used if action in dict(ours))
