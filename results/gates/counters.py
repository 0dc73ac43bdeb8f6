"""Reads and checks the exact counters of a run or of a committed baseline."""

import reprlib
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results.gates.metrics import EXACT, METRICS, other_axes
from results.gates.verdict import Measure
from results.records.reading import (
    Case,
    RecordError,
    as_run,
    check_kinds,
    check_schema,
    is_amount,
    is_number,
    is_text,
    read_json,
    records_of,
)

COUNTERS = tuple(metric.name for metric in EXACT)
DIRECTIONS = {metric.name: metric.better for metric in EXACT}
PASSED = "ok"
# Keys of a row in a baseline, with the checks of their values. A run's row also has the tracked metrics.
KEPT = dict.fromkeys(("status", "reason", "compiled.hash"), is_text) | dict.fromkeys(COUNTERS, is_amount)
# The packages whose version may change a compiled program.
COMPILER = ("jax", "jaxlib", "flax", "optax")
# Keys of `machine_info` that may also change a compiled program.
SETTINGS = ("xla_flags", "libtpu_init_args", "jax_settings", "platform", "platform_version", "device_kind")
FACTS = dict.fromkeys((*COMPILER, *SETTINGS, "arch"), is_text) | {"device_count": is_number}
REFRESH = "write it again with `python -m results.baseline RUN.json`"


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
    records = records_of(path, run, KEPT | dict.fromkeys(METRICS, is_amount))
    return Snapshot(path, *machine_of(path, run["machine_info"]), by_case(path, records))


def snapshot_of_baseline(path: Path, baseline: Mapping[str, Any]) -> Snapshot:
    """Return the counters of a baseline. In a case that passed, counters neither stored nor `unknown` are zero."""
    check_schema(path, baseline.get("schema_version"))
    machine, cases = baseline.get("machine_info"), baseline.get("cases")
    if not isinstance(machine, dict) or not isinstance(cases, list) or not all(map(has_name, cases)):
        raise RecordError(f"{path} has no `machine_info`, or no list of `cases` with names; {REFRESH}")
    if baseline.get("better") != DIRECTIONS:
        raise RecordError(f"{path} {difference_of_directions(baseline.get('better'))}; {REFRESH}")
    return Snapshot(path, *machine_of(path, machine), by_case(path, (whole(path, row) for row in cases)))


def has_name(row: Any) -> bool:
    """Return whether a value can be a row of a baseline."""
    return isinstance(row, dict) and isinstance(row.get("name"), str)


def whole(path: Path, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a baseline with the counters that the file leaves out."""
    unknown = row.get("unknown", [])
    if not isinstance(unknown, list) or not all(isinstance(name, str) for name in unknown):
        raise RecordError(f"{path}: {row['name']} has no list of `unknown` metrics; {REFRESH}")
    left_out = dict.fromkeys(COUNTERS, 0 if row.get("status") == PASSED else None)
    record = {"reason": None, "compiled.hash": None, **left_out, **row, **dict.fromkeys(unknown)}
    check_kinds(f"{path}: {row['name']}", record, KEPT)
    return record


def by_case(path: Path, records: Iterable[Mapping[str, Any]]) -> dict[Case, dict[str, Any]]:
    """Return records by case; raise `RecordError` if there is none, or if a case has two."""
    rows: dict[Case, dict[str, Any]] = {}
    for record in records:
        case = Case.of(record)
        if case in rows:
            raise RecordError(f"{path} has {case} twice; run the benchmarks again")
        others = {metric.name: is_amount for metric in other_axes(record)}
        check_kinds(f"{path}: {record['name']}", record, others)
        rows[case] = {key: value if value == value else None for key, value in record.items()}  # no NaN
    if not rows:
        raise RecordError(f"{path} has no case; {REFRESH}")
    return rows


def machine_of(path: Path, machine: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the counters' fingerprint, and the facts that it is a hash of."""
    fingerprint, versions, cpu = (machine.get(key) for key in ("counters_fingerprint", "versions", "cpu"))
    if not isinstance(fingerprint, str) or not isinstance(versions, dict):
        raise RecordError(f"{path} lacks counters_fingerprint or versions in machine_info; run the benchmarks again")
    facts = {package: versions.get(package) for package in COMPILER}
    facts |= {key: machine.get(key) for key in (*SETTINGS, "device_count")}
    facts["arch"] = cpu.get("arch") if isinstance(cpu, dict) else None
    check_kinds(f"{path}: machine_info", facts, FACTS)
    return fingerprint, facts


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
