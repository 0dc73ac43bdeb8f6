"""A strategy of a user's own, in one file, with a mesh axis that meshmark does not know."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.processes import LIMIT_SECONDS, ROOT, environment

PAGE = (ROOT / "docs" / "adding-a-strategy.md").read_text()
SOURCE = textwrap.dedent(PAGE[PAGE.index("    # toy.py\n") : PAGE.index("\nMeasure it beside the others")])
"""As the page shows it."""
TINY = ("--layers=2", "--embed=16", "--heads=2", "--sequence=16", "--batch-size=4,8", "--rounds=6")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the strategy is, and what its benchmarks wrote."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "toy.py").write_text(SOURCE)
    measured = "--strategy=toy", "--mesh=toy=2", "--mesh=toy=4", f"--benchmark-json={folder / 'run.json'}"
    ended = python(folder, "pytest", "-p", "toy", "benchmarks", *TINY, *measured)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


def python(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a module that finds the strategy, too."""
    env = environment(PYTHONPATH=f"{folder}:{ROOT}")
    options = {"cwd": ROOT, "env": env, "capture_output": True, "text": True, "timeout": LIMIT_SECONDS}
    return subprocess.run([sys.executable, "-m", *command], **options)


def rows(folder: Path) -> dict[str, dict]:
    """Those of the run, by the names of their cases."""
    benchmarks = json.loads((folder / "run.json").read_text())["benchmarks"]
    return {row["name"]: row["extra_info"] for row in benchmarks}


def test_it_gets_cases_that_equal_one_device(folder: Path) -> None:
    """On each mesh and with each batch: a row that is ok was found equal to one device."""
    assert {name: row["status"] for name, row in rows(folder).items()} == {
        f"test_step[toy-toy={devices}-b{batch}]": "ok" for devices in (2, 4) for batch in (4, 8)
    }


def test_what_it_sends_and_holds_is_known(folder: Path) -> None:
    """By the formulas of its layout, to the byte; all of it goes over its own axis."""
    for row in rows(folder).values():
        assert row["predicted.sent_bytes"] == row["compiled.sent_bytes"] > 0
        assert row["compiled.sent_bytes.all_reduce.toy"] == row["compiled.sent_bytes"]
        assert row["predicted.argument_bytes"] == row["memory.argument_bytes"] > 0


def test_its_curves_are_drawn(folder: Path) -> None:
    """By the command that draws those of all others."""
    drawn = python(folder, "results.plot", str(folder / "run.json"), "--out", str(folder / "figures"))
    assert drawn.returncode == 0, drawn.stderr
    assert list((folder / "figures").glob("*.png"))


def test_its_baseline_is_held(folder: Path) -> None:
    """By the exact gate, what goes over its axis included: a byte more there is worse."""
    written = python(folder, "results.baseline", str(folder / "run.json"), "--out", str(folder))
    assert written.returncode == 0, written.stderr
    base, worse = Path(written.stdout.strip()), folder / "worse.json"
    judged = python(folder, "results.regress", "exact", str(base), str(folder / "run.json"))
    assert judged.returncode == 0, judged.stdout
    run = json.loads((folder / "run.json").read_text())
    run["benchmarks"][0]["extra_info"]["compiled.sent_bytes.all_reduce.toy"] += 1
    worse.write_text(json.dumps(run))
    judged = python(folder, "results.regress", "exact", str(base), str(worse))
    assert judged.returncode == 1
    assert "compiled.sent_bytes.all_reduce.toy" in judged.stdout


def test_a_name_that_is_taken_is_refused() -> None:
    """With the name, before anything changes."""
    code = "import strategies as s; s.register(s.STRATEGIES['fsdp'])"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ended.stderr.splitlines()[-1] == "ValueError: there is a strategy 'fsdp'; give yours another name"
