"""The table that `load` makes of run files has their facts, or a RecordError says why not."""

import json
from pathlib import Path
from typing import Any

import pytest

from results.records.rows import RecordError, load
from tests.results.synthetic import failed, row, sweep, write_run


def test_facts_stay_as_recorded(tmp_path: Path) -> None:
    """Every row of the file is a row of the table, in order, with each fact under its own name."""
    written = sweep()
    read = load([write_run(tmp_path / "run.json", written)])
    assert read["name"].tolist() == [benchmark["name"] for benchmark in written]
    for key in written[0]["extra_info"]:
        assert read[key].fillna("null").tolist() == [
            "null" if benchmark["extra_info"][key] is None else benchmark["extra_info"][key] for benchmark in written
        ]


def test_samples_are_the_step_times(tmp_path: Path) -> None:
    """A row keeps its samples; null, missing or empty statistics give none."""
    unmeasured = [
        failed("oom", "data", "data=2"),
        failed("error", "data", "data=4"),
        failed("timeout", "data", "data=8"),
    ]
    unmeasured[1].pop("stats")
    unmeasured[2]["stats"] = {"data": []}
    measured = row()
    measured["stats"] = {"data": [0.25, 0.5]}
    read = load([write_run(tmp_path / "run.json", [measured, *unmeasured])])
    assert read["samples"].tolist() == [(0.25, 0.5), (), (), ()]
    assert read["status"].tolist() == ["ok", "oom", "error", "timeout"]


def test_rows_of_other_benchmarks_are_passed_over(tmp_path: Path) -> None:
    """Rows without a schema version belong to other benchmarks and are skipped."""
    other = {"name": "test_matmul", "stats": {"data": [1.0]}, "extra_info": {}}
    assert load([write_run(tmp_path / "run.json", [other, row()])])["name"].tolist() == [row()["name"]]


def test_files_of_one_machine_join(tmp_path: Path) -> None:
    """Files of one machine become one table, in which each row names its file."""
    paths = [write_run(tmp_path / "a.json", sweep([8])), write_run(tmp_path / "b.json", sweep([16]))]
    read = load(paths)
    assert read["file"].tolist() == [str(path) for path in paths for _ in sweep([8])]


UNREADABLE = {
    "cut short": (
        '{"benchmarks": [{"name": "te',
        r"run.json is cut short or not JSON: Input data was truncated",
    ),
    "another program's": ('{"results": []}', "run.json is JSON but not pytest-benchmark's"),
    "a list": ("[]", "run.json is JSON but not pytest-benchmark's"),
    "empty": ('{"machine_info": {}, "benchmarks": []}', "run.json has 0 benchmarks, none of meshmark"),
    "another suite's": (
        '{"machine_info": {}, "benchmarks": [{"name": "test_sort", "extra_info": {}}]}',
        "run.json has 1 benchmarks, none of meshmark",
    ),
}


@pytest.mark.parametrize(("content", "message"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_is_not_a_run_is_refused(tmp_path: Path, content: str, message: str) -> None:
    """A file that is not a complete run raises a RecordError with its name and what to do."""
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(RecordError, match=message):
        load([path])


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A missing file raises a RecordError with the command that writes it."""
    missing = r"run.json does not exist; write it with `pytest benchmarks --benchmark-json="
    with pytest.raises(RecordError, match=missing):
        load([tmp_path / "run.json"])


@pytest.mark.parametrize(
    ("version", "way_out"), [(2, "write it again"), (5, "update meshmark, or"), ("4", "write"), (True, "write")]
)
def test_another_schema_is_refused(tmp_path: Path, version: Any, way_out: str) -> None:
    """An older or newer schema version raises a RecordError that says which of both to update."""
    path = write_run(tmp_path / "run.json", [row(schema_version=version)])
    with pytest.raises(RecordError, match=f"schema_version {version!r} and this meshmark reads 4; {way_out}"):
        load([path])


def test_an_incomplete_record_is_refused(tmp_path: Path) -> None:
    """A row that lacks keys raises a RecordError that names them."""
    incomplete = row()
    del incomplete["extra_info"]["memory.temp_bytes"], incomplete["extra_info"]["mesh"]
    path = write_run(tmp_path / "run.json", [row(batch=8), incomplete])
    with pytest.raises(RecordError, match=r"test_step\[single-data=1-b16\] lacks mesh, memory.temp_bytes"):
        load([path])


@pytest.mark.parametrize(
    ("column", "first", "second"),
    [("platform", "cpu", "gpu"), ("device_kind", "NVIDIA H100", "NVIDIA H200"), ("virtual_devices", True, False)],
)
def test_devices_do_not_mix(tmp_path: Path, column: str, first: Any, second: Any) -> None:
    """Rows of different devices raise a RecordError that names both."""
    paths = [
        write_run(tmp_path / "a.json", [row(**{column: first})]),
        write_run(tmp_path / "b.json", [row("data", "data=2", **{column: second})]),
    ]
    message = rf"not comparable, {column} differs: {first} \(.*a.json\) and {second} \(.*b.json\); plot them apart"
    with pytest.raises(RecordError, match=message):
        load(paths)


def test_machines_do_not_mix(tmp_path: Path) -> None:
    """Runs of different machines, versions or flags raise a RecordError with both fingerprints."""
    paths = [
        write_run(tmp_path / "a.json", [row()], fingerprint="one"),
        write_run(tmp_path / "b.json", [row("data", "data=2")], fingerprint="two"),
    ]
    with pytest.raises(RecordError, match=r"fingerprint differs: one \(.*a.json\) and two \(.*b.json\)"):
        load(paths)


def test_a_case_measured_twice_is_refused(tmp_path: Path) -> None:
    """A case that is in two files raises a RecordError; with another dtype it is another case."""
    paths = [write_run(tmp_path / "a.json", [row()]), write_run(tmp_path / "b.json", [row()])]
    with pytest.raises(
        RecordError, match=r"test_step\[single-data=1-b16\] is both in .*a.json and in .*b.json; plot one"
    ):
        load(paths)
    write_run(paths[1], [row(dtype="bfloat16")])
    assert load(paths)["dtype"].tolist() == ["float32", "bfloat16"]


def test_a_number_is_a_number(tmp_path: Path) -> None:
    """Text in place of a number raises a RecordError."""
    content = json.dumps({"machine_info": {}, "benchmarks": [row(tokens_per_second="UNSERIALIZABLE[1.0]")]})
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(RecordError, match=r"b16\]: tokens_per_second is 'UNSERIALIZABLE\[1.0\]'; it must be a number"):
        load([tmp_path / "run.json"])
