"""The page of the museum, docs/reference/silent-bugs.md.

    python -m tests.silent_bugs.page > docs/reference/silent-bugs.md

What was seen of each bug is in seen.json: the difference of its loss (curves.py), and the line of the check.
"""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

from tests.silent_bugs import KINDS
from tests.silent_bugs.museum import Bug

SEEN = json.loads((Path(__file__).parent / "seen.json").read_text())
INTRODUCTION = """# Silent bugs

{count} bugs of parallel training that raise no error. {public} were reported in public; the others, whose link is an
experiment, were found in meshmark or are faults that its schedules invite. Each is planted in a strategy of meshmark
(`tests/silent_bugs`), and the [check](../guides/check.md) finds all of them: in float32, and for bfloat16 by the
float32 step that it compares as well; {half} are found by the bfloat16 step alone. The plants are small copies of the
bugs: the same numbers are wrong, on a mesh of 2 to 4 devices.

Loss is the relative difference of the mean loss of steps 41 to 50 between the run with the bug and a run on one device
(nano with 2 layers of 32 features, 16 sequences of 32 tokens, on text; `python -m tests.silent_bugs.curves`).
"""
SOUND = {"two devices": "no bug", "bfloat16": "no bug, bfloat16", "another seed": "no bug, another seed"}
"""Rows of seen.json that are of runs without a bug, by what they have other than one device in float32."""
EXPERIMENTS = "../experiments/"
BOUNDS = 1e-4, 1e-3, 1e-2


def summary() -> str:
    """How many bugs change the loss by how much, and what runs without one do; for the guide."""
    losses = [abs(SEEN[bug.name]["loss"]) for kind in KINDS for bug in kind.BUGS if "loss" in SEEN[bug.name]]
    ends = [0.0, *BOUNDS, float("inf")]
    names = ["less than 0.01%", "0.01% to 0.1%", "0.1% to 1%", "more than 1%"]
    counts = [sum(low <= loss < high for loss in losses) for low, high in itertools.pairwise(ends)]
    rows = [f"| {name} | {count} |" for name, count in zip(names, counts, strict=True)]
    sound = {name: abs(SEEN[key]["loss"]) for name, key in SOUND.items()}
    others = ", ".join(f"{percent(loss).lstrip('+')} with {name}" for name, loss in sound.items())
    hidden = sum(loss < sound["another seed"] for loss in losses)
    end = f"Without a bug the loss differs by {others}.\n{hidden} of the {len(losses)} bugs change it less than that."
    return "\n".join(["| loss differs by | bugs |\n|---|---|", *rows, "", end]) + "\n"


def percent(difference: float) -> str:
    """A relative difference, as loss curves show it.

    >>> percent(0.0123), percent(-0.00004), percent(2e-7)
    ('+1.2%', '-0.004%', 'less than 0.0001%')
    """
    if abs(difference) < 1e-6:
        return "less than 0.0001%"
    return f"{100 * difference:+.2g}%"


def short(link: str) -> str:
    """The name of a thread, or of an experiment.

    >>> short("https://github.com/openxla/xla/issues/49143"), short("../experiments/2026-11-28-reduced-table.md")
    ('openxla/xla #49143', 'experiment')
    """
    if link.startswith(EXPERIMENTS):
        return "experiment"
    owner, repository, _, number = link.rsplit("/", 3)
    return f"{owner.rsplit('/', 1)[-1]}/{repository} #{number}"


def row(bug: Bug) -> str:
    """A row of a table."""
    seen = SEEN[bug.name]
    line = re.sub(r"([|<])", r"\\\1", seen["line"])
    loss = percent(seen["loss"]) if "loss" in seen else "not measured"
    where = f"`{bug.strategy}`, {bug.mesh}"
    return f"| [{short(bug.link)}]({bug.link}) | {bug.was} | {where}: {bug.wrong} | {loss} | {line} |"


def parts() -> Iterator[str]:
    """The introduction, and a table for each kind of bug."""
    bugs = [bug for kind in KINDS for bug in kind.BUGS]
    public = sum(not bug.link.startswith(EXPERIMENTS) for bug in bugs)
    half = sum(SEEN[bug.name]["found in bfloat16"] for bug in bugs)
    yield INTRODUCTION.format(count=len(bugs), public=public, half=half)
    for kind in KINDS:
        title, _, rest = (kind.__doc__ or "").strip().partition(": ")
        yield f"## {title}\n\n{rest[:1].upper()}{rest[1:]}\n"
        head = "| report | what was wrong | planted here | loss | the check says |\n|---|---|---|---|---|"
        yield "\n".join([head, *map(row, kind.BUGS)]) + "\n"


def page() -> str:
    """The page."""
    return "\n".join(parts())


if __name__ == "__main__":
    print(page(), end="")
