"""Merges runs of the same programs on one machine into one file, in which each run is a launch.

meshmark merge A.json B.json --out M.json
"""

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.cli.ending import Refused
from benchmarks.cli.outputs import require_apart, require_file, save_text
from results.gates.counters import KEPT
from results.records.reading import (
    LAUNCH,
    UNTIMED,
    Case,
    NotComparable,
    facts_of,
    other_machine,
    read_run,
    records_of,
    rows_of,
)
from strategies.files import shown

Run = Mapping[str, Any]
NAMED = 3
"""Most cases that a message names."""


def merge(runs: Mapping[Path, Run]) -> dict[str, Any]:
    """Merge runs: all rows are kept, each with the number of its launch, and the launches of a case form a group.

    A run may itself be merged.
    """
    (first, base), *others = runs.items()
    for path, run in others:
        if why := other_machine(base["machine_info"], run["machine_info"], (shown(first), shown(path))):
            raise NotComparable(f"{why}: launches must be from one machine")
    if unshared := unshared_cases(runs):
        raise NotComparable(f"{name_unshared(unshared)}; launches must have the same cases, or add --only-shared-cases")
    merged = {**base, "benchmarks": [], UNTIMED: [], "launches": []}
    programs: dict[Case, tuple[Path, Any]] = {}
    samples: dict[str, Path] = {}
    for path, run in runs.items():
        for row in rows_of(run):
            program = facts_of(row)["compiled.hash"]
            earlier, its_program = programs.setdefault(case_of(row), (path, program))
            if program is not None and its_program is not None and program != its_program:
                why = f"{row['name']} is program {its_program} in {shown(earlier)} and {program} in {shown(path)}"
                raise NotComparable(f"{why}: launches must be of one program; `meshmark compare` compares two")
        times = [json.dumps(row["stats"]) for row in run["benchmarks"] if row.get("stats")]
        if twice := next((each for each in times if each in samples), None):  # it would count as two launches
            raise NotComparable(f"{shown(samples[twice])} and {shown(path)} hold the same run; merge separate runs")
        samples |= dict.fromkeys(times, path)
        before = len(merged["launches"])
        for name in ("benchmarks", UNTIMED):
            for row in run.get(name, []):
                merged[name].append({**row, "group": row["name"], LAUNCH: before + (row.get(LAUNCH) or 1)})
        merged["launches"] += run.get("launches") or [{"file": shown(path), "datetime": run.get("datetime")}]
    return merged


def case_of(row: Mapping[str, Any]) -> Case:
    """Return the case of a row."""
    return Case.of({**facts_of(row), "name": row.get("name")}, str(row.get("name")))


def unshared_cases(runs: Mapping[Path, Run]) -> dict[Case, str]:
    """Return the cases that only some launches have, each with the file of a launch that lacks it."""
    launches: dict[tuple[Path, int], set[Case]] = {}
    for path, run in runs.items():
        for row in rows_of(run):
            launches.setdefault((path, row.get(LAUNCH) or 1), set()).add(case_of(row))
    cases = dict.fromkeys(case for found in launches.values() for case in found)
    lacking = {case: [shown(path) for (path, _), found in launches.items() if case not in found] for case in cases}
    return {case: files[0] for case, files in lacking.items() if files}


def name_unshared(unshared: Mapping[Case, str]) -> str:
    """Say which cases are not in which file."""
    texts = [f"{case} is not in {file}" for case, file in sorted(unshared.items())[:NAMED]]
    more = len(unshared) - len(texts)
    return "; ".join([*texts, *([f"{more} more cases are only in some runs"] if more else [])])


def kept(run: Run, keeps: Callable[[Run], bool]) -> Run:
    """Return a run with some of its rows."""
    return {**run, **{name: [*filter(keeps, run.get(name, []))] for name in ("benchmarks", UNTIMED)}}


def main(options: argparse.Namespace) -> None:
    """Run the command."""
    if len(set(options.runs)) < max(2, len(options.runs)):
        raise Refused("give two or more different runs")
    require_apart({"--out": options.out}, options.runs)
    require_file(options.out, "json")
    runs = {path: read_run(path) for path in options.runs}
    for path, run in runs.items():
        records_of(path, run, KEPT)  # which checks them
    runs = {path: kept(run, lambda row: "schema_version" in facts_of(row)) for path, run in runs.items()}
    unshared = unshared_cases(runs) if options.only_shared_cases else {}
    merged = merge({path: kept(run, lambda row: case_of(row) not in unshared) for path, run in runs.items()})
    cases = {row["group"] for row in rows_of(merged)}
    if not cases:
        raise NotComparable(f"{name_unshared(unshared)}; no case is in all runs")
    save_text(options.out, json.dumps(merged) + "\n")
    if unshared:
        print(f"left out: {name_unshared(unshared)}")
    print(f"{shown(options.out)}: {len(merged['launches'])} launches of {len(cases)} cases")
