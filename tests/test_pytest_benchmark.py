"""pytest-benchmark's storage and comparison work on runs, as the guide says."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import LIMIT_SECONDS, ROOT, environment

PAGE = (ROOT / "docs" / "guides" / "gates.md").read_text().partition("\n## pytest-benchmark\n")[2]
MEASURED = ROOT / "docs" / "examples" / "nano-cpu" / "run.json"
SMALL = (
    *("-p", "tests.benchmarks.short_blocks", "--rounds=6", "--devices=1"),
    "--model=layers=1,embed=16,heads=2,sequence=16",
)
WITHOUT_DEV = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("hypothesis", "xdist", "playwright"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from pytest_benchmark.cli import main
main()
"""
"""The command `pytest-benchmark` where only what README's first line installs is there."""


def run(words: list[str], storage: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the page: measure a small model, store in a folder, and without the packages of `[dev]`."""
    if words[0] == "pytest":
        command = ["-m", *words, *SMALL, f"--benchmark-storage={storage}"]
    else:
        command = ["-c", WITHOUT_DEV, "--storage", str(storage), *words[1:]]
    options = {"cwd": ROOT, "env": environment(), "capture_output": True, "text": True, "timeout": LIMIT_SECONDS}
    return subprocess.run([sys.executable, *command], **options)


def test_what_the_guide_says_works(tmp_path: Path) -> None:
    """Each command of the section ends with 0, in their order; the comparisons show both runs."""
    shutil.copy(MEASURED, tmp_path / "first.json")
    commands = re.findall(r"^    (pytest.*)$", PAGE, re.MULTILINE)
    said = []
    for command in commands:
        done = run(shlex.split(command.replace("runs/", f"{tmp_path}/")), tmp_path / "storage")
        assert done.returncode == 0, done.stdout + done.stderr
        said.append(done.stdout)
    saved, compared, listed, *tables = said
    assert "(NOW)" not in saved
    assert {"(NOW)", "(0001_"} <= {*re.findall(r"\(NOW\)|\(0001_", compared)}
    assert re.fullmatch(r".*/0001_\w+\.json\n", listed.replace("-", "_"))
    assert all("test_step[single-data=1-b16]" in table for table in tables)
    assert len(tables) == 2


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--benchmark-compare", "Can't compare|it has no run; save one with --benchmark-autosave"),
        ("--benchmark-compare=", "no run is named so; `pytest-benchmark list`"),
        ("--benchmark-compare=0009", "no run is named so; `pytest-benchmark list` lists those in "),
        ("--benchmark-compare=broken.json", "Failed to load .*broken.json: "),
        ("--benchmark-compare=a/b/c", "'a/b/c' isn't an existing file or acceptable glob"),
        ("--benchmark-compare-fail=min:5%", "--benchmark-compare-fail needs a run to compare with; add --benchmark-c"),
        ("--benchmark-min-rounds=9", "--benchmark-min-rounds=9 has no effect: .*--rounds sets how often"),
        ("--benchmark-disable", "--benchmark-disable has no effect"),
    ],
)
def test_what_cannot_be_compared_is_refused(options: str, problem: str, tmp_path: Path) -> None:
    """Before anything is measured, in one line, without INTERNALERROR."""
    (tmp_path / "broken.json").write_text("{")
    words = options.replace("broken", f"{tmp_path}/broken").split()
    done = run(["pytest", "benchmarks", "--strategy=single", *words], tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert re.fullmatch(rf"ERROR: .*({problem}).*\n", done.stderr.strip("\n") + "\n")
