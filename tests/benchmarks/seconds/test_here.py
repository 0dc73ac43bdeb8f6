"""What the experiment on the machine at hand says is what the committed rows say."""

import csv
import re
from collections import defaultdict

import pytest

from benchmarks.seconds.judging import errors_of
from tests.processes import ROOT

HERE = ROOT / "docs" / "examples" / "here"
PAGE = (ROOT / "docs" / "experiments" / "2026-11-24-advice-at-hand.md").read_text()
MODEL = "layers", "embed", "heads", "vocab", "sequence", "batch_size"


def rows_of(name):
    """The measured rows of a committed table."""
    with (HERE / name).open() as file:
        return [row for row in csv.DictReader(file) if row["measured_seconds"]]


@pytest.mark.parametrize(
    ("name", "title"), [("default_matrix.csv", "default matrix"), ("larger.csv", "8 layers of 512")]
)
def test_errors_of_steps_are_those_of_their_rows(name, title):
    """Median error, share within 20% and rank correlation, also of each batch size."""
    lines = re.findall(rf"^\| {title}(?:, batch (\d+))? \| (.*) \|$", PAGE, re.M)
    assert lines
    for which, said in lines:
        rows = [row for row in rows_of(name) if which in ("", row["batch_size"])]
        found = errors_of(*([float(row[each]) for row in rows] for each in ("predicted_seconds", "measured_seconds")))
        off = sorted(abs(float(row["predicted_seconds"]) / float(row["measured_seconds"]) - 1) for row in rows)
        within = sum(each <= 0.2 for each in off) / len(off)
        assert said == f"{len(rows)} | {found.median:.1%} | {within:.0%} | {found.rank_correlation:.2f}"


def test_what_the_advice_loses_is_in_the_rows():
    """Of each model the advised step, the fastest that was measured, and what the first loses against it."""
    models = defaultdict(list)
    for row in rows_of("measured.csv"):
        if row["model_of_time"] == "as it is":
            models[tuple(row[name] for name in MODEL)].append(row)
    said = {tuple(cells[: len(MODEL)]): cells[len(MODEL) :] for cells in table("layers")}
    assert said.keys() == models.keys()
    for model, rows in models.items():
        fastest = min((row for row in rows if row["final"] == "True"), key=lambda row: float(row["measured_seconds"]))
        advised = next(row for row in rows if row["rank"] == "1")
        loss = float(advised["measured_seconds"]) / float(fastest["measured_seconds"]) - 1
        named = ["the advised" if fastest is advised else named_step(fastest), milliseconds(fastest)]
        assert said[model] == [named_step(advised), milliseconds(advised), *named, f"{loss:.1%}"]


def table(first):
    """Cells of the rows of the page's table whose first column has this name."""
    lines = PAGE.partition(f"\n| {first} |")[2].partition("\n\n")[0].split("\n")[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def named_step(row):
    """A step as the page names it."""
    return f"{row['strategy']} {row['mesh']}, {row['remat']}"


def milliseconds(row):
    """Milliseconds of a measured step."""
    return f"{1000 * float(row['measured_seconds']):.0f}"
