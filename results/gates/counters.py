"""Reads and checks the exact counters of a run or of a committed baseline."""

import reprlib
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cases.columns import COLUMNS, SCHEMA_VERSION, Column, gated
from results.gates.verdict import Measure
from results.records.reading import (
    Case,
    RecordError,
    as_run,
    check_columns,
    check_version,
    read_json,
    records_of,
)
from strategies.files import shown
from strategies.schema import Count, checked_fields

COUNTERS = tuple(name for name, column in COLUMNS.items() if column.gate == "exact" and not column.is_family)
"""Exact metrics that every row has. The others are by kind of collective, and 0 where a row has none."""
PASSED = "ok"
# Keys of a row in a baseline. A run's row also has the tracked metrics.
KEPT = ("status", "reason", "compiled.hash", *COUNTERS)
TRACKED = tuple(name for name, column in COLUMNS.items() if column.gate == "tracked")
# The packages whose version may change a compiled program.
COMPILER = ("jax", "jaxlib", "flax", "optax")
# Keys of `machine_info` that may also change a compiled program.
SETTINGS = ("xla_flags", "libtpu_init_args", "jax_settings", "platform", "platform_version", "device_kind")
FACTS: dict[str, Any] = {
    **dict.fromkeys((*COMPILER, *SETTINGS, "arch"), str | None),
    **dict.fromkeys(("device_count",), Count | None),
}
WRITTEN_BY = "`meshmark regress baseline RUN.json`"
REFRESH = f"write it again with {WRITTEN_BY}"


@dataclass(frozen=True)
class Snapshot:
    """The cases of a run or a baseline with their counters.

    Counters depend on `facts`: versions, flags and devices. They compare only if `fingerprint`, the hash of these, is
    equal. A row has status, reason, `compiled.hash` and metrics of a case; unknown values are None.
    """

    path: Path
    fingerprint: str
    facts: dict[str, Any]
    rows: dict[Case, dict[str, Any]]

    def counters(self) -> dict[str, Column]:
        """Return the exact metrics that any row has, in the order of the table."""
        return gated(dict.fromkeys(name for row in self.rows.values() for name in row), "exact")

    def measures(self) -> Iterator[Measure]:
        """Yield the nonzero numbers of cases that passed; the step time has the quartiles of its samples as bounds."""
        for case, row in self.rows.items():
            spread = {"step_seconds_median": quartiles(row.get("samples", ()))}
            for metric in gated(row, "exact", "tracked") if row["status"] == PASSED else ():
                if row[metric]:
                    yield Measure(str(case), metric, row[metric], *spread.get(metric, ()))


def read_snapshot(path: Path) -> Snapshot:
    """Read a run or a baseline."""
    content = read_json(path)
    if isinstance(content, dict) and "cases" in content:
        return snapshot_of_baseline(path, content)
    return snapshot_of_run(path, as_run(path, content))


def snapshot_of_run(path: Path, run: Mapping[str, Any]) -> Snapshot:
    """Return the counters of a run in the format of pytest-benchmark."""
    records = records_of(path, run, (*KEPT, *TRACKED))
    return Snapshot(path, *machine_of(path, run["machine_info"]), by_case(path, records))


def snapshot_of_baseline(path: Path, baseline: Mapping[str, Any]) -> Snapshot:
    """Return the counters of a baseline. In a case that passed, counters neither stored nor `unknown` are zero."""
    check_version(shown(path), baseline.get("schema_version"), SCHEMA_VERSION, WRITTEN_BY)
    checked_fields(baseline, {"machine_info": dict[str, Any], "cases": list[dict[str, Any]]}, shown(path))
    better: Any = baseline.get("better")
    if difference := difference_of_directions(better):
        raise RecordError(f"{shown(path)} {difference}; {REFRESH}")
    machine, cases = baseline["machine_info"], baseline["cases"]
    return Snapshot(path, *machine_of(path, machine), by_case(path, [whole(path, row, better) for row in cases]))


def whole(path: Path, row: Mapping[str, Any], counters: Iterable[str]) -> dict[str, Any]:
    """Return a row of a baseline with the counters that the file leaves out, of all that it holds."""
    where = f"{shown(path)}: {row.get('name')}"
    checked_fields({"unknown": [], **row}, {"unknown": list[str]}, where)
    left_out = dict.fromkeys(counters, 0 if row.get("status") == PASSED else None)
    record = {"reason": None, "compiled.hash": None, **left_out, **row, **dict.fromkeys(row.get("unknown", []))}
    record.pop("unknown", None)
    check_columns(record, KEPT, where)
    return record


def by_case(path: Path, records: Sequence[Mapping[str, Any]]) -> dict[Case, dict[str, Any]]:
    """Return records by case; raise `RecordError` if there is none, or if a case has two."""
    rows: dict[Case, dict[str, Any]] = {}
    for record in records:
        case = Case.of(record, f"{shown(path)}: {record.get('name')}")
        if case in rows:
            raise RecordError(f"{shown(path)} has {case} twice; run the benchmarks again")
        rows[case] = {**record}
    if not rows:
        raise RecordError(f"{shown(path)} has no case; {REFRESH}")
    return rows


def machine_of(path: Path, machine: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the counters' fingerprint, and the facts that it is a hash of."""
    where = f"{shown(path)}: machine_info"
    checked_fields(machine, {"counters_fingerprint": str, "versions": dict[str, Any]}, where)
    versions, cpu = machine["versions"], machine.get("cpu")
    facts = {package: versions.get(package) for package in COMPILER}
    facts |= {key: machine.get(key) for key in (*SETTINGS, "device_count")}
    facts["arch"] = cpu.get("arch") if isinstance(cpu, dict) else None
    checked_fields(facts, FACTS, where)
    return machine["counters_fingerprint"], facts


def quartiles(samples: Sequence[float]) -> tuple[float, float] | tuple[()]:
    """Return the lower and upper quartile of samples; nothing for fewer than two samples.

    >>> quartiles((1.0, 2.0, 3.0, 4.0, 5.0))
    (2.0, 4.0)
    """
    if len(samples) < 2:
        return ()
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, high


def difference_of_directions(stored: Any) -> str:
    """Describe the first metric whose direction in a baseline differs from this meshmark's; "" if all agree."""
    if not isinstance(stored, dict):
        return "does not say which way its metrics are `better`"
    for name in dict.fromkeys((*COUNTERS, *stored)):
        ours = column.better if (column := gated([name], "exact").get(name)) else "unknown"
        theirs = stored.get(name, "unknown")
        if theirs != ours or "unknown" in (theirs, ours):
            return f"says of {name} that better is {reprlib.repr(theirs)}, and this meshmark that it is {ours!r}"
    return ""
