"""The page that compares predicted with published seconds: its tables in Markdown, and every row as CSV."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.cli.accuracy import Errors
from benchmarks.cli.outputs import require_apart, save, save_text
from results.figures.pictures import draw, themed
from results.figures.predictions import WORST, parts_figure, predicted_figure, worst_first
from results.records.predictions import AXES, MEMORY, SECONDS, errors_of, fitted, judged, read
from results.records.reading import RecordError
from results.reports.tables import as_csv, as_markdown
from strategies.files import read_text, shown

PAGE, TABLE, PICTURE, PARTS_PICTURE = "published.md", "published.csv", "published.png", "published-parts.png"
BEGIN, END = "<!-- written by `meshmark plot` -->", "<!-- end of what is written -->"
"""The command replaces what stands between these lines of a page, and keeps the rest, which is written by hand."""
EMPTY = f"# Predicted against published\n\n{BEGIN}\n{END}\n"
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
AIMS = {"dense models": 0.1, "mixtures of experts": 0.12}
"""Kinds of models -> the largest mean error of their seconds that is aimed at, for each machine file."""
LEAST_RUNS = 6
"""Of a kind of model by a machine file, for which the aim counts."""
FSDP_FILE, FSDP_ERROR = "h100_fsdp", 0.08
"""The machine file of PyTorch FSDP on H100s, and the largest mean error of its runs that is aimed at."""
SIMUMAX, SIMUMAX_ERROR, SIMUMAX_MEMORY = "MooreThreads/SimuMax", 0.056, 0.05
"""A source that prints errors of its own predictions; their mean, which is to be beaten; and the aim for its memory."""
LIMITS = {"rank correlation": f"least {LEAST_RANK}", "regret": f"most {MOST_REGRET:.0%}"}
ROW = {
    **{"source": "source", "model": "layers x embed", "devices": "devices", "mesh": "mesh", "batch_size": "batch"},
    **{"microbatches": "microbatches", "sequence": "tokens", "recompute": "recompute", "dtype": "dtype"},
    **{"measured_seconds": "published_seconds", "predicted_seconds": "predicted_seconds", "error": "error"},
    **{"peak_memory_gib": "published_memory_gib", "predicted_memory_gib": "predicted_memory_gib"},
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
        *aims(known),
        "## Errors",
        errors_table(known),
        f"![Predicted against published seconds of a step, a panel for each source with fitted rows]({PICTURE})",
        f"Where the predicted time goes in the {WORST} worst rows of each of these sources:",
        f"![Parts of the predicted time of the worst rows, relative to the published time]({PARTS_PICTURE})",
        *choices(known),
        *memory(rows),
    ]
    return "\n\n".join([head + BEGIN, *parts, END + tail])


def aims(rows: pd.DataFrame) -> Iterator[str]:
    """Yield which aims are met, if any is of such rows."""
    seconds = *aims_for_seconds(rows), *aims_for_fsdp(rows), *aims_for_simumax(rows)
    table = [("aim", "reached", "met"), *seconds, *aims_for_choices(rows)]
    if len(table) == 1:
        return
    yield "## Aims"
    yield (
        "Aims for seconds are by machine file and kind of model, of which there are at "
        f"least {LEAST_RUNS} runs. If the file was fitted, the larger of two mean errors counts: that of all these "
        "runs, or that of rows that the fit left out, which may be of both kinds."
    )
    yield as_markdown(table, "<<<")


def aims_for_seconds(rows: pd.DataFrame) -> Iterator[tuple[str, str, str]]:
    """Yield the aims for errors of machine files."""
    has_experts = pd.Series(rows.get("experts", ""), rows.index) != ""
    for kind, part in (("dense models", rows[~has_experts]), ("mixtures of experts", rows[has_experts])):
        files = {name: own for name, own in part.groupby("machine.name") if len(own) >= LEAST_RUNS}
        missed = {name: error for name, own in files.items() if (error := larger_error(own)) > AIMS[kind]}
        names = ", ".join(f"{name} {error:.1%}" for name, error in missed.items())
        reached = f"{len(files) - len(missed)} of {len(files)} machine files" + (f"; not {names}" if missed else "")
        if files:
            yield f"mean error of seconds of {kind} at most {AIMS[kind]:.0%}", reached, met(not missed)


def aims_for_fsdp(rows: pd.DataFrame) -> Iterator[tuple[str, str, str]]:
    """Yield the aim for PyTorch FSDP on H100s, if there are such runs."""
    theirs = rows[rows["machine.name"] == FSDP_FILE]
    if not theirs.empty:
        aim, error = f"mean error of seconds of PyTorch FSDP on H100s at most {FSDP_ERROR:.0%}", larger_error(theirs)
        yield aim, f"{error:.1%}", met(error <= FSDP_ERROR)


def aims_for_simumax(rows: pd.DataFrame) -> Iterator[tuple[str, str, str]]:
    """Yield the aims for SimuMax's runs, if there are any."""
    theirs = rows[rows["source"].str.contains(SIMUMAX)]
    if not theirs.empty:
        mean, memory = errors_of(theirs).mean, (theirs[MEMORY[1]] / theirs[MEMORY[0]] - 1).abs().max()
        below = f"mean error of seconds of SimuMax's runs below its own, {SIMUMAX_ERROR:.1%}"
        yield below, f"{mean:.1%}", met(mean < SIMUMAX_ERROR)
        largest = f"memory of each of SimuMax's runs at most {SIMUMAX_MEMORY:.0%} off"
        yield largest, f"{memory:.1%}", met(memory <= SIMUMAX_MEMORY)


def aims_for_choices(rows: pd.DataFrame) -> Iterator[tuple[str, str, str]]:
    """Yield the aims for groups of configurations, if there are any."""
    found = {batch: within_limits(groups) for batch, groups in groups_of(rows).items() if groups}
    for place, (name, limit) in enumerate(LIMITS.items() if found else ()):
        within = {batch: [group[place] for group in groups] for batch, groups in found.items()}
        reached = ", ".join(f"{sum(of)} of {len(of)} with {batch} batch" for batch, of in within.items())
        yield f"{name} at {limit} in each group of configurations", reached, met(all(map(all, within.values())))


def met(is_met: bool) -> str:
    """Return the answer in a table."""
    return "yes" if is_met else "no"


def larger_error(rows: pd.DataFrame) -> float:
    """Return the mean error of rows of a machine file, or that of what its fit left out if it is larger."""
    left_out = 0.0 if fitted(rows).empty else rows["machine.error"].iloc[0]
    return max(errors_of(rows).mean, left_out)


def errors_table(rows: pd.DataFrame) -> str:
    """Return the errors of each source and machine file, and the error of rows that the machine's fit did not see."""
    shares_of = "mean error", "median", "bias", "within 10%"
    table: list[tuple[str, ...]] = [("source", "machine file", "runs", *shares_of, "rank correlation", "left out")]
    for (source, name), part in rows.groupby(["source", "machine.name"], sort=False):
        errors = errors_of(part)
        shares = f"{errors.mean:.1%}", f"{errors.median:.1%}", f"{errors.bias:+.1%}", f"{errors.near:.0%}"
        left_out = "not fitted" if fitted(part).empty else f"{part['machine.error'].iloc[0]:.1%}"
        table.append((str(source), str(name), str(errors.runs), *shares, errors.rank_text, left_out))
    return as_markdown(table, "<<" + ">" * 7)


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
    """Return the groups of configurations that are compared, of any batch and of the same."""
    return {"any": compared(rows, WORK), "the same": compared(rows, [*WORK, "batch_size"])}


def within_limits(found: list[tuple[str, Errors]]) -> list[tuple[bool, bool]]:
    """Return of each group whether its rank correlation and its regret are within `LIMITS`."""
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


def memory(rows: pd.DataFrame) -> Iterator[str]:
    """Yield the errors of predicted memory, of each source that published some and machine file."""
    measured = rows[rows[list(MEMORY)].notna().all(axis=1)]
    if measured.empty:
        return
    yield "## Memory"
    table: list[tuple[str, ...]] = [("source", "machine file", "runs", "mean error", "bias", "largest")]
    errors = measured[MEMORY[1]] / measured[MEMORY[0]] - 1
    for (source, name), part in errors.groupby([measured["source"], measured["machine.name"]], sort=False):
        largest = max(part, key=abs)
        shares = f"{part.abs().mean():.1%}", f"{part.mean():+.1%}", f"{largest:+.1%}"
        table.append((str(source), str(name), str(len(part)), *shares))
    yield as_markdown(table, "<<" + ">" * 4)
    if "fits" in rows:
        found = rows["fits"].value_counts()
        of = {words: int(found.get(words, 0)) for words in ("yes", "within the error", "no")}
        runs = int(found.drop("", errors="ignore").sum())
        yield (
            f"All runs ran. Of {runs} whose rows do not contradict themselves, {of['yes']} fit by formulas into the "
            f"memory of their devices as they are, and {runs - sum(of.values())} with layers recomputed, of which "
            f"their rows say nothing. {of['within the error']} exceed it by less than the formulas' error, and "
            f"{of['no']} are called too large."
        )


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
