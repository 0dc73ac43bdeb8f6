"""Reads the files of `pytest benchmarks --benchmark-json=...` row by row, and validates them."""

import json
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from results.records.launches import united

SCHEMA_VERSION = 4
UNTIMED = "untimed"
"""Key of the rows without samples in a run; older files have them among `benchmarks`."""
LAUNCH = "launch"
"""Key of the launch number in a row of merged runs."""
WRITTEN_BY = "a file written by `pytest benchmarks --benchmark-json=FILE`"


class RecordError(ValueError):
    """A file that cannot be read as meshmark records, or that cannot be read together with another."""


def is_text(value: Any) -> bool:
    """Return whether a value is a text, or unknown (None)."""
    return value is None or isinstance(value, str)


def is_flag(value: Any) -> bool:
    """Return whether a value is true or false, or unknown (None)."""
    return value is None or isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return whether a value is a number, NaN, or unknown (None). No recorded amount needs more than 63 bits."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) >= 2**63)


def is_amount(value: Any) -> bool:
    """Return whether a value is a number of at least 0, NaN, or unknown (None)."""
    return is_number(value) and not (value is not None and value < 0)


def is_positive(value: Any) -> bool:
    """Return whether a value is a number above 0, NaN, or unknown (None)."""
    return is_number(value) and not (value is not None and value <= 0)


def is_sample(value: Any) -> bool:
    """Return whether a value is a measured time: a number above 0."""
    return value is not None and is_positive(value) and value == value


KINDS: dict[Callable[[Any], bool], str] = {
    is_text: "a text",
    is_flag: "true or false",
    is_number: "a number",
    is_amount: "a number of at least 0",
    is_positive: "a number above 0",
}


class Case(NamedTuple):
    """The identity of a case across runs; its text is the same in every report."""

    name: str
    preset: str
    microbatches: int
    dtype: str
    remat: str
    sequence_tokens: int
    param_count: int

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Case":
        """Return the case of a record.

        Raises:
            RecordError: a fact is missing, of another type, or a number below 1.
        """
        for fact, kind in cls.__annotations__.items():
            if type(record.get(fact)) is not kind:
                value = reprlib.repr(record.get(fact))
                raise RecordError(
                    f"{record.get('name')}: {fact} is {value}, not {kind.__name__}; run the benchmarks again"
                )
            if kind is int and record[fact] < 1:
                raise RecordError(f"{record.get('name')}: {fact} is {record[fact]}, not at least 1; run it again")
        return cls(*(record[fact] for fact in cls._fields))

    def __str__(self) -> str:
        """Name all facts, the test's name first.

        >>> print(Case("test_step[fsdp-fsdp=8-b16]", "nano", 1, "float32", "dots", 128, 1635584))
        test_step[fsdp-fsdp=8-b16] nano float32 remat=dots microbatches=1 sequence=128 params=1635584
        """
        return (
            f"{self.name} {self.preset} {self.dtype} remat={self.remat} microbatches={self.microbatches} "
            f"sequence={self.sequence_tokens} params={self.param_count}"
        )


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        RecordError: the file is missing, unreadable, empty, truncated or not JSON.
    """
    if not path.is_file():
        raise RecordError(
            f"{path} does not exist; write it with `pytest benchmarks --benchmark-json={path}`, "
            "or a baseline with `python -m results.baseline RUN.json`"
        )
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(f"{path} is cut short or not JSON ({error}); run the benchmarks again") from error


def read_run(path: Path) -> dict[str, Any]:
    """Read a file that pytest-benchmark wrote.

    Raises:
        RecordError: the file cannot be read, or pytest-benchmark did not write it.
    """
    return as_run(path, read_json(path))


def as_run(path: Path, content: Any) -> dict[str, Any]:
    """Check that the content of a file is a run in the format of pytest-benchmark, and return it.

    Raises:
        RecordError: it is something else.
    """
    if not isinstance(content, dict) or not {"benchmarks", "machine_info"} <= content.keys():
        raise RecordError(
            f"{path} is JSON but not pytest-benchmark's (no `benchmarks` and `machine_info`); pass {WRITTEN_BY}"
        )
    benchmarks, machine = content["benchmarks"], content["machine_info"]
    if not isinstance(machine, dict) or not isinstance(benchmarks, list):
        raise RecordError(f"{path} has no list of `benchmarks` and no `machine_info` with names; pass {WRITTEN_BY}")
    return content


def records_of(path: Path, run: Mapping[str, Any], keys: Mapping[str, Callable[[Any], bool]]) -> list[dict[str, Any]]:
    """Return the records of a run: each has all `keys`, and also `name`, `file`, `fingerprint` and `samples`.

    The launches of a case in merged runs become one record, with their number in `launches` (see
    `results.records.launches.united`).

    Args:
        path: the file of the run.
        run: the content that `as_run` returned.
        keys: the facts that a record must have, each with the check of its value.

    Raises:
        RecordError: there is no record, or one has another schema, lacks a key or has an invalid value.
    """
    rows = [row for row in rows_of(path, run) if isinstance(row, dict) and "schema_version" in facts_of(row)]
    if not rows:
        raise RecordError(
            f"{path} has {len(rows_of(path, run))} benchmarks, none of meshmark (no `schema_version` in extra_info); "
            f"pass {WRITTEN_BY}"
        )
    machine = run["machine_info"].get("fingerprint")
    if not is_text(machine):
        raise RecordError(f"{path} has the fingerprint {reprlib.repr(machine)}, not a text; run the benchmarks again")
    for row in rows:
        check_schema(path, facts_of(row)["schema_version"])
        if not isinstance(row.get("name"), str):
            raise RecordError(
                f"{path} has a row whose name is {reprlib.repr(row.get('name'))}; run the benchmarks again"
            )
        check_kinds(f"{path}: {row['name']}", facts_of(row), keys)
    about = {"file": str(path), "fingerprint": machine}
    launches: dict[Any, list[dict[str, Any]]] = {}
    for number, row in enumerate(rows):
        record = facts_of(row) | about | {"name": row["name"], "samples": samples_of(path, row)}
        case = tuple(record.get(fact) for fact in Case._fields)
        launches.setdefault(case if launch_of(path, row) else number, []).append(record)
    return list(map(united, launches.values()))


def launch_of(path: Path, row: Mapping[str, Any]) -> int | None:
    """Return the launch number of a row in merged runs; None if runs were not merged.

    Raises:
        RecordError: the launch is not a whole number of at least 1.
    """
    launch = row.get(LAUNCH)
    if launch is not None and (type(launch) is not int or launch < 1):
        raise RecordError(f"{path}: {row['name']} is of launch {reprlib.repr(launch)}, not of a number; merge it again")
    return launch


def rows_of(path: Path, run: Mapping[str, Any]) -> list[Any]:
    """Return all rows of a run: the timed ones, and those without samples, which are stored apart for other programs.

    Raises:
        RecordError: the rows without samples are not a list.
    """
    untimed = run.get(UNTIMED, [])
    if not isinstance(untimed, list):
        raise RecordError(f"{path} has {reprlib.repr(untimed)} as `{UNTIMED}`, not a list; run the benchmarks again")
    return [*run["benchmarks"], *untimed]


def facts_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a row, its `extra_info`; empty if another program wrote the row."""
    facts = row.get("extra_info")
    return facts if isinstance(facts, dict) else {}


def samples_of(path: Path, row: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the step times of a row in seconds; empty if nothing was timed.

    Raises:
        RecordError: a sample is not a number above 0.
    """
    stats = row.get("stats") or {}
    samples = stats.get("data") if isinstance(stats, dict) else stats
    if samples is None:
        return ()
    if not isinstance(samples, list) or not all(map(is_sample, samples)):
        raise RecordError(f"{path}: {row['name']} has samples that are not numbers above 0; run the benchmarks again")
    return tuple(samples)


def check_schema(path: Path, version: Any) -> None:
    """Raise `RecordError` unless the schema version is the one that this meshmark reads."""
    if version == SCHEMA_VERSION and type(version) is int:
        return
    newer = isinstance(version, int | float) and version > SCHEMA_VERSION
    raise RecordError(
        f"{path} has schema_version {reprlib.repr(version)} and this meshmark reads {SCHEMA_VERSION}; "
        f"{'update meshmark, or run' if newer else 'run'} the benchmarks again with this one"
    )


def check_kinds(where: str, facts: Mapping[str, Any], keys: Mapping[str, Callable[[Any], bool]]) -> None:
    """Raise `RecordError` if facts lack a key or have an invalid value."""
    if missing := [key for key in keys if key not in facts]:
        raise RecordError(f"{where} lacks {', '.join(missing)}; run the benchmarks again")
    for key, is_kind in keys.items():
        if not is_kind(facts[key]):
            value = reprlib.repr(facts[key])
            raise RecordError(f"{where}: {key} is {value}, not {KINDS[is_kind]}; run the benchmarks again")
