"""The page that compares predicted with published seconds: its tables in Markdown, and every row as CSV."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.cli.outputs import require_apart, save, save_text
from results.figures.pictures import draw, themed
from results.figures.predictions import WORST, parts_figure, predicted_figure, worst_first
from results.records.predictions import MEMORY, errors_by, errors_of, fitted, judged, read
from results.records.reading import RecordError
from results.reports.tables import as_csv, as_markdown
from strategies.files import read_text, shown

PAGE, TABLE, PICTURE, PARTS_PICTURE = "published.md", "published.csv", "published.png", "published-parts.png"
BEGIN, END = "<!-- written by `meshmark plot` -->", "<!-- end of what is written -->"
"""The command replaces what stands between these lines of a page, and keeps the rest, which is written by hand."""
EMPTY = f"# Predicted against published\n\n{BEGIN}\n{END}\n"
LEAST_SPREADS = 5
"""Works that were measured under fewer meshes and numbers of microbatches are not in the table of choices."""
MOST_WORKS = 6
"""Works in the table of choices."""
ROW = {
    **{"source": "source", "model": "layers x embed", "devices": "devices", "mesh": "mesh", "batch_size": "batch"},
    **{"microbatches": "microbatches", "sequence": "tokens", "recompute": "recompute", "dtype": "dtype"},
    **{"measured_seconds": "published_seconds", "predicted_seconds": "predicted_seconds", "error": "error"},
    **{"beside": "error_of_others", "problem": "problem"},
}
"""Columns of a row -> their names in the CSV file."""


def write_page(path: Path, folder: Path) -> list[Path]:
    """Write the page that compares predicted with published seconds, its rows and its two pictures.

    Of a page that is there, the tables are replaced. Returns the paths written.

    Raises:
        RecordError: the file cannot be read, or has no row that is both predicted and measured.
    """
    paths = [folder / name for name in (PAGE, TABLE, PICTURE, PARTS_PICTURE)]
    require_apart({str(written): written for written in paths}, [path])
    rows = read(path)
    known = judged(rows)
    if known.empty:
        raise RecordError(f"{shown(path)} has no row that is both predicted and measured")
    before = read_text(paths[0]) if paths[0].exists() else EMPTY
    save_text(paths[0], page(rows, before))
    save_text(paths[1], every_row(rows))
    drawn_rows = known if fitted(known).empty else fitted(known)
    with themed():
        for picture, figure in zip(paths[2:], (predicted_figure(drawn_rows), parts_figure(drawn_rows)), strict=True):
            save(picture, lambda to, drawn=figure: draw(drawn, to, dpi=110))
    return paths


def page(rows: pd.DataFrame, before: str = EMPTY) -> str:
    """Return the page in Markdown.

    Args:
        rows: all rows.
        before: the page so far. What stands between `BEGIN` and `END` is replaced.

    Raises:
        RecordError: the page so far lacks one of the two lines.
    """
    head, begin, others = before.partition(BEGIN)
    _, end, tail = others.partition(END)
    if not (begin and end):
        raise RecordError(f"{PAGE} has no lines {BEGIN} and {END}; add them, or write to another folder")
    known = judged(rows)
    parts = [
        f"{len(known)} of {len(rows)} rows have a prediction and a published time. [{TABLE}]({TABLE}) has every row.",
        "## Errors",
        errors_table(known),
        f"![Predicted against published seconds of a step, a panel for each source with fitted rows]({PICTURE})",
        f"Where the predicted time goes in the {WORST} worst rows of each of these sources:",
        f"![Parts of the predicted time of the worst rows, relative to the published time]({PARTS_PICTURE})",
        *choices(known),
        *memory(rows),
    ]
    return "\n\n".join([head + BEGIN, *parts, END + tail])


def errors_table(rows: pd.DataFrame) -> str:
    """Return the errors of each source and machine file, and the error of rows that the machine's fit did not see."""
    header = "source", "machine file", "runs", "mean error", "median", "bias", "within 10%", "rank", "left out"
    table: list[tuple[str, ...]] = [header]
    for (source, name), part in rows.groupby(["source", "machine.name"], sort=False):
        errors = errors_of(part)
        shares = f"{errors.mean:.1%}", f"{errors.median:.1%}", f"{errors.bias:+.1%}", f"{errors.near:.0%}"
        left_out = "not fitted" if fitted(part).empty else f"{part['machine.error'].iloc[0]:.1%}"
        table.append((str(source), str(name), str(errors.runs), *shares, errors.rank_text, left_out))
    return as_markdown(table, "<<" + ">" * 7)


def choices(rows: pd.DataFrame) -> Iterator[str]:
    """Yield what choosing by prediction loses, for works that were measured under several spreads."""
    found = errors_by(rows, ["source", "work"], lambda errors: errors.regret)
    several = [errors for _, errors in found if errors.runs > 1]
    if not several:
        return
    yield "## Choosing by prediction"
    yield (
        f"{len(several)} batches were measured under several meshes or numbers of microbatches. The spread that is "
        f"predicted to be the fastest takes {sum(errors.regret for errors in several) / len(several):.1%} longer than "
        f"the fastest, on average, and is the fastest in {sum(errors.regret == 0 for errors in several)} of them. This "
        f"loss is the regret. The largest regrets of batches with {LEAST_SPREADS} runs or more:"
    )
    table: list[tuple[str, ...]] = [("work", "runs", "rank correlation", "regret")]
    largest = [(work, errors) for (_, work), errors in found if errors.runs >= LEAST_SPREADS][:MOST_WORKS]
    table += [(str(work), str(errors.runs), errors.rank_text, f"{errors.regret:.1%}") for work, errors in largest]
    yield as_markdown(table, "<" + ">" * 3)


def memory(rows: pd.DataFrame) -> Iterator[str]:
    """Yield published and predicted memory, of the rows of sources that have it."""
    measured = rows[rows[list(MEMORY)].notna().all(axis=1)]
    if measured.empty:
        return
    yield "## Memory"
    table: list[tuple[str, ...]] = [
        ("layers x embed", "mesh", "microbatch", "dtype", "published GiB", "predicted GiB", "error")
    ]
    for row in measured.to_dict("records"):
        published, predicted = (row[name] for name in MEMORY)
        work = row["model"], row["mesh"], f"{row['sequences']:.0f}", row["dtype"]
        table.append((*work, f"{published:.0f}", f"{predicted:.1f}", f"{predicted / published - 1:+.1%}"))
    yield as_markdown(table, "<<><" + ">" * 3)


def every_row(rows: pd.DataFrame) -> str:
    """Return the rows as CSV, those with the largest error of each source first.

    `error_of_others` is the median error of the other rows of the same model and mesh: a row that is far from it stands
    alone. `problem` says why a row has no prediction.
    """
    found = worst_first(rows)[[*ROW]].rename(columns=ROW).to_dict("records")
    return as_csv([[*ROW.values()], *([cell(value) for value in row.values()] for row in found)]) + "\n"


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
