"""The committed records are ones that the current code would write and can read."""

import json
from argparse import Namespace
from collections.abc import Callable, Sized
from pathlib import Path

import pytest

from benchmarks.cases.case import Case
from benchmarks.cases.columns import SCHEMA_VERSION
from benchmarks.cases.selection import selected
from benchmarks.run.record import Record
from benchmarks.simulate.predict import read_rows
from benchmarks.simulate.published_row import Published
from results.gates.counters import read_snapshot
from results.records.documents import read_search
from results.records.reading import read_run, rows_of
from results.records.rows import load
from results.records.training import read_training
from strategies import PRESETS, MeshSpec
from strategies.files import read_table
from tests.processes import ROOT

FOLDERS = "docs/examples", "results/baselines", "results/measured", "results/published"
NO_RECORDS = {".md", ".png", ".txt", ".yml"}
"""Texts, pictures and workflows; the other files of these folders are records."""
MEASURED = "strategy", "mesh", "batch_size", "predicted_seconds", "measured_seconds"
"""Columns of the tables of predicted and measured steps in docs/examples/here."""
RECORDS = sorted(
    path.relative_to(ROOT)
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.*")
    if path.suffix not in NO_RECORDS
)
RUN = ROOT / "docs" / "examples" / "nano-cpu" / "run.json"


def test_the_example_has_the_current_schema(pytestconfig: pytest.Config) -> None:
    """The example has the cases of a run of `nano`; its rows have today's columns and schema, and load."""
    case = Case("single", MeshSpec.parse("data=1"), "nano", PRESETS["nano"], 8, 1, "float32", "dots")
    columns = Record.begin(case).as_extra_info().keys()
    rows = [row["extra_info"] for row in rows_of(read_run(RUN))]
    option = Namespace(**{**vars(pytestconfig.option), "preset": "nano"})
    cases = [f"test_step[{case}]" for case in selected(option).cases()]
    assert [row["name"] for row in rows_of(read_run(RUN))] == cases
    for row in rows:
        assert row.keys() == columns
        assert row["schema_version"] == SCHEMA_VERSION
    assert len(load([RUN])) == len(rows)


def reader_of(path: Path) -> Callable[[Path], Sized]:
    """The reader of the rows of a committed record, by its folder and its kind."""
    if path.parent.name == "baselines":
        return lambda baseline: read_snapshot(baseline).rows
    if path.parent.name == "published":
        return lambda table: [Published.of(row) for row in read_rows(table)]
    if path.suffix == ".jsonl":
        return lambda log: read_training([log])
    if path.suffix == ".csv":
        return lambda table: [float(row[name]) for row in read_table(table, MEASURED) for name in MEASURED[2:4]]
    if json.loads((ROOT / path).read_text()).get("kind") == "search":
        return lambda document: read_search(document)[1]
    return lambda run: load([run])


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_committed_record_is_read(folder: str) -> None:
    """Baselines, examples and published runs: none is older than the schema of its reader, or empty."""
    read = {path: len(reader_of(path)(ROOT / path)) for path in RECORDS if path.is_relative_to(folder)}
    assert read
    assert {path for path, rows in read.items() if not rows} == set()


def test_every_folder_of_examples_is_explained() -> None:
    """docs/examples/README.md has a section for each, with the commit that wrote it; others say what they have, too."""
    sections = (ROOT / "docs" / "examples" / "README.md").read_text().split("\n## ")[1:]
    folders = {path.parent.name for path in (ROOT / "docs" / "examples").glob("*/*")}
    assert {section.splitlines()[0] for section in sections} == folders
    assert all("commit " in section for section in sections if not section.startswith("ci\n"))  # written by hand
    for name in ("baselines", "measured", "published"):
        text = (ROOT / "results" / name / "README.md").read_text()
        assert all(path.name in text for path in RECORDS if path.parent.name == name)
