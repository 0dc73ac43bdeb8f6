"""Reads and checks the exact counters of a run or of a committed baseline."""

import reprlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results.gates.metrics import EXACT, METRICS, other_axes
from results.gates.verdict import Measure
from results.records.reading import (
    SCHEMA_VERSION,
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

COUNTERS = tuple(metric.name for metric in EXACT)
DIRECTIONS = {metric.name: metric.better for metric in EXACT}
PASSED = "ok"
# Keys of a row in a baseline. A run's row also has the tracked metrics.
KEPT = ("status", "reason", "compiled.hash", *COUNTERS)
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

    Attributes:
        path: the file.
        fingerprint: hash of `facts`; counters are comparable only if it is equal.
        facts: versions, flags and devices that the counters depend on, by name.
        rows: status, reason, `compiled.hash` and metrics of each case; unknown values are None.
    """

    path: Path
    fingerprint: str
    facts: dict[str, Any]
    rows: dict[Case, dict[str, Any]]

    def measures(self) -> Iterator[Measure]:
        """Yield the nonzero numbers of cases that passed; the step time has the quartiles of its samples as bounds."""
        for case, row in self.rows.items():
            spread = {"step_seconds_median": quartiles(row.get("samples", ()))}
            names = (*METRICS, *(metric.name for metric in other_axes(row)))
            for metric in names if row["status"] == PASSED else ():
                value = row.get(metric)  # a baseline has only the exact metrics
                if value:
                    yield Measure(str(case), metric, value, *spread.get(metric, ()))


def read_snapshot(path: Path) -> Snapshot:
    """Read a run or a baseline.

    Raises:
        RecordError: the file is neither, or incomplete.
    """
    content = read_json(path)
    if isinstance(content, dict) and "cases" in content:
        return snapshot_of_baseline(path, content)
    return snapshot_of_run(path, as_run(path, content))


def snapshot_of_run(path: Path, run: Mapping[str, Any]) -> Snapshot:
    """Return the counters of a run in the format of pytest-benchmark."""
    records = records_of(path, run, (*KEPT, *METRICS))
    return Snapshot(path, *machine_of(path, run["machine_info"]), by_case(path, records))


def snapshot_of_baseline(path: Path, baseline: Mapping[str, Any]) -> Snapshot:
    """Return the counters of a baseline. In a case that passed, counters neither stored nor `unknown` are zero."""
    check_version(shown(path), baseline.get("schema_version"), SCHEMA_VERSION, WRITTEN_BY)
    checked_fields(baseline, {"machine_info": dict[str, Any], "cases": list[dict[str, Any]]}, shown(path))
    if baseline.get("better") != DIRECTIONS:
        raise RecordError(f"{shown(path)} {difference_of_directions(baseline.get('better'))}; {REFRESH}")
    machine, cases = baseline["machine_info"], baseline["cases"]
    return Snapshot(path, *machine_of(path, machine), by_case(path, [whole(path, row) for row in cases]))


def whole(path: Path, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a baseline with the counters that the file leaves out."""
    where = f"{shown(path)}: {row.get('name')}"
    checked_fields({"unknown": [], **row}, {"unknown": list[str]}, where)
    left_out = dict.fromkeys(COUNTERS, 0 if row.get("status") == PASSED else None)
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
    """Describe the first metric whose direction in a baseline differs from this meshmark's."""
    if not isinstance(stored, dict):
        return "does not say which way its metrics are `better`"
    absent = object()
    name = next(name for name in {**DIRECTIONS, **stored} if stored.get(name, absent) != DIRECTIONS.get(name, absent))
    return (
        f"says of {name} that better is {reprlib.repr(stored.get(name, 'unknown'))}, "
        f"and this meshmark that it is {DIRECTIONS.get(name, 'unknown')!r}"
    )
