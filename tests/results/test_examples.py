"""The committed example run is one that the current code would write and can read."""

import pytest

from benchmarks.cases import Case
from benchmarks.options import selected
from benchmarks.record import SCHEMA_VERSION, Record
from results.records.reading import read_run, rows_of
from results.records.rows import load
from strategies import PRESETS, MeshSpec
from tests.processes import ROOT

RUN = ROOT / "docs" / "examples" / "nano-cpu" / "run.json"


def test_the_example_has_the_current_schema(pytestconfig: pytest.Config) -> None:
    """The example has the cases of a run without options; its rows have today's columns and schema, and load."""
    case = Case("single", MeshSpec.parse("data=1"), "nano", PRESETS["nano"], 8, 1, "float32", "dots")
    columns = Record.begin(case).as_extra_info().keys()
    rows = [row["extra_info"] for row in rows_of(read_run(RUN))]
    cases = [f"test_step[{case}]" for case in selected(pytestconfig.option).cases()]
    assert [row["name"] for row in rows_of(read_run(RUN))] == cases
    for row in rows:
        assert row.keys() == columns
        assert row["schema_version"] == SCHEMA_VERSION
    assert len(load([RUN])) == len(rows)
