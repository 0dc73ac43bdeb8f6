"""What runs from `build` to a lowered step: the map in `strategies/step.py` names it, and it is in few files."""

import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

import strategies
from strategies import STRATEGIES, GPTConfig, TrainConfig, step

ROOM = Path(strategies.__file__).parent
CONFIG = GPTConfig(layers=2, embed=32, heads=4, vocab=311)
"""Of a size that no other test has: what plans find of a model is cached, and would not run again."""


@cache
def called(name: str, mesh: str) -> dict[str, set[str]]:
    """The functions that building and lowering a step calls, by file of the room."""
    ran = set()

    def note(frame, event, _):
        if event == "call":
            ran.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        STRATEGIES[name].build(CONFIG, mesh, TrainConfig(8, microbatches=2 if name == "pipeline" else 1)).lower()
    finally:
        sys.setprofile(before)
    found: dict[str, set[str]] = defaultdict(set)
    for code in ran:
        if code.co_filename.startswith(f"{ROOM}/"):
            found[code.co_filename.removeprefix(f"{ROOM}/")].add(code.co_qualname)
    return found


def test_the_map_names_what_runs():
    """Each function in a row of the map runs, and is in the file of its row; an axis has its own."""
    rows = re.findall(r"^    (\w[\w.]*) +((?:\w+/)?\w+\.py)", step.__doc__ or "", re.MULTILINE)
    assert len(rows) == 9
    run = called("fsdp", "fsdp=2")
    for function, path in rows:
        own = function.split(".")[-1]
        assert any(own in each.split(".") for each in run[path]), (function, path)


@pytest.mark.parametrize(
    ("name", "mesh", "most"), [("single", "data=1", 31), ("fsdp", "fsdp=2", 33), ("pipeline", "pipeline=2", 38)]
)
def test_few_files_lie_between_build_and_a_lowered_step(name, mesh, most):
    """A reader follows a step through this many files of the room at most."""
    assert len(called(name, mesh)) <= most, sorted(called(name, mesh))
