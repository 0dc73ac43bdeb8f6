"""Reads the files of `pytest benchmarks --benchmark-json=...` row by row, and checks them."""

import reprlib
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from benchmarks.cases.columns import SCHEMA_VERSION, column_of
from benchmarks.cli.ending import Refused
from results.records.launches import INTERVALS, combine_launches
from strategies import files
from strategies.files import shown
from strategies.schema import Amount, Count, Number, Positive, Scalar, SchemaError, checked, checked_fields

TYPES: dict[str, Any] = {
    **{"word": str, "text": str, "flag": bool},
    **{"count": Count, "amount": Amount, "positive": Positive, "number": Number},
}
"""Types by their names in the table of columns. Any but a word may be unknown, which is null."""
UNTIMED = "untimed"
"""Key of the rows without samples in a run; older files have them among `benchmarks`."""
LAUNCH = "launch"
"""Key of the launch number in a row of merged runs."""
WRITTEN_BY = "a file written by `pytest benchmarks --benchmark-json=FILE`"
WAY_OUT = (
    "write it with `pytest benchmarks --benchmark-json=FILE`, or a baseline with `meshmark regress baseline RUN.json`"
)
Rows = list[dict[str, Any]]
RUN: dict[str, Any] = {"benchmarks": Rows, "machine_info": dict[str, Any]}
"""Keys of a run, with the types of their values."""
OPTIONAL: dict[str, Any] = {
    **{UNTIMED: Rows, "launches": Rows},
    **{"commit_info": dict[str, Any] | None, "datetime": str | None},
}
"""Keys that a run may have."""
MACHINE: dict[str, Any] = {
    **dict.fromkeys(("fingerprint", "counters_fingerprint", "platform", "device_kind"), str | None),
    **{"cpu": dict[str, Any] | None, "versions": dict[str, str | None] | None, "virtual_devices": bool | None},
    **dict.fromkeys(("device_count",), Count | None),
    **{"matmul_flops_per_second": dict[str, Amount] | None},
}
"""Keys that the machine of a run may have, with the types of their values."""
DECISIVE = (
    *("cpu", "versions", "compiler_versions", "xla_flags", "libtpu_init_args", "jax_settings", "glibc_tunables"),
    *("platform", "platform_version", "device_kind", "device_count", "architecture", "process_count", "topology"),
)
"""Keys of `machine_info` that determine the fingerprint of a run (benchmarks/run/machine.py)."""
MOST_SHOWN = 4
"""Most differences between machines that a message names."""

RecordError = SchemaError
"""A file cannot be read as meshmark records, or cannot be read together with another."""
Document = TypeVar("Document")


class NotComparable(Refused):
    """Two runs are complete, but a comparison would not be fair; the message names what differs."""

    kind = "not comparable: "


class Stats(msgspec.Struct, frozen=True):
    """The step times of a row in seconds."""

    data: tuple[Positive, ...] | None = None


class Row(msgspec.Struct, frozen=True):
    """A row of a run; `extra_info` has the columns, and `launch` is the number of the launch in merged runs."""

    name: str
    extra_info: dict[str, Scalar]
    stats: Stats | None = None
    launch: Count | None = None


class Case(NamedTuple):
    """The identity of a case across runs; its text is the same in every report."""

    name: str
    preset: str
    microbatches: Count
    dtype: str
    remat: str
    sequence_tokens: Count
    param_count: Count

    @classmethod
    def of(cls, record: Mapping[str, Any], where: str) -> "Case":
        """Return the case of a record; `where` names it in messages."""
        checked_fields(record, cls.__annotations__, where)
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
    """Read a run or a baseline as JSON."""
    return files.read_json(path, WAY_OUT)


def read_document(
    path: Path, kind: str, version: int, form: type[Document], written_by: str, document: Any = None
) -> Document:
    """Read a JSON document of a kind and a schema version that a command wrote.

    `document` is the content of the file, if it was read before.
    """
    if document is None:
        document = files.read_json(path, f"write it with {written_by}")
    if not isinstance(document, dict) or document.get("kind") != kind:
        raise RecordError(f"{shown(path)} was not written by {written_by} of this version")
    check_version(shown(path), document.get("schema_version"), version, written_by)
    return checked(document, form, shown(path))


def check_version(where: str, found: Any, version: int, written_by: str) -> None:
    """Raise `RecordError` unless the schema version that was found is the one that is read."""
    if type(found) is int and found == version:
        return
    way_out = "update meshmark, or write" if type(found) is int and found > version else "write"
    problem = f"{where} has schema_version {reprlib.repr(found)} and this meshmark reads {version}"
    raise RecordError(f"{problem}; {way_out} it again with {written_by}")


def read_run(path: Path) -> dict[str, Any]:
    """Read a file that pytest-benchmark wrote."""
    return as_run(path, read_json(path))


def as_run(path: Path, content: Any) -> dict[str, Any]:
    """Check that the content of a file is a run in the format of pytest-benchmark, and return it."""
    if not isinstance(content, dict) or not RUN.keys() <= content.keys():
        problem = f"{shown(path)} is JSON but not pytest-benchmark's (no `benchmarks` and `machine_info`)"
        raise RecordError(f"{problem}; pass {WRITTEN_BY}")
    checked_fields(content, RUN | known(OPTIONAL, content), shown(path))
    machine = content["machine_info"]
    checked_fields(machine, known(MACHINE, machine), f"{shown(path)}: machine_info")
    return content


def known(kinds: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the types of the facts that are there."""
    return {name: kind for name, kind in kinds.items() if name in facts}


def records_of(path: Path, run: Mapping[str, Any], needed: Collection[str]) -> list[dict[str, Any]]:
    """Return the records of a run: each has all `needed` columns, and `name`, `file`, `fingerprint` and `samples`.

    The launches of a case in merged runs become one record, with their number in `launches` (see
    `results.records.launches.combine_launches`).
    """
    rows = [row for row in rows_of(run) if "schema_version" in facts_of(row)]
    if not rows:
        problem = f"{len(rows_of(run))} benchmarks, none of meshmark (no `schema_version` in extra_info)"
        raise RecordError(f"{shown(path)} has {problem}; pass {WRITTEN_BY}")
    about = {"file": shown(path), "fingerprint": run["machine_info"].get("fingerprint")}
    launches: dict[Any, list[dict[str, Any]]] = {}
    for number, row in enumerate(rows):
        where = f"{shown(path)}: {row.get('name', f'row {number + 1}')}"
        check_version(shown(path), facts_of(row)["schema_version"], SCHEMA_VERSION, "`pytest benchmarks`")
        found = checked(row, Row, where)
        check_columns(found.extra_info, needed, where)
        samples = (found.stats and found.stats.data) or ()
        record = found.extra_info | about | {"name": found.name, "samples": samples}
        case = tuple(record.get(fact) for fact in Case._fields)
        launches.setdefault(case if found.launch else number, []).append(record)
    return list(map(combine_launches, launches.values()))


def check_columns(facts: Mapping[str, Any], needed: Collection[str], where: str) -> None:
    """Check the columns of a row."""
    checked_fields(facts, {name: type_of(name) for name in {**dict.fromkeys(needed), **facts}}, where)
    for column, name in INTERVALS.items():
        ends: list[Any] = [facts.get(each) for each in (f"{name}_low", column, f"{name}_high")]
        if None not in ends and ends != sorted(ends):
            raise RecordError(f"{where}: {column} is {ends[1]}, outside of its interval from {ends[0]} to {ends[2]}")


@cache
def type_of(name: str) -> Any:
    """Return the type of a column; columns of a newer meshmark, which the table lacks, may have any scalar.

    >>> type_of("noisy"), type_of("compiled.sent_bytes.permute.toy") == Amount | None, type_of("mine") == Scalar
    (bool | None, True, True)
    """
    column = column_of(name)
    if column is None:
        return Scalar
    return TYPES[column.type] if column.type == "word" else TYPES[column.type] | None


def rows_of(run: Mapping[str, Any]) -> Rows:
    """Return all rows of a run: the timed ones, and those without samples, which are stored apart."""
    return [*run["benchmarks"], *run.get(UNTIMED, [])]


def facts_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a row, its `extra_info`; empty if another program wrote the row."""
    facts = row.get("extra_info")
    return facts if isinstance(facts, dict) else {}


def decisive_facts(machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that determine the fingerprint; a fact in a group is named GROUP.FACT.

    >>> decisive_facts({"cpu": {"count": 2}, "platform": "cpu", "node": "here"})
    {'cpu.count': 2, 'platform': 'cpu'}
    """
    found = {}
    for name in DECISIVE:
        value = machine.get(name)
        if isinstance(value, Mapping):
            found |= {f"{name}.{key}": part for key, part in value.items()}
        elif name in machine:
            found[name] = value
    return found


def differences(base: Mapping[str, Any], head: Mapping[str, Any], names: tuple[str, str]) -> Iterator[str]:
    """Describe each fact that differs, with the values of both runs; `names` are those of the runs.

    >>> [*differences({"jax": "0.10.2"}, {"jax": "0.12.0"}, ("BASE", "HEAD"))]
    ['jax is 0.10.2 in BASE and 0.12.0 in HEAD']
    """
    for name in {**base, **head}:
        if base.get(name) != head.get(name):
            yield f"{name} is {base.get(name)} in {names[0]} and {head.get(name)} in {names[1]}"


def other_machine(base: Mapping[str, Any], head: Mapping[str, Any], names: tuple[str, str]) -> str:
    """Explain why step times of two runs are not comparable, given their `machine_info`; "" if they are comparable."""
    ours, theirs = base.get("fingerprint"), head.get("fingerprint")
    if ours == theirs and ours is not None:
        return ""
    unnamed = f"fingerprint is {ours} in {names[0]} and {theirs} in {names[1]}"
    found = [*differences(decisive_facts(base), decisive_facts(head), names)]
    more = [f"{len(found) - MOST_SHOWN} more facts differ"] if len(found) > MOST_SHOWN else []
    return "; ".join([*found[:MOST_SHOWN], *more]) or unnamed
