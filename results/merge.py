"""Merges runs of the same programs on one machine into one file, in which each run is a launch.

python -m results.merge A.json B.json --out M.json
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.commandline.ending import BROKEN_INPUT
from benchmarks.commandline.ending import run as run_command
from benchmarks.commandline.main import WRONG_USAGE, program
from benchmarks.commandline.outputs import Unwritable, require_apart, require_file, save_text
from results.gates.counters import KEPT
from results.gates.verdict import NotComparable
from results.records.machine import other_machine
from results.records.reading import LAUNCH, UNTIMED, RecordError, facts_of, read_run, records_of, rows_of

Run = Mapping[str, Any]


def merge(runs: Mapping[Path, Run]) -> dict[str, Any]:
    """Merge runs: all rows are kept, each with the number of its launch, and the launches of a case form a group.

    Args:
        runs: the runs by path; a run may itself be merged.

    Returns:
        The merged run, in the format of pytest-benchmark.

    Raises:
        NotComparable: two runs differ in machine, versions or programs, or are the same run; the message names both.
    """
    (first, base), *others = runs.items()
    for path, run in others:
        if why := other_machine(base["machine_info"], run["machine_info"], (str(first), str(path))):
            raise NotComparable(f"{why}: launches must be from one machine")
    merged = {**base, "benchmarks": [], UNTIMED: [], "launches": []}
    programs: dict[tuple[Any, ...], tuple[Path, Any]] = {}
    samples: dict[str, Path] = {}
    for path, run in runs.items():
        require_same_programs(path, run, programs)
        require_other_samples(path, run, samples)
        before = len(merged["launches"])
        for name in ("benchmarks", UNTIMED):
            merged[name] += [numbered(row, before) for row in run.get(name, [])]
        merged["launches"] += run.get("launches") or [{"file": str(path), "datetime": run.get("datetime")}]
    return merged


def numbered(row: Mapping[str, Any], before: int) -> dict[str, Any]:
    """Return a row with its group and its launch number, which starts after the `before` launches merged so far."""
    return {**row, "group": row.get("name"), LAUNCH: before + row.get(LAUNCH, 1)}


def require_same_programs(path: Path, run: Run, programs: dict[tuple[Any, ...], tuple[Path, Any]]) -> None:
    """Check that each case has the same compiled program as in earlier runs, and add it to `programs`.

    Raises:
        NotComparable: a program differs, because the code, the model or an option changed.
    """
    for row in rows_of(path, run):
        facts = facts_of(row)
        case = row.get("name"), *(facts.get(fact) for fact in ("preset", "microbatches", "dtype", "remat"))
        program = facts.get("compiled.hash")
        earlier, its_program = programs.setdefault(case, (path, program))
        if program is not None and its_program is not None and program != its_program:
            why = f"{row.get('name')} is program {its_program} in {earlier} and {program} in {path}"
            raise NotComparable(f"{why}: launches must be of one program; `meshmark compare` compares two")


def require_other_samples(path: Path, run: Run, samples: dict[str, Path]) -> None:
    """Check that no run is merged twice, because it would count as two launches; add its samples to `samples`.

    Raises:
        NotComparable: the run has the samples of an earlier file.
    """
    for row in run["benchmarks"]:
        times = json.dumps(row.get("stats"))
        if times in samples and row.get("stats"):
            raise NotComparable(f"{samples[times]} and {path} hold the same run; merge separate runs")
    samples |= {json.dumps(row.get("stats")): path for row in run["benchmarks"]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog=program("python -m results.merge"),
        description="Merge runs of the same programs on one machine. Each run becomes a launch, "
        "and intervals are computed over launches.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN.json", help="a run, measured or merged")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file to write")
    options = parser.parse_args(arguments)
    try:
        if len(set(options.runs)) < max(2, len(options.runs)):
            parser.error("give two or more different runs")
        require_apart({"--out": options.out}, options.runs)
        require_file(options.out)
        runs = {path: read_run(path) for path in options.runs}
        for path, run in runs.items():
            records_of(path, run, KEPT)
        merged = merge(runs)
        save_text(options.out, json.dumps(merged) + "\n")
    except NotComparable as error:
        parser.exit(WRONG_USAGE, f"{error}\n")
    except (RecordError, Unwritable) as error:
        parser.exit(BROKEN_INPUT, f"{error}\n")
    cases = {row["group"] for row in [*merged["benchmarks"], *merged[UNTIMED]]}
    print(f"{options.out}: {len(merged['launches'])} launches of {len(cases)} cases")


if __name__ == "__main__":
    run_command(main)
