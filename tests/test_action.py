"""The GitHub action `.github/actions/meshmark`: its steps run as a runner would run them, and it can fail."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.processes import ROOT
from tests.runner import MESHMARK, install, run_step

FOLDER = ROOT / ".github" / "actions" / "meshmark"
ACTION = yaml.safe_load((FOLDER / "action.yml").read_text())
SELECTION = "--compile-only --strategy data\n--devices 2 --batch-size 16"

GH = """
import json, os, pathlib, sys
folder, words = pathlib.Path(sys.argv[1]), sys.argv[2:]
with (folder / "gh").open("a") as log:
    print(*words, file=log)
conditions = {
    ".user.login == env.ME": lambda comment: comment["login"] == os.environ["ME"],
    ".body | startswith(env.FIRST)": lambda comment: comment["body"].startswith(os.environ["FIRST"]),
}
if "graphql" in words:
    print("the-bot")
elif "--jq" in words:
    held = [holds for text, holds in conditions.items() if text in words[-1]]
    comments = json.loads((folder / "comments").read_text())
    print(*(each["id"] for each in comments if all(holds(each) for holds in held)), sep="\\n")
"""
"""GitHub's command: it knows its user, and finds comments by those conditions that a filter has."""
QUOTED = {"id": 97, "login": "someone", "body": "<!-- meshmark: JAX -->\nwhy?"}
OTHER = {"id": 98, "login": "the-bot", "body": "<!-- meshmark: other -->"}
OURS = {"id": 99, "login": "the-bot", "body": "<!-- meshmark: JAX -->"}


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runner's folder, with stand-ins for the installed `meshmark` and for gh, which keeps its arguments."""
    folder = tmp_path_factory.mktemp("runner")
    (folder / "gh.py").write_text(GH)
    gh = f'exec {sys.executable} {folder}/gh.py {folder} "$@"'
    install(folder, {"gh": gh, "meshmark": MESHMARK})
    return folder


def start(runner: Path, name: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    """Run a step of the action with the given variables."""
    (step,) = [step for step in ACTION["runs"]["steps"] if step["name"] == name]
    return run_step(step["run"], runner, runner, GITHUB_REPOSITORY="some/repository", **variables)


@pytest.fixture(scope="module")
def measured(runner: Path) -> Path:
    """The runner after the step that measures."""
    done = start(runner, "Measure", SELECTION=SELECTION)
    assert done.returncode == 0, done.stdout + done.stderr
    return runner


def as_baseline(run: Path, path: Path, collectives: int = 0) -> Path:
    """Write a run with this many collectives fewer outside of loops, as a baseline that the measured run may exceed."""
    report = json.loads(run.read_text())
    for row in (*report["benchmarks"], *report["untimed"]):
        row.get("extra_info", row)["compiled.collectives.all_reduce.outside_loops"] -= collectives
    path.write_text(json.dumps(report))
    return path


@pytest.mark.parametrize(("planted", "exit_code", "earlier"), [(0, 0, []), (1, 1, [OURS, {**OURS, "id": 100}])])
def test_the_verdict_is_the_exit_code(measured, tmp_path, planted, exit_code, earlier) -> None:
    """Green is 0, red is 1. Either way the summary has the report, and the pull request one comment of that name.

    A comment of another author or of another comparison is left alone.
    """
    for name in "summary", "gh", "output":
        (measured / name).unlink(missing_ok=True)
    (measured / "comments").write_text(json.dumps([QUOTED, OTHER, *earlier]))
    baseline = as_baseline(measured / "meshmark" / "run.json", tmp_path / "base.json", planted)
    variables = {
        "BASELINE": baseline,
        "OPTIONS": "--only-head-cases",
        "COMMENT": "true",
        "PULL_REQUEST": 7,
        "NAME": "JAX",
    }
    done = start(measured, "Judge", **variables)
    assert done.returncode == exit_code, done.stdout + done.stderr
    assert ("all_reduce" in (measured / "summary").read_text()) == bool(planted)
    sent = "--method PATCH repos/some/repository/issues/comments/99 " if earlier else "--method POST "
    assert f"api {sent}" in (measured / "gh").read_text()
    assert (measured / "meshmark" / "report.md.comment").read_text().startswith("<!-- meshmark: JAX -->\n")
    assert f"run={measured}/meshmark/run.json" in (measured / "output").read_text()


def test_without_a_pull_request_nothing_is_commented(measured: Path) -> None:
    """A push has none; a baseline that is not there is an error, and not green."""
    (measured / "gh").unlink(missing_ok=True)
    done = start(measured, "Judge", BASELINE="missing.json", OPTIONS="", COMMENT="true", PULL_REQUEST="")
    assert done.returncode == 5, done.stdout + done.stderr
    assert not (measured / "gh").exists()


def test_variables_of_its_steps_are_its_inputs() -> None:
    """Each input that the action declares is used, and each one used is declared."""
    text = (FOLDER / "action.yml").read_text()
    used = {name for name in ACTION["inputs"] if f"${{{{ inputs.{name} }}}}" in text}
    assert used == {*ACTION["inputs"]}
    assert text.count("${{ inputs.") == len(used)


def test_the_guide_shows_it() -> None:
    """The workflow in docs/guides/gates.md names inputs that exist, and pins every action by its commit."""
    page = (ROOT / "docs" / "guides" / "gates.md").read_text()
    workflow = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    (ours,) = [step for step in steps if "/.github/actions/meshmark@" in step["uses"]]
    assert {*ours["with"]} <= {*ACTION["inputs"]}
    assert all(len(step["uses"].partition("@")[2]) == 40 for step in steps if step is not ours)
