"""The proof that the gates work: plants changes in copies of this checkout, and counts what is said of them.

    python -m results.gate --trials 20 --out results/runs/gate.json

It fails if its counts refute, with 95% confidence, what is claimed of a plant.
"""

import argparse
import json
import math
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

from results import paired
from results.arguments import count, launch_count, positive
from results.report import aligned, listed
from results.verdict import Word

ROOMS = ("strategies", "benchmarks")
# Steps that are soon compiled, some on one device and some on two, each planted with something else.
SELECTION = ("--layers=1", "--embed=64", "--heads=4", "--sequence=64", "--strategy=single,data,fsdp", "--devices=1,2")
CASES = tuple(f"{spread}-b{batch}" for batch in (8, 16) for spread in ("single-data=1", "data-data=2", "fsdp-fsdp=2"))
SLOWER = """

from benchmarks.cases import Case

SLOWDOWNS, slowdown = {slowdowns!r}, 0.0


def _build(self, build=Case.build):
    global slowdown
    slowdown = SLOWDOWNS.get(str(self), 0.0)
    return build(self)


def _block(self, steps, block=Training.block):
    start = time.perf_counter()
    end = start + (1 + slowdown) * block(self, steps)
    while time.perf_counter() < end:
        pass
    return time.perf_counter() - start


Case.build, Training.block = _build, _block
"""


@dataclass(frozen=True)
class Plant:
    """A change that is planted, and what is claimed of it.

    Attributes:
        name: what is planted.
        gate: which gate is to judge it.
        counted: the words that are counted: alarms, where there is nothing to find.
        at_least, at_most: the part of comparisons that is claimed to end in one of them.
        slowdown: what is added to the time of a block, as a part of it.
    """

    name: str
    gate: str
    counted: tuple[Word, ...]
    at_least: float = 0.0
    at_most: float = 1.0
    slowdown: float = 0.0


PLANTS = (
    Plant("nothing", "paired", ("slower", "faster"), at_most=0.01),
    Plant("5% slower", "paired", ("slower",), slowdown=0.05),  # at the minimum effect: half of the alarms at best
    Plant("10% slower", "paired", ("slower",), at_least=0.95, slowdown=0.10),
)


@dataclass(frozen=True)
class Tally:
    """What became of the comparisons with one plant; `low` and `high` are the 95% bounds of `rate`.

    The bounds are exact (Clopper & Pearson 1934, "The use of confidence or fiducial limits").
    """

    plant: Plant
    words: dict[str, int]
    rate: float
    low: float
    high: float

    @classmethod
    def of(cls, plant: Plant, words: Iterable[str]) -> "Tally":
        """Count words, of one comparison at least."""
        counts = Counter(words)
        test = binomtest(sum(counts[word] for word in plant.counted), counts.total())
        bounds = test.proportion_ci(0.95, method="exact")
        return cls(plant, dict(counts), float(test.statistic), float(bounds.low), float(bounds.high))

    @property
    def refutes(self) -> bool:
        """Whether it shows that the claim is wrong."""
        return self.high < self.plant.at_least or self.low > self.plant.at_most

    def cells(self) -> tuple[str, ...]:
        """Its line in the table."""
        claims = [f"at least {self.plant.at_least:.0%}"] * (self.plant.at_least > 0)
        claims += [f"at most {self.plant.at_most:.0%}"] * (self.plant.at_most < 1)
        return (
            self.plant.gate,
            self.plant.name,
            listed(Counter(self.words)),
            f"{self.rate:.1%} ({self.low:.1%} to {self.high:.1%}) {' or '.join(self.plant.counted)}",
            " ".join([*claims, "REFUTED" * self.refutes]),
        )


def plant(checkout: Path, folder: Path, slowdowns: Mapping[str, float]) -> Path:
    """Copy what a worker needs of a checkout, with some of its cases slower; return the folder."""
    for room in ROOMS:
        shutil.copytree(checkout / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "benchmarks" / "measure.py").open("a", encoding="utf-8") as measure:
        measure.write(SLOWER.format(slowdowns=dict(slowdowns)))
    return folder


def trial(number: int, checkout: Path, launches: int, blocks: int) -> list[dict[str, Any]]:
    """Make one paired comparison, in which the cases take turns to be planted with this or that."""
    planted = {case: PLANTS[(number + place) % len(PLANTS)] for place, case in enumerate(CASES)}
    parser = argparse.ArgumentParser()
    paired.add_arguments(parser)
    with tempfile.TemporaryDirectory(prefix="meshmark-gate-") as folder:
        base = plant(checkout, Path(folder, "base"), {})
        head = plant(checkout, Path(folder, "head"), {case: change.slowdown for case, change in planted.items()})
        numbers = f"--launches={launches}", f"--blocks={blocks}", f"--seed={number}"
        report = paired.run(parser.parse_args([f"--base={base}", f"--head={head}", *numbers, *SELECTION]))
    if report.refusal:
        sys.exit(f"{report.refusal}: {report.reason}")
    return [
        {"trial": number, "plant": planted[finding.case.partition("[")[2].partition("]")[0]].name, **asdict(finding)}
        for finding in report.findings
    ]


def tallies_of(findings: Sequence[Mapping[str, Any]]) -> list[Tally]:
    """Count what was said of each plant."""
    words = {change: [finding["word"] for finding in findings if finding["plant"] == change.name] for change in PLANTS}
    return [Tally.of(change, said) for change, said in words.items() if said]


def table(tallies: Sequence[Tally]) -> str:
    """What was planted, what was said, how often it was what is counted, and what is claimed of that."""
    header = "gate", "planted", "said", "rate (95% bounds)", "claimed"
    return "\n".join(aligned([header, *(tally.cells() for tally in tallies)]))


def keep(path: Path, findings: Sequence[Mapping[str, Any]], **settings: int) -> None:
    """Write counts and findings as JSON."""
    tallies = [asdict(tally) for tally in tallies_of(findings)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**settings, "tallies": tallies, "findings": findings}, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if a claim is refuted."""
    parser = argparse.ArgumentParser(prog="python -m results.gate", description="Count what the gates find.")
    add = parser.add_argument
    add("--trials", type=count, default=10, metavar="N", help=f"of {len(CASES)} cases; default: %(default)s")
    add("--time-budget", type=positive, default=math.inf, metavar="S", help="seconds; makes fewer trials")
    add("--launches", type=launch_count, default=7, metavar="N", help="of a trial; default: %(default)s")
    add("--blocks", type=count, default=60, metavar="N", help="of a launch; default: %(default)s")
    add("--checkout", type=Path, default=Path(), metavar="DIR", help="to plant in copies of; default: this directory")
    add("--out", type=Path, metavar="FILE", help="counts and findings as JSON, written after each trial")
    options = parser.parse_args(arguments)
    findings: list[dict[str, Any]] = []
    started = time.monotonic()
    try:
        for number in range(options.trials):
            spent_seconds = time.monotonic() - started
            if number and spent_seconds * (number + 1) / number > options.time_budget:
                break
            print(f"trial {number + 1} of {options.trials}", file=sys.stderr)
            findings += trial(number, options.checkout, options.launches, options.blocks)
            if options.out:
                keep(options.out, findings, launches=options.launches, blocks=options.blocks)
    finally:  # after Ctrl-C, too
        print(table(tallies_of(findings)))
    return int(any(tally.refutes for tally in tallies_of(findings)))


if __name__ == "__main__":
    sys.exit(main())
