"""A user's own strategies, each in one file, with mesh axes that meshmark does not know.

results/test_own_axis.py has the commands that read a run of one.
"""

import itertools
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.processes import LIMIT_SECONDS, ROOT, environment
from tests.strategies.sampling import nightly

PAGES = "adding-a-strategy.md", "summing-gradients.md"
PAGE = "\n".join((ROOT / "docs" / "contribute" / name).read_text() for name in PAGES)


def shown(name: str) -> str:
    """A file as the documentation shows it: the indented block that begins with its name."""
    block = PAGE[PAGE.index(f"    # {name}\n") :].splitlines()
    return textwrap.dedent("\n".join(itertools.takewhile(lambda line: not line or line.startswith("    "), block)))


GROUPED = """
from jax import lax

from strategies import Axis, Strategy, register
from strategies.core.gradients import sum_remaining
from strategies.core.traffic import traffic
from strategies.step import Implementation
from strategies.zero import AXIS1


def largest_loss(plan):
    def reduce(loss, grads):
        largest = lax.pmax(loss["loss"], "group")
        loss, grads = sum_remaining(loss, grads, plan)
        return {**loss, "loss": loss["loss"] + 0 * lax.pmax(largest, "data")}, grads

    return Implementation(reduce=reduce)


def sent(plan):
    yield from traffic(plan, "largest loss", "all_reduce", ("group",), 1)
    yield from traffic(plan, "largest loss", "all_reduce", ("data",), 1)


GROUP = Axis("group", batch=True, implement=largest_loss, traffic=(sent,))
GROUPED = register(Strategy("grouped", (AXIS1, GROUP)))
"""
"""ZeRO-1 inside groups of devices, which sum their parts of the gradients.

It also sends a number that does not follow from its placement, and states so by a term of its own.
"""
TINY = ("--model=layers=2,embed=16,heads=2,sequence=16", "--batch-size=4", "--rounds=6")


MESHES = {
    "toy": ("toy=4",),
    "shard": ("shard=4",),
    "grouped": ("data=2,group=2",),
    "hierarchical": ("host=2,chip=2",),
}


OWN = {
    "toy": "all_reduce.toy",
    "shard": "reduce_scatter.shard",
    "grouped": "all_reduce.group",
    "hierarchical": "all_gather.chip",
}
"""A column of each, over an axis of its own."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the strategies and the report of their benchmarks."""
    folder = tmp_path_factory.mktemp("own")
    for name, source in ((name, GROUPED if name == "grouped" else shown(f"{name}.py")) for name in MESHES):
        (folder / f"{name}.py").write_text(source)
    meshes = [f"--mesh={mesh}" for each in MESHES.values() for mesh in each]
    measured = f"--strategy={','.join(MESHES)}", *meshes, f"--benchmark-json={folder / 'run.json'}"
    ended = python(folder, "pytest", "-p", "tests.benchmarks.short_blocks", "benchmarks", *TINY, *measured)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


def python(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a module that can import the strategies."""
    env = environment(PYTHONPATH=f"{folder}:{ROOT}", MESHMARK_STRATEGIES=",".join(MESHES))
    options = {"cwd": ROOT, "env": env, "capture_output": True, "text": True, "timeout": LIMIT_SECONDS}
    return subprocess.run([sys.executable, "-m", *command], **options)


def rows(folder: Path) -> dict[str, dict]:
    """The rows of the run by case name."""
    benchmarks = json.loads((folder / "run.json").read_text())["benchmarks"]
    return {row["name"]: row["extra_info"] for row in benchmarks}


def test_they_get_cases_that_equal_one_device(folder: Path) -> None:
    """Each of them is measured on each mesh, and equals `single`."""
    assert {name: (row["status"], row["matches_single"]) for name, row in rows(folder).items()} == {
        f"test_step[{name}-{mesh}-b4]": ("ok", True) for name, meshes in MESHES.items() for mesh in meshes
    }


def test_what_they_send_and_hold_is_known(folder: Path) -> None:
    """The formulas of their placements give the bytes they send, by kind and axis, and hold, exactly."""
    for row in rows(folder).values():
        assert row["sent_as_predicted"]
        assert row["predicted.sent_bytes"] == row["compiled.sent_bytes"] > 0
        assert row["predicted.argument_bytes"] == row["memory.argument_bytes"] > 0
        assert row[f"compiled.sent_bytes.{OWN[row['strategy']]}"] > 0


def test_they_are_compiled_for_devices_that_are_not_there(folder: Path) -> None:
    """`meshmark compile` compiles one for absent devices and lists what it sends over its own axis."""
    chosen = "--topology=cpu:16", "--strategy=shard", "--mesh=shard=16", "--batch-size=16"
    page = python(folder, "benchmarks", "compile", *chosen, *TINY[:1])
    assert page.returncode == 0, page.stdout + page.stderr
    assert re.search(r"reduce_scatter .* over shard", page.stdout)


BROKEN = {
    "raises": ("raise KeyError('boom')", "KeyError: 'boom'"),
    "syntax": ("def f(:", "SyntaxError: invalid syntax (syntax.py, line 1)"),
    "exits": ("import sys; sys.exit(0)", "SystemExit: 0"),
    "nowhere": (None, "ModuleNotFoundError: No module named 'nowhere'"),
}


@pytest.mark.parametrize(
    ("name", "command", "status"),
    [
        ("raises", "benchmarks train", 2),
        ("syntax", "benchmarks compile --topology cpu:2", 2),
        ("nowhere", "pytest benchmarks --collect-only", 4),  # pytest's status of wrong usage
        *nightly(
            ("exits", "benchmarks show", 2),
            ("exits", "benchmarks search --topology=h100:1x8 --batch-size=8", 2),
            ("exits", "pytest benchmarks --compile-only", 4),
        ),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(name: str, command: str, status: int, tmp_path: Path) -> None:
    """A module in MESHMARK_STRATEGIES that raises, or ends the program, ends a command in one line that names it."""
    source, cause = BROKEN[name]
    if source:
        (tmp_path / f"{name}.py").write_text(source)
    env = environment(MESHMARK_STRATEGIES=name, PYTHONPATH=f"{tmp_path}:{ROOT}")
    arguments = [sys.executable, "-m", *command.split()]
    ended = subprocess.run(arguments, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert ended.returncode == status, ended.stderr
    assert f"MESHMARK_STRATEGIES names {name!r}, which cannot be imported ({cause}); " in ended.stderr
    assert "Traceback" not in ended.stderr
