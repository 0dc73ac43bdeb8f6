"""The table that `load` makes of run files has their facts, or a RecordError says why not."""

from pathlib import Path

from results.records.rows import load
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


def test_a_case_in_another_dtype_is_another(tmp_path: Path) -> None:
    """With another dtype it is another case (test_refusals.py has the same case twice)."""
    paths = [write_run(tmp_path / f"{dtype}.json", [row(dtype=dtype)]) for dtype in ("float32", "bfloat16")]
    assert load(paths)["dtype"].tolist() == ["float32", "bfloat16"]
