"""What one sees of each bug: in a loss curve, and by the check.

A small nano is trained with the bug and, on one device, without it, on the text of the license.

    python -m tests.silent_bugs.curves tests/silent_bugs/seen.json NAME...

adds a row for each bug that is named, or for all, to a file: the relative difference of the mean loss of the last
steps, the line of the check, and whether the check of a bfloat16 step finds it without its float32 step. Rows of its
own, such as "another seed", say how far sound runs stand apart. With `--lines` the losses stay as they are.
"""

import dataclasses
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from strategies import PRESETS
from strategies.checking import Mismatch, check_step
from strategies.step import Step
from tests import conftest  # noqa: F401 (eight virtual devices, and fast compilation)
from tests.processes import ROOT
from tests.silent_bugs import BUGS
from tests.silent_bugs.museum import Bug

NANO = dataclasses.replace(PRESETS["nano"], layers=2, embed=32, heads=4, sequence=32)
STEPS, LAST = 50, 10
RATE = {"learning_rate": 2e-3}
"""With it the loss falls from 5.5 to 3 within these steps."""
TEXT = np.frombuffer((ROOT / "LICENSE").read_bytes(), np.uint8).astype(np.int32)


def batches(step: Step) -> Iterator[Any]:
    """Sequences from random places of the text, the same for all runs."""
    count, length = step.batch.shape
    for seed in range(STEPS):
        starts = np.random.default_rng(seed).integers(0, len(TEXT) - length, count)
        yield TEXT[starts[:, None] + np.arange(length)]


def last_loss(step: Step, seed: int = 0) -> float:
    """Train; the mean loss of the last steps."""
    state, losses = step.init(jax.random.key(seed)), []
    for tokens in batches(step):
        state, metrics = step(state, tokens)
        losses.append(float(metrics["loss"]))
    return float(np.mean(losses[-LAST:]))


def differences(names: list[str]) -> Iterator[tuple[str, float]]:
    """The relative difference that each bug makes, and those of sound runs."""
    first = BUGS[0]

    @cache
    def sound(place: int) -> float:
        return last_loss(BUGS[place].reference(base=NANO, **RATE))

    def expected(bug: Bug) -> float:
        return sound(next(place for place, other in enumerate(BUGS) if other.of_one_device == bug.of_one_device))

    for bug in BUGS:
        if not names or bug.name in names:
            yield bug.name, last_loss(bug.step(base=NANO, **RATE)) / expected(bug) - 1
    others = {
        "no bug": lambda: last_loss(first.step(sound=True, base=NANO, **RATE)),
        "no bug, bfloat16": lambda: last_loss(first.step(sound=True, base=NANO, dtype="bfloat16", **RATE)),
        "no bug, another seed": lambda: last_loss(first.reference(base=NANO, **RATE), seed=1),
    }
    for name, run in others.items():
        if not names or name in names:
            yield name, run() / expected(first) - 1


def line(bug: Bug, **train: Any) -> str:
    """What the check says."""
    try:
        return f"nothing: {check_step(bug.step(**train))}"
    except Mismatch as mismatch:
        return str(mismatch)


def main(out: str, *names: str, lines_only: bool = False) -> None:
    """Measure, and save after each row."""
    path, bugs = Path(out), {bug.name: bug for bug in BUGS}
    rows = json.loads(path.read_text()) if path.exists() else {}
    kept = ((name, rows[name]["loss"]) for name in names or bugs)
    for name, difference in kept if lines_only else differences([*names]):
        rows[name] = {"loss": float(f"{difference:.3g}")}
        if bug := bugs.get(name):
            alone = line(bug, dtype="bfloat16")
            rows[name] |= {"line": line(bug), "found in bfloat16": not alone.startswith("nothing")}
        path.write_text(json.dumps(rows, indent=1) + "\n")
        print(f"{name}: {difference:+.2e}", flush=True)


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--lines"]
    main(*arguments, lines_only="--lines" in sys.argv)
