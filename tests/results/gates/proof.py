"""The proof that the gates work: plants changes in copies of this checkout, and counts what is said of them.

    python -m tests.results.gates.proof --trials 20 --out results/runs/gate.json
    python -m tests.results.gates.proof --gate exact --plant "an extra all-reduce" --trials 1

It fails if its counts refute, with 95% confidence, what is claimed of a plant.
"""

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

from benchmarks.cli.ending import run as run_command
from benchmarks.cli.outputs import Unwritable, require_file, save_text
from benchmarks.cli.statuses import BROKEN_INPUT
from benchmarks.cli.tables import aligned
from benchmarks.cli.values import count, positive
from results.gates import exact
from results.gates.counters import Snapshot, read_snapshot
from results.gates.paired import gate as paired
from results.gates.report import counted_words
from results.gates.verdict import Report
from results.records.reading import RecordError
from tests.commands import parsed
from tests.results.gates.source_edits import (
    EXACT,
    SIZES,
    Edit,
    Plant,
    Slowdown,
    case_id,
    copied,
    edited,
    harmless,
    planted,
    rows,
    said,
)

# Steps that compile fast, on one device and on two; each gets a plant of its own.
SELECTION = ("--model=layers=1", *SIZES, "--strategy=single,data,fsdp", "--devices=1,2")
CASES = tuple(f"{spread}-b{batch}" for batch in (16, 8) for spread in ("single-data=1", "data-data=2", "fsdp-fsdp=2"))
SLOWER = """

from benchmarks.cases.case import Case

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


PAIRED = (
    Slowdown("nothing", "paired", ("slower", "faster"), at_most=0.01),
    Slowdown("5% slower", "paired", ("slower",), slowdown=0.05),  # at the minimum effect half are found at best
    Slowdown("10% slower", "paired", ("slower",), at_least=0.95, slowdown=0.10),
)
PLANTS: tuple[Edit | Slowdown, ...] = (*EXACT, *PAIRED)
Found = dict[str, Any]
"""One comparison: the trial, the gate, the plant, the word of the verdict, and the findings."""
FOOTER = "A claim that is not REFUTED is not thereby shown: the bounds tell what else may be true."


@dataclass(frozen=True)
class Tally:
    """What became of the comparisons with one plant; `low` and `high` are the 95% bounds of `rate`.

    The bounds are exact (Clopper & Pearson 1934, "The use of confidence or fiducial limits") for independent
    comparisons; those of a paired trial share launches, those of exact ones a base: they may be too narrow.
    """

    plant: Plant
    words: dict[str, int]
    rate: float
    low: float
    high: float

    @classmethod
    def of(cls, plant: Plant, words: Iterable[str]) -> "Tally":
        """Count the words of one or more comparisons."""
        counts = Counter(words)
        test = binomtest(sum(counts[word] for word in plant.counted), counts.total())
        bounds = test.proportion_ci(0.95, method="exact")
        return cls(plant, dict(counts), float(test.statistic), float(bounds.low), float(bounds.high))

    @property
    def refutes(self) -> bool:
        """Whether the bounds exclude the claim."""
        return self.high < self.plant.at_least or self.low > self.plant.at_most

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        claims = [f"at least {self.plant.at_least:.0%}"] * (self.plant.at_least > 0)
        claims += [f"at most {self.plant.at_most:.0%}"] * (self.plant.at_most < 1)
        return (
            self.plant.gate,
            self.plant.name,
            counted_words(Counter(self.words)),
            f"{self.rate:.1%} ({self.low:.1%} to {self.high:.1%}) {' or '.join(self.plant.counted)}",
            " ".join([*claims, "REFUTED" * self.refutes]),
        )


def plant(checkout: Path, folder: Path, slowdowns: Mapping[str, float]) -> Path:
    """Copy the parts of a checkout that a worker needs, with some cases slowed down; return the folder."""
    with (copied(checkout, folder) / "benchmarks/run/measure.py").open("a", encoding="utf-8") as measure:
        measure.write(SLOWER.format(slowdowns=dict(slowdowns)))
    return folder


def paired_trial(number: int, checkout: Path, changes: Sequence[Slowdown], options: argparse.Namespace) -> list[Found]:
    """Make one paired comparison, in which the plants rotate over the cases."""
    turns = {case: changes[(number + place) % len(changes)] for place, case in enumerate(CASES)}
    with tempfile.TemporaryDirectory(prefix="meshmark-gate-") as folder:
        base = plant(checkout, Path(folder, "base"), {})
        head = plant(checkout, Path(folder, "head"), {case: change.slowdown for case, change in turns.items()})
        numbers = f"--launches={options.launches}", f"--blocks={options.blocks}", f"--seed={number}"
        report = paired.run(parsed("regress paired", [f"--base={base}", f"--head={head}", *numbers, *SELECTION]))
    if report.refusal:
        sys.exit(f"{report.refusal}: {report.reason}")
    return [
        {"trial": number, "gate": "paired", "plant": turns[case_id(finding)].name, **asdict(finding)}
        for finding in report.findings
    ]


def exact_trial(
    number: int, checkout: Path, edits: Sequence[Edit], bases: Mapping[tuple[str, ...], Snapshot]
) -> list[Found]:
    """Run a copy for each edit in a process of its own, and compare its rows with those of the unchanged copy."""

    def judge(edit: Edit, folder: Path) -> Found:
        head = rows(planted(checkout, folder, edit), edit)
        try:
            report = exact.compare(bases[edit.options], read_snapshot(head), {})
        except RecordError as error:
            report = Report("exact", refusal="broken input", reason=str(error))
        changed = [asdict(finding) for finding in report.findings if finding.changed]
        about = {"trial": number, "gate": "exact", "plant": edit.name, "word": said(edit, report)}
        return about | {"reason": report.reason, "changed": changed}

    with tempfile.TemporaryDirectory(prefix="meshmark-gate-") as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(judge, edits, [Path(folder, str(place)) for place in range(len(edits))]))


def tallies_of(findings: Sequence[Found]) -> list[Tally]:
    """Count the words for each plant."""
    words = [
        [found["word"] for found in findings if (found["gate"], found["plant"]) == (change.gate, change.name)]
        for change in PLANTS
    ]
    return [Tally.of(change, its_words) for change, its_words in zip(PLANTS, words, strict=True) if its_words]


def table(tallies: Sequence[Tally]) -> str:
    """The tallies as a table: plant, words, rate with bounds, and claim."""
    header = "gate", "planted", "said", "rate (95% bounds)", "claimed"
    return "\n".join([*aligned([header, *(tally.cells() for tally in tallies)]), FOOTER])


def keep(path: Path, findings: Sequence[Found], **settings: int) -> None:
    """Write counts and findings as JSON.

    Raises:
        Unwritable: they cannot be written there; the message says where they are.
    """
    tallies = [asdict(tally) for tally in tallies_of(findings)]
    save_text(path, json.dumps({**settings, "tallies": tallies, "findings": findings}, indent=1) + "\n")


def trials(checkout: Path, chosen: Sequence[Edit | Slowdown], options: argparse.Namespace) -> Iterator[list[Found]]:
    """Make one trial after another, as many as the time budget holds; what was found in each.

    Raises:
        RecordError: the rows of the unchanged copy cannot be read.
    """
    started = time.monotonic()
    edits = [each for each in chosen if isinstance(each, Edit)]
    slowdowns = [each for each in chosen if isinstance(each, Slowdown)]
    bases = {
        options: read_snapshot(
            rows(copied(checkout, checkout.parent / str(number)), harmless("nothing", options=options))
        )
        for number, options in enumerate(dict.fromkeys(edit.options for edit in edits))
    }
    for number in range(options.trials):
        spent_seconds = time.monotonic() - started
        if number and spent_seconds * (number + 1) / number > options.time_budget:
            break
        print(f"trial {number + 1} of {options.trials}", file=sys.stderr)
        found = exact_trial(number, checkout, edits, bases) if edits else []
        yield found + (paired_trial(number, checkout, slowdowns, options) if slowdowns else [])


def plantable(checkout: Path, folder: Path, chosen: Sequence[Edit | Slowdown]) -> Path:
    """A copy of a checkout, so that no change of it in the meantime is taken for a plant.

    Raises:
        OSError, ValueError: it cannot be copied, or a plant does not fit in it.
    """
    copy = copied(checkout, folder / "checkout")
    for each in chosen:
        if isinstance(each, Edit) and each.changes:
            edited(copy, each)
    return copy


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if a claim is refuted."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.results.gates.proof", description="Count what the gates find."
    )
    names = sorted({each.name for each in PLANTS})
    add = parser.add_argument
    add("--gate", choices=("exact", "paired", "both"), default="both", help="to prove; default: %(default)s")
    add("--plant", choices=names, action="append", metavar="NAME", help="repeatable; default: all")
    add("--trials", type=count, default=10, metavar="N", help="default: %(default)s")
    add("--time-budget", type=positive, default=math.inf, metavar="S", help="seconds; makes fewer trials")
    add("--launches", type=count, default=7, metavar="N", help="of a paired trial; default: %(default)s")
    add("--blocks", type=count, default=60, metavar="N", help="of a launch; default: %(default)s")
    add("--checkout", type=Path, default=Path(), metavar="DIR", help="to plant in copies of; default: this directory")
    add("--out", type=Path, metavar="FILE", help="counts and findings as JSON, written after each trial")
    options = parser.parse_args(arguments)
    plants = [each for each in PLANTS if options.gate in (each.gate, "both")]
    chosen = [each for each in plants if each.name in (options.plant or names)]
    if not chosen:
        parser.error(f"--gate {options.gate} has no {options.plant[0]!r}; remove --gate")
    findings: list[Found] = []
    with tempfile.TemporaryDirectory(prefix="meshmark-gate-") as folder:
        try:
            if options.out:
                require_file(options.out)
            for found in trials(plantable(options.checkout, Path(folder), chosen), chosen, options):
                findings += found
                if options.out:
                    keep(options.out, findings, launches=options.launches, blocks=options.blocks)
        except RecordError as error:
            sys.exit(f"nothing can be planted: {error}")
        except Unwritable as error:
            parser.exit(BROKEN_INPUT, f"{error}\n")
        except (OSError, ValueError) as error:
            parser.error(str(error))
        finally:  # after Ctrl-C, too
            print(table(tallies_of(findings)))
    return int(any(tally.refutes for tally in tallies_of(findings)))


if __name__ == "__main__":
    run_command(main)
