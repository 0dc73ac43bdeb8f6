"""Converts the result of a search to the page's data: the best candidates and the compiled ones."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from results.figures.feasibility import (
    BYTES,
    SPEED,
    TIMES,
    best_of_each_mesh,
    compiled,
    counts_by_status,
    what_was_searched,
    with_times,
)
from results.records.documents import Trial
from results.records.reading import RecordError
from results.webpage.columns import DERIVED, as_json, column
from results.webpage.words import many, size

TABLE = [
    *("rank", "status", "strategy", "mesh", "microbatches", "remat", "options"),
    *(f"formula.{name}" for name in (BYTES, SPEED, "sent_bytes", "bubble", "bound")),
    *(f"compiled.{name}" for name in (BYTES, SPEED, "status", "reason")),
    *(DERIVED + name for name in TIMES),
]
"""Columns of a candidate on the page; columns that the search did not write are left out."""


def search_data(facts: dict[str, Any], rows: pd.DataFrame) -> dict[str, Any]:
    """Return the result of a search as values that JSON can represent.

    Args:
        facts: the facts that all candidates share, from `read_search`.
        rows: the candidates, best first, from the same function.

    Returns:
        `count`, the number of candidates on the page: the compiled ones, and the best of each strategy and set of mesh
        axes; `columns`, their values as in `run_data`; `capacity_bytes` of a device; and `strategies`, the names of all
        strategies in the search.

    Raises:
        RecordError: no candidate is feasible.
    """
    if rows[f"formula.{BYTES}"].isna().all():
        raise RecordError("nothing to show, no candidate is feasible; each row's `reason` says why")
    rows = rows.assign(options=rows["options"].fillna("") if "options" in rows else "")
    shown = with_times(facts, rows.loc[sorted({*compiled(rows).index, *best_of_each_mesh(rows).index})])
    shown = shown.rename(columns={name: DERIVED + name for name in TIMES})
    return {
        "count": len(shown),
        "columns": {name: column([as_json(value) for value in shown[name]]) for name in TABLE if name in shown},
        "capacity_bytes": facts["capacity_bytes"],
        "strategies": list(rows["strategy"].unique()),
    }


def search_words(facts: dict[str, Any], rows: pd.DataFrame) -> list[str]:
    """Return the summary of a search as sentences in plain text."""
    fitting, large, infeasible = counts_by_status(rows)
    sentences = [
        f"{many(len(rows), 'candidate')} of {what_was_searched(facts)}; a device has {size(facts['capacity_bytes'])}.",
        f"By formula, {fitting:,} fit, {large:,} need more memory than a device has, "
        f"and {infeasible:,} are infeasible.",
    ]
    fits = with_times(facts, rows[rows["status"] == "fits"]).head(1)
    for row in fits.to_dict("records"):
        words = zip(TIMES, ("at least", "as predicted", "as replayed"), strict=True)
        times = ", ".join(f"{row[name]:,.0f} ms {word}" for name, word in words if pd.notna(row[name]))
        name, needed = f"{row['strategy']} ({row['mesh']})", size(row[f"formula.{BYTES}"])
        sentences.append(f"The first by rank that fits is {name}: a step takes {times}. It needs {needed} by formula.")
    asked = compiled(rows)
    over = int((asked[f"compiled.{BYTES}"] > facts["capacity_bytes"]).sum())
    return [
        *sentences,
        f"{many(len(asked), 'candidate')} were compiled; {over} of them did not fit.",
        *trial_words(facts["trials"]),
        "The least time is by formula, from the chip's published figures: compute, memory traffic and communication "
        "overlap fully, and only pipeline bubbles add time. Replayed times are simulated from the "
        "compiled schedule.",
    ]


def trial_words(trials: Sequence[Trial]) -> list[str]:
    """Return the sentence on what other options of the fastest compiled step would save; none if none were compiled."""
    told = [
        f"{', '.join(f'{name}={value}' for name, value in each.options.items())} {1e3 * each.compiled_seconds:,.1f} ms "
        f"({each.saves:+.1%} saved)"
        for each in trials
        if each.compiled_seconds is not None and each.saves is not None
    ]
    return [f"The fastest compiled step with other options: {'; '.join(told)}."] if told else []
