"""docs/reference/published.md, made from the predictions of all published runs: its tables, every row, and pictures.

meshmark predict results/published/*.csv --out predicted.csv
python docs/reference/published.py predicted.csv
"""

import csv
import io
import math
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmarks.cli import accuracy
from benchmarks.cli.accuracy import Errors, quantile
from results.figures.frame import PLAIN, described, legend, opened, themed
from results.figures.marks import stacked_bars
from results.figures.palette import BLACK, BROWN, INDIGO, PURE_BLACK, RED, SAND, SKY, TEAL
from results.figures.predictions import predicted_figure, short
from results.formats import as_markdown
from results.records.predictions import AXES, LEFT_OUT, SECONDS, judged, read, without_own_source

FOLDER = Path(__file__).parent
PAGE, TABLE, PICTURE, PARTS_PICTURE = "published.md", "published.csv", "published.png", "published-parts.png"
BEGIN, END = "<!-- written by `python docs/reference/published.py` -->", "<!-- end of what is written -->"
"""What stands between these lines of the page is replaced; the rest is written by hand."""
WORK = ["source", "model", "experts", "cluster", "dtype", "sequence"]
"""Columns in which configurations of a group agree."""
CONFIGURATION = [
    *("batch_size", *AXES, "expert", "virtual_stages"),
    *("microbatches", "schedule", "recompute", "sequence_parallel", "machine.stack"),
]
"""Columns in which repeated runs agree. The stack is the one that ran: with a compiler or CUDA graphs, or without."""
LEAST_CONFIGURATIONS, MOST_GROUPS = 6, 6
"""Of a group, and groups in the table of the largest regrets."""
LEAST_RANK, MOST_REGRET = 0.9, 0.03
"""Of a group whose configurations are ranked well."""
PARTS = {
    "matmuls": ("matmul",),
    "attention and memory": ("attention", "memory"),
    "launches": ("launches",),
    "collectives of layers": ("layer_collectives", "gathers"),
    "embedding and head": ("head", "head_collectives"),
    "sends and bubble": ("sends", "bubble"),
    "after the passes": ("gradients", "optimizer", "fixed"),
}
"""Parts of a step as a figure shows them -> the parts that the table has."""
SPENT_COLOURS = dict(zip(PARTS, (INDIGO, SKY, BROWN, RED, TEAL, SAND, BLACK), strict=True))
"""What the predicted time of a step is spent on."""
WORST = 4
"""Rows of each source of which the parts are drawn."""
DPI = 110
"""Of the pictures, which are large."""
COVERAGE = 0.8
"""Of the intervals."""
LIMITS = {"rank correlation": f"least {LEAST_RANK}", "regret": f"most {MOST_REGRET:.0%}"}
ROW = {
    **{"source": "source", "model": "layers x embed", "devices": "devices", "mesh": "mesh", "batch_size": "batch"},
    **{"microbatches": "microbatches", "sequence": "tokens", "recompute": "recompute", "dtype": "dtype"},
    **{"measured_seconds": "published_seconds", "predicted_seconds": "predicted_seconds", "error": "error"},
    **{"left_out": "error_without_its_source", "beside": "error_of_others", "problem": "problem"},
}
"""Columns of a row -> their names in the CSV file."""


def write(path: Path, folder: Path = FOLDER) -> None:
    """Write the page, its rows and its two pictures, from a table of predictions."""
    rows = with_names(read(path))
    (folder / PAGE).write_text(page(rows, (folder / PAGE).read_text()))
    (folder / TABLE).write_text(every_row(rows))
    known = judged(rows)
    with themed():
        predicted_figure(without_own_source(known)).savefig(folder / PICTURE, dpi=DPI)
        parts_figure(known).savefig(folder / PARTS_PICTURE, dpi=DPI)


def with_names(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the cluster and the work of a step, and in `beside` the median error of other rows of the model and mesh."""
    texts = {name: rows[name].map("{:.0f}".format) for name in ("devices", "batch_size", "sequence")}
    cluster = texts["devices"] + " x " + rows["device"]
    work = rows["model"] + ", " + texts["batch_size"] + " x " + texts["sequence"] + " tokens, " + cluster
    beside = rows.groupby(["source", "model", "mesh"])["error"].transform(of_others)
    return rows.assign(cluster=cluster, work=work, beside=beside)


def of_others(values: pd.Series) -> pd.Series:
    """The median of all other values, for each value."""
    return pd.Series({place: values.drop(place).median() for place in values.index}, dtype=float)


def page(rows: pd.DataFrame, before: str) -> str:
    """The page in Markdown: the tables of all rows, in the page so far."""
    head, _, others = before.partition(BEGIN)
    _, _, tail = others.partition(END)
    known = judged(rows)
    parts = [
        *left_out_parts(known),
        f"![Published seconds of a step against those predicted without the source, a panel a source]({PICTURE})",
        *choices(without_own_source(known)),
        "## In sample",
        f"{len(known)} of {len(rows)} rows have a prediction and a published time. [{TABLE}]({TABLE}) has every row. "
        "Constants were fitted to most of these rows, and rules were chosen with them in view: these errors say how "
        "well the formulas can describe what was measured, not how well they predict.",
        errors_table(known),
        f"Where the predicted time goes in the {WORST} worst rows of each source:",
        f"![Parts of the predicted time of the worst rows, relative to the published time]({PARTS_PICTURE})",
    ]
    return "\n\n".join([head + BEGIN, *parts, END + tail])


def errors_of(rows: pd.DataFrame, seconds: str = "predicted_seconds") -> Errors:
    """Errors of judged rows, of predictions in a column."""
    return accuracy.errors_of(rows[seconds].tolist(), rows["measured_seconds"].tolist())


def left_out_parts(rows: pd.DataFrame) -> Iterator[str]:
    """Yield the errors on sources that had no part in the constants, and how many runs their intervals cover."""
    inside = covered(rows)
    kinds = [f"{mean_of(part)} for {kind} ({len(part)} runs)" for kind, part in rows.groupby("kind", sort=False)]
    by_source, as_much = inside.groupby(rows["source"]).mean().mean(), "if each source counts as much"
    yield (
        f"On sources that had no part in the constants predictions are {mean_of(rows)} off on average, {as_much}: "
        f"{', '.join(kinds)}. {by_source:.0%} of the runs lie inside of 80% intervals without their source, "
        f"{as_much}; of all runs {inside.mean():.0%} do."
    )
    yield "## Sources left out"
    table: list[tuple[str, ...]] = [
        ("source", "kind", "runs", "mean error", "median", "bias", "rank correlation", "inside of 80%")
    ]
    for (source, kind), part in rows.groupby(["source", "kind"], sort=False):
        errors = errors_of(part, LEFT_OUT)
        shares = f"{errors.mean:.1%}", f"{errors.median:.1%}", f"{errors.bias:+.1%}"
        table.append(
            (str(source), str(kind), str(errors.runs), *shares, errors.rank_text, f"{inside[part.index].mean():.0%}")
        )
    yield as_markdown(table, "<<" + ">" * 6)


def mean_of(rows: pd.DataFrame) -> str:
    """The mean error of predictions without the source of each row. Each source counts as much."""
    return f"{rows['left_out'].abs().groupby(rows['source']).mean().mean():.1%}"


def covered(rows: pd.DataFrame) -> pd.Series:
    """Whether the interval of each row, from the errors of other sources of its kind, covers its seconds."""
    sizes = (rows[LEFT_OUT] / rows["measured_seconds"]).map(math.log).abs()
    inside = pd.Series(index=rows.index, dtype=bool)
    for _, part in rows.groupby("kind"):
        by_source = {str(source): sizes[own.index].tolist() for source, own in part.groupby("source")}
        for source, own in part.groupby("source"):
            others = {name: found for name, found in by_source.items() if name != str(source)}
            inside[own.index] = sizes[own.index] <= (quantile(others, COVERAGE) if others else 0.0)
    return inside


def errors_table(rows: pd.DataFrame) -> str:
    """The errors of each source and machine file, most of whose constants were fitted to them."""
    shares_of = "mean error", "median", "bias", "within 10%"
    table: list[tuple[str, ...]] = [("source", "machine file", "runs", *shares_of, "rank correlation")]
    for (source, name), part in rows.groupby(["source", "machine.name"], sort=False):
        errors = errors_of(part)
        shares = f"{errors.mean:.1%}", f"{errors.median:.1%}", f"{errors.bias:+.1%}", f"{errors.near:.0%}"
        table.append((str(source), str(name), str(errors.runs), *shares, errors.rank_text))
    return as_markdown(table, "<<" + ">" * 6)


def choices(rows: pd.DataFrame) -> Iterator[str]:
    """Yield how well predictions rank the configurations that one source measured of one model on one cluster."""
    groups = groups_of(rows)
    if not groups["the same"]:
        return
    yield "## Choosing by prediction"
    yield (
        f"A group has at least {LEAST_CONFIGURATIONS} configurations of one model on one cluster, by one source, with "
        "the same dtype and tokens of a sequence. They are compared by seconds for each token. Repeated runs of a "
        "configuration count once, with their mean. The rank correlation is Spearman's. Regret is how much longer the "
        "one takes that is predicted to be the fastest than the fastest."
    )
    table: list[tuple[str, ...]] = [
        ("batch", "groups", *(f"{name} at {limit}" for name, limit in LIMITS.items()), "both", "mean regret")
    ]
    for batch, found in groups.items():
        counts = *map(sum, zip(*within_limits(found), strict=True)), sum(map(all, within_limits(found)))
        mean = sum(errors.regret for _, errors in found) / len(found)
        table.append((batch, str(len(found)), *map(str, counts), f"{mean:.1%}"))
    yield as_markdown(table, "<" + ">" * 5)
    yield "The groups with the same batch and the largest regrets:"
    worst = groups["the same"][:MOST_GROUPS]
    lines = [(work, str(errors.runs), errors.rank_text, f"{errors.regret:.1%}") for work, errors in worst]
    yield as_markdown([("work", "configurations", *LIMITS), *lines], "<" + ">" * 3)


def groups_of(rows: pd.DataFrame) -> dict[str, list[tuple[str, Errors]]]:
    """The groups of configurations that are compared, of any batch and of the same."""
    return {"any": compared(rows, WORK), "the same": compared(rows, [*WORK, "batch_size"])}


def within_limits(found: list[tuple[str, Errors]]) -> list[tuple[bool, bool]]:
    """Of each group, whether its rank correlation and its regret are within `LIMITS`."""
    return [((errors.rank_correlation or 0) >= LEAST_RANK, errors.regret <= MOST_REGRET) for _, errors in found]


def compared(rows: pd.DataFrame, keys: list[str]) -> list[tuple[str, Errors]]:
    """Works and errors by seconds for each token of groups of configurations, the largest regret first."""
    tokens = rows["batch_size"] * rows["sequence"]
    rates = rows.assign(**{name: rows[name] / tokens for name in SECONDS})
    found = []
    for _, part in rates.groupby([key for key in keys if key in rows], sort=False):
        if len(part) < LEAST_CONFIGURATIONS:
            continue  # the means of hundreds of small groups would take most of the time of the page
        means = part.groupby([name for name in CONFIGURATION if name in rows], dropna=False)[[*SECONDS]].mean()
        if len(means) >= LEAST_CONFIGURATIONS:
            found.append((part["work"].iloc[0], errors_of(means)))
    return sorted(found, key=lambda group: -group[1].regret)


def every_row(rows: pd.DataFrame) -> str:
    """The rows as CSV, those with the largest error of each source first.

    `error_of_others` is the median error of the other rows of the same model and mesh: a row that is far from it stands
    alone. `problem` says why a row has no prediction.
    """
    found = worst_first(rows)[[*ROW]].rename(columns=ROW).to_dict("records")
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [[*ROW.values()], *([cell(value) for value in row.values()] for row in found)]
    )
    return text.getvalue()


def parts_of(rows: pd.DataFrame) -> pd.DataFrame:
    """The seconds of a predicted step by what they are spent on."""
    seconds = {name: [f"predicted.{part}_seconds" for part in parts] for name, parts in PARTS.items()}
    return pd.DataFrame({name: rows[columns].apply(pd.to_numeric).sum(axis=1) for name, columns in seconds.items()})


def parts_figure(rows: pd.DataFrame) -> Figure:
    """Draw where the predicted time goes in the worst rows of each source, as parts of the published time."""
    sources = [part for _, part in worst_first(rows).groupby("source", sort=False)]
    drawn = [part.head(WORST) for part in sources]
    size = (11, 1.2 + 0.26 * sum(len(part) + 2 for part in drawn))
    heights = [len(part) for part in drawn]
    figure, grid = opened(PLAIN, len(drawn), size, columns=1, sharey=False, height_ratios=heights)
    for axes, part in zip(grid, drawn, strict=True):
        shares = parts_of(part).div(part["measured_seconds"], axis="index")
        stacked_bars(axes, shares, SPENT_COLOURS, [label_of(row) for row in part.to_dict("records")])
        axes.axvline(1, color=PURE_BLACK, linewidth=1.5)
        name = textwrap.shorten(short(part["source"].iloc[0]), 100, placeholder=" ...")
        axes.set_title(name, size="small", loc="left", y=1)
    grid[-1].set_xlabel("predicted over published time of a step")
    handles: list[Artist] = [Patch(color=SPENT_COLOURS[name], label=name) for name in PARTS]
    handles.append(Line2D([], [], color=PURE_BLACK, label="published time"))
    legend(figure, handles, below=True)
    title = "Worst rows: layers x embed, sequences x tokens in the number of microbatches, mesh"
    return described(figure, PLAIN, [title], [])


def worst_first(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, the largest error first; sources in the order of the rows."""
    return rows.sort_values("error", key=lambda error: -error.abs(), kind="stable").sort_values(
        "source", key=lambda source: source.map({name: place for place, name in enumerate(rows["source"].unique())}),
        kind="stable",
    )  # fmt: skip


def label_of(row: dict) -> str:
    """Name a row: its model, batch, tokens of a sequence, microbatches and mesh."""
    work = f"{row['model']}, {row['batch_size']:.0f} x {row['sequence']:.0f}"
    return f"{work} in {row['microbatches']:.0f}, {row['mesh']}"


def cell(value: Any) -> str:
    """Format a value with four digits, and whole numbers with all; an unknown one is empty.

    >>> cell(2048.0), cell(-0.012345), cell(float("nan")), cell("full")
    ('2048', '-0.01235', '', 'full')
    """
    if isinstance(value, str):
        return value
    if pd.isna(value):
        return ""
    return f"{value:.0f}" if value == int(value) else f"{value:.4g}"


if __name__ == "__main__":
    write(Path(sys.argv[1]))
