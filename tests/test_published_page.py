"""Predicted against published seconds: the page with its tables and rows, and the figures."""

from argparse import Namespace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from benchmarks.cli.accuracy import LEAST_RANKED
from benchmarks.simulate.machine import NOT_FITTED
from benchmarks.simulate.machines import machine, machine_names
from docs.reference import published as page
from docs.reference.published import WORST, errors_of, parts_figure, parts_of, worst_first
from results.figures.frame import PLAIN
from results.figures.predictions import predicted_figure
from results.kinds import KINDS, Inputs
from results.records.predictions import judged, read
from tests.commands import command
from tests.processes import ROOT

TABLES = sorted((ROOT / "results" / "published").glob("*.csv"))
WRITE = "meshmark predict results/published/*.csv --out P.csv && python docs/reference/published.py P.csv"


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table that the command writes of all published runs."""
    path = tmp_path_factory.mktemp("predicted") / "predicted.csv"
    command("predict")([*map(str, TABLES), f"--out={path}"])
    return path


@pytest.fixture(scope="module")
def every_row(predicted: Path) -> pd.DataFrame:
    """Its rows, which no test changes."""
    return page.with_names(read(predicted))


@pytest.fixture(scope="module")
def rows(every_row: pd.DataFrame) -> pd.DataFrame:
    """Its rows with published seconds."""
    return judged(every_row)


def test_the_committed_page_is_what_is_written(every_row: pd.DataFrame) -> None:
    """Letter by letter, so its tables and rows change with the model. Text by hand is kept."""
    committed = (page.FOLDER / page.PAGE).read_text()
    head, begin, others = committed.partition(page.BEGIN)
    _, end, tail = others.partition(page.END)
    assert page.page(every_row, f"{head}{begin}old{end}{tail}") == committed, f"run {WRITE}"
    assert page.every_row(every_row) == (page.FOLDER / page.TABLE).read_text(), f"run {WRITE}"
    for name in (page.TABLE, page.PICTURE, page.PARTS_PICTURE):
        assert f"]({name})" in committed
        assert (page.FOLDER / name).exists()


def test_plot_draws_a_table(predicted: Path, tmp_path: Path) -> None:
    """Such as a user's own, with the predictions to which a row's source did not contribute."""
    path = tmp_path / "own.csv"
    table = pd.read_csv(predicted, dtype=str, keep_default_na=False)
    fitted = table[table["left_out_seconds"] != table["predicted_seconds"]]
    fitted[fitted["source"] == fitted["source"].iloc[0]].head(5).to_csv(path, index=False)
    command("plot")([str(path)])
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    (drawing,) = KINDS["predictions"].drawings(Inputs([path], [None], Namespace(), PLAIN))
    lines = (line for line in drawing.figure().axes[0].lines if line.get_marker() != "None")
    found = [float(seconds) for line in lines for seconds in np.asarray(line.get_ydata())]
    assert sorted(found) == sorted(judged(read(path))["left_out_seconds"])


@pytest.mark.parametrize("name", machine_names())
def test_a_machine_file_names_the_sources_of_its_fit(name: str, rows: pd.DataFrame) -> None:
    """They have measured rows that it predicts, and constants of a fit without each. A file without says so."""
    its, own = machine(name), rows[rows["machine.name"] == name]
    assert {*its.without} <= {*own["source"]}
    assert its.source.startswith(NOT_FITTED) == (not its.without)
    assert all(its.without.values())
    assert {*own.loc[own["machine.fitted"] == "true", "source"]} == {*its.without}


def test_parts_add_up_to_the_prediction(rows: pd.DataFrame) -> None:
    """What the figure draws is the whole predicted step."""
    assert np.allclose(parts_of(rows).sum(axis=1), rows["predicted_seconds"], rtol=1e-4)


def test_figures_have_every_row_and_the_worst(rows: pd.DataFrame) -> None:
    """A point for each row in the column of its source, and the parts of the worst rows of each."""
    figure = predicted_figure(rows)
    counts = rows["source"].value_counts(sort=False)
    above = [axes for axes in figure.axes if axes.get_title()]
    for panels in (above, [axes for axes in figure.axes if axes not in above]):
        for axes, count in zip(panels, counts, strict=True):
            points = (len(np.asarray(line.get_xdata())) for line in axes.lines if line.get_marker() != "None")
            assert sum(points) == count
    drawn = parts_figure(rows)
    assert [len(axes.get_yticks()) for axes in drawn.axes] == [min(WORST, count) for count in counts]
    first = worst_first(rows).iloc[0]
    assert drawn.axes[0].get_yticklabels()[0].get_text().startswith(first["model"])


def test_every_row_is_in_the_table_worst_first(every_row: pd.DataFrame, tmp_path: Path) -> None:
    """A line for each row, those of a source together, the largest error first and rows without one last."""
    path = tmp_path / "rows.csv"
    path.write_text(page.every_row(every_row))
    table = pd.read_csv(path)
    assert list(table.columns) == list(page.ROW.values())
    assert list(table["source"].unique()) == list(every_row["source"].unique())
    for source, part in table.groupby("source"):
        own = every_row[every_row["source"] == source]
        assert len(part) == len(own)
        sizes = part["error"].abs().dropna()
        assert sizes.is_monotonic_decreasing
        assert sorted(sizes) == pytest.approx(sorted(own["error"].abs().dropna()), rel=1e-3)
        assert part["error"].isna().tolist() == sorted(part["error"].isna())


def test_errors_are_those_of_the_rows(rows: pd.DataFrame) -> None:
    """Mean, bias and rank correlation, as scipy computes it; of fewer than three runs there is none."""
    for _, part in rows.groupby("source"):
        found = errors_of(part)
        ratio = part["predicted_seconds"] / part["measured_seconds"]
        assert found.runs == len(part)
        assert (found.mean, found.bias) == pytest.approx((abs(ratio - 1).mean(), ratio.mean() - 1))
        ranks = spearmanr(part["predicted_seconds"], part["measured_seconds"])[0] if len(part) >= LEAST_RANKED else None
        assert found.rank_correlation == pytest.approx(ranks)


def test_regret_is_what_the_predicted_best_loses() -> None:
    """The predicted best takes 3 s, and the best 2 s."""
    rows = pd.DataFrame({"predicted_seconds": [1.0, 2.0], "measured_seconds": [3.0, 2.0]})
    rows["error"] = rows["predicted_seconds"] / rows["measured_seconds"] - 1
    assert errors_of(rows).regret == pytest.approx(0.5)
    assert errors_of(rows).rank_correlation is None


def test_choices_compare_configurations_of_a_model_on_a_cluster() -> None:
    """Seconds are compared by token; repeated runs count once, with their mean; fewer than six are no group.

    Two meshes are two configurations, even if they are predicted alike, and so are two stacks.
    """
    alike = {"source": "s", "model": "m", "cluster": "c", "dtype": "bf16", "sequence": 8.0, "work": "w"}
    batches, predicted = [2.0, 2.0, 2.0, 2.0, 2.0, 4.0, 4.0], [1.0, 1.2, 1.4, 1.8, 1.8, 1.8, 1.8]
    measured = [1.1, 1.0, 1.4, 1.6, 1.8, 1.9, 2.1]
    runs = pd.DataFrame({"batch_size": batches, "predicted_seconds": predicted, "measured_seconds": measured})
    runs = runs.assign(**alike, tensor=[1, 2, 4, 8, 16, 1, 1])
    ((work, found),) = page.compared(runs, page.WORK)
    assert (work, found.runs) == ("w", 6)
    assert found.regret == pytest.approx(0.0)  # 2 seconds for 4 sequences is as fast as 1 for 2
    assert not page.compared(runs, [*page.WORK, "batch_size"])
    stacks = ["torchtitan"] * 6 + ["torchtitan, eager"]
    ((_, found),) = page.compared(runs.assign(**{"machine.stack": stacks}), page.WORK)
    assert found.runs == 7


def test_intervals_cover_what_other_sources_say() -> None:
    """Of three sources with errors of 10, 20 and 30%, only the errors of others make the interval of each.

    With two others the largest counts: 30% for the first two, and 20% for the third.
    """
    rows = pd.DataFrame({"source": ["a", "b", "c"], "kind": "dense", "measured_seconds": 1.0})
    rows["left_out_seconds"] = [1.1, 1.2, 1.3]
    assert page.covered(rows).tolist() == [True, True, False]
    assert page.covered(rows.assign(kind=["dense", "dense", "experts"])).tolist() == [True, False, False]


def test_the_page_begins_with_errors_of_sources_left_out(rows: pd.DataFrame) -> None:
    """In-sample errors stand last, and are called that."""
    text = page.page(rows, f"{page.BEGIN}{page.END}")
    first = text.partition(page.BEGIN)[2].strip().splitlines()[0]
    assert first.startswith(f"On sources that had no part in the constants predictions are {page.mean_of(rows)} off")
    order = [text.index(f"## {title}") for title in ("Sources left out", "Choosing by prediction", "In sample")]
    assert order == sorted(order)
    fitted = rows[rows["machine.fitted"] == "true"]
    assert errors_of(fitted, "left_out_seconds").mean > errors_of(fitted).mean


def test_rows_without_a_prediction_are_listed_with_the_reason(
    predicted: Path, rows: pd.DataFrame, tmp_path: Path
) -> None:
    """They do not count in the errors."""
    table = pd.read_csv(predicted, dtype=str, keep_default_na=False)
    first, second = rows.index[:2]
    table.loc[first, ["predicted_seconds", "problem"]] = "", "no such, device"
    table.loc[second, "measured_seconds"] = ""
    table.to_csv(tmp_path / "some.csv", index=False)
    some = page.with_names(read(tmp_path / "some.csv"))
    assert len(judged(some)) == len(rows) - 2
    (tmp_path / "rows.csv").write_text(page.every_row(some))
    found = pd.read_csv(tmp_path / "rows.csv")
    assert found.loc[found["predicted_seconds"].isna(), "problem"].tolist().count("no such, device") == 1
    assert found.loc[found["published_seconds"].isna(), "error"].isna().all()
