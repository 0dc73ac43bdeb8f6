"""Writes a page that compares predicted with published seconds, every row, with its pictures.

python -m benchmarks.predict results/published/*.csv --out PREDICTED.csv
python -m results.predictions PREDICTED.csv --out docs
"""

from collections.abc import Iterator, Sequence

import matplotlib as mpl
import pandas as pd
import seaborn as sns

from benchmarks.commandline.ending import run as run_command
from benchmarks.commandline.outputs import require_apart, require_file, save, save_text
from results import parsers
from results.figures.pictures import REPRODUCIBLE, draw
from results.figures.predictions import WORST, parts_figure, predicted_figure, worst_first
from results.forms import as_markdown
from results.notes import ABOUT_MEMORY, BEGIN, KEPT_OUT, NOTES
from results.records.predictions import MEMORY, Errors, errors_by, judged, read, with_factors
from results.records.reading import RecordError
from results.refusing import refusing
from strategies.files import shown

PAGE, PICTURE, PARTS_PICTURE = "published.md", "published.png", "published-parts.png"
LEAST_SPREADS = 5
"""Works that were spread in so many ways are listed with the regret of choosing by prediction."""
LEAST_ALIKE = 3
"""Groups of rows whose layers do the same work are listed if they have so many rows."""
LISTED = 16
"""Groups that are listed."""
ALIKE = ["source", "tensor", "pipeline", "embed", "sequence", "sequences", "recompute"]
"""Columns in which rows are equal whose layers do the same work on a device."""


def page(rows: pd.DataFrame) -> str:
    """The page, in Markdown."""
    known = judged(rows)
    sources = known["source"].unique()
    parts = [
        BEGIN.format(known=len(known), rows=len(rows), sources=rows["source"].nunique()),
        *(KEPT_OUT[source] for source in sources if source in KEPT_OUT),
        machines_table(known),
        f"![Predicted against published seconds of a step, one panel for each source]({PICTURE})",
        *("## Errors", errors_table(known, "source"), errors_table(known, "cluster"), errors_table(known, "model")),
        *choices(known),
        *memory(rows),
        "## Why the bad rows are bad",
        *(NOTES[source] for source in sources if source in NOTES),
        *alike(known),
        f"Where the predicted time goes in the {WORST} worst rows of each source:",
        f"![Parts of the predicted time of the worst rows, relative to the published time]({PARTS_PICTURE})",
        *every_row(known),
        *("## Rows without a prediction or without a published time", *without(rows)),
    ]
    return "\n\n".join(parts) + "\n"


def machines_table(rows: pd.DataFrame) -> str:
    """Which machine file predicts the rows of which source, what it was fitted to, and its error of other rows."""
    table: list[tuple[str, ...]] = [("rows of", "machine file", "constants", "error of rows that were left out")]
    for (source, name), part in rows.groupby(["source", "machine.name"], sort=False):
        facts = part.iloc[0]
        table.append((str(source), str(name), facts["machine.source"], f"{facts['machine.error']:.1%}"))
    return as_markdown(table, "<<<>")


def errors_table(rows: pd.DataFrame, key: str) -> str:
    """The errors of groups of rows."""
    table: list[tuple[str, ...]] = [(key, "runs", "mean error", "median", "bias", "within 10%", "rank correlation")]
    for name, errors in errors_by(rows, key, None if key == "source" else lambda each: each.mean):
        table.append((str(name), *cells(errors)))
    return as_markdown(table, "<" + ">" * 6)


def cells(errors: Errors) -> tuple[str, ...]:
    """The errors as a table has them, without the regret."""
    rank = "" if errors.rank is None else f"{errors.rank:.2f}"
    shares = f"{errors.mean:.1%}", f"{errors.median:.1%}", f"{errors.bias:+.1%}", f"{errors.near:.0%}", rank
    return str(errors.runs), *shares


def choices(rows: pd.DataFrame) -> Iterator[str]:
    """What choosing by prediction loses, for works that were measured under several spreads."""
    found = errors_by(rows, ["source", "work"], lambda each: each.regret)
    several = [errors for _, errors in found if errors.runs > 1]
    if not several:
        return
    yield "## The choice that a prediction makes"
    yield (
        f"{len(several)} batches were measured under several meshes or numbers of microbatches. The one that is "
        f"predicted to be the fastest takes {sum(each.regret for each in several) / len(several):.1%} longer than the "
        f"fastest, on average, and is the fastest in {sum(each.regret == 0 for each in several)} of them. Those with "
        f"{LEAST_SPREADS} runs or more, with the largest regret first, at most {LISTED}. In the last two columns the "
        "predictions of each mesh are multiplied by a factor of its own, so that their median error is zero. That is "
        "no prediction, since the factors are of these very rows. It shows what is left if a model has every mesh "
        "right: numbers of microbatches on the same mesh."
    )
    listed = [(name, errors) for name, errors in found if errors.runs >= LEAST_SPREADS][:LISTED]
    exact = dict(errors_by(with_factors(rows), ["source", "work"]))
    table: list[tuple[str, ...]] = [
        ("work", "runs", "rank correlation", "regret", "with factors: rank correlation", "regret")
    ]
    for (source, work), errors in listed:
        both = errors, exact[source, work]
        figures = ("" if each.rank is None else f"{each.rank:.2f}" for each in both)
        regrets = (f"{each.regret:.1%}" for each in both)
        pairs = zip(figures, regrets, strict=True)
        table.append((str(work), str(errors.runs), *(cell for pair in pairs for cell in pair)))
    yield as_markdown(table, "<" + ">" * 5)


def alike(rows: pd.DataFrame) -> Iterator[str]:
    """Groups of rows whose layers do the same work on a device, with the range of their errors."""
    groups = [(name, part["error"]) for name, part in rows.groupby(ALIKE, sort=False) if len(part) >= LEAST_ALIKE]
    groups.sort(key=lambda group: -abs(group[1].mean()))
    if not groups:
        return
    yield (
        "Rows whose layers do the same work on a device differ in layers, batch and the data axis. These are the "
        f"{min(LISTED, len(groups))} groups of {LEAST_ALIKE} or more with the largest mean error. Where the range is "
        "narrow, the error is one of the model, and not of a measurement."
    )
    header = "rows of", "tensor", "pipeline", "embed", "sequences of a microbatch", "runs", "mean error", "from", "to"
    table: list[tuple[str, ...]] = [header]
    for (source, *sizes), error in groups[:LISTED]:
        tensor, pipeline, embed, _, sequences, _ = sizes
        texts = [f"{value:g}" for value in (tensor, pipeline, embed, sequences, len(error))]
        table.append((str(source), *texts, f"{error.mean():+.1%}", f"{error.min():+.1%}", f"{error.max():+.1%}"))
    yield as_markdown(table, "<" + ">" * 8)


def memory(rows: pd.DataFrame) -> Iterator[str]:
    """Published and predicted memory, of the rows of sources that have it."""
    measured = rows[rows[list(MEMORY)].notna().all(axis=1)]
    if measured.empty:
        return
    yield "## Memory"
    yield ABOUT_MEMORY
    table: list[tuple[str, ...]] = [
        ("source", "layers x embed", "mesh", "microbatch", "dtype", "published GB", "predicted GB", "error")
    ]
    for row in measured.to_dict("records"):
        published, predicted = (row[name] for name in MEMORY)
        work = row["source"], row["model"], row["mesh"], f"{row['sequences']:.0f}", row["dtype"]
        table.append((*work, f"{published:.0f}", f"{predicted:.1f}", f"{predicted / published - 1:+.1%}"))
    yield as_markdown(table, "<<<><" + ">" * 3)


def every_row(rows: pd.DataFrame) -> Iterator[str]:
    """A table for each source, the worst row first."""
    yield "## Every row"
    yield (
        "The worst first. The last column is the median error of the other rows of the same model and mesh: a row that "
        "is far from it stands alone."
    )
    header = "layers x embed", "devices", "mesh", "batch", "microbatches", "tokens", "recompute"
    for source, part in worst_first(rows).groupby("source", sort=False):
        yield f"### {source}"
        table: list[tuple[str, ...]] = [(*header, "published s", "predicted s", "error", "others")]
        for row in part.to_dict("records"):
            sizes = (f"{row[name]:.0f}" for name in ("batch_size", "microbatches", "sequence"))
            seconds = (f"{row[name]:.4g}" for name in ("step_seconds", "predicted_seconds"))
            beside = "" if pd.isna(row["beside"]) else f"{row['beside']:+.1%}"
            work = row["model"], f"{row['devices']:.0f}", row["mesh"], *sizes, row["recompute"]
            table.append((*work, *seconds, f"{row['error']:+.1%}", beside))
        yield as_markdown(table, "<><" + ">" * 3 + "<" + ">" * 4)


def without(rows: pd.DataFrame) -> Iterator[str]:
    """The rows that do not count in the errors, with the reason."""
    others = rows[rows["error"].isna()]
    if others.empty:
        yield "There are none."
        return
    table: list[tuple[str, ...]] = [("source", "row of its source", "reason")]
    places = rows.groupby("source").cumcount() + 1
    for row in others.assign(place=places).to_dict("records"):
        table.append((row["source"], str(row["place"]), row["problem"] or "it was not measured"))
    yield as_markdown(table, "<><")


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page and its pictures. Broken input ends the command."""
    parser = parsers.predictions()
    options = parser.parse_args(arguments)
    names = PAGE, PICTURE, PARTS_PICTURE
    paths = [options.out / name for name in names]
    with refusing(parser):
        require_apart(dict(zip(names, paths, strict=True)), [options.file])
        rows = read(options.file)
        known = judged(rows)
        if known.empty:
            raise RecordError(f"{shown(options.file)} has no row that is both predicted and measured")
        for path in paths:
            require_file(path)
        save_text(paths[0], page(rows))
        with mpl.rc_context():
            sns.set_theme(style="whitegrid", rc=REPRODUCIBLE)
            for path, figure in zip(paths[1:], (predicted_figure(known), parts_figure(known)), strict=True):
                save(path, lambda to, drawn=figure: draw(drawn, to, dpi=110))
    print("\n".join(map(str, paths)))


if __name__ == "__main__":
    run_command(main)
