"""Converts the result of a search to the page's data: the density of candidates, the frontier, the compiled ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from results.figures.curves import frontier as pareto
from results.figures.feasibility import BYTES, SPEED, best_of_each_mesh, compiled, what_was_searched
from results.records.documents import Trial
from results.records.reading import RecordError
from results.webpage.columns import as_json, column
from results.webpage.words import many, size

SHOWN = 1.5
"""Candidates that need more than this many times a device's memory are not on the axis."""
CELLS = 48, 32
"""Number of histogram cells along memory and along throughput."""
TABLE = [
    *("rank", "status", "strategy", "mesh", "microbatches", "remat", "options"),
    *(f"formula.{name}" for name in (BYTES, SPEED, "sent_bytes", "bubble", "bound")),
    *(f"compiled.{name}" for name in (BYTES, SPEED, "status", "reason")),
]
"""Columns of a candidate on the page; columns that the search did not write are left out."""


def search_data(facts: dict[str, Any], rows: pd.DataFrame) -> dict[str, Any]:
    """Return the result of a search as values that JSON can represent.

    Args:
        facts: the facts that all candidates share, from `read_search`.
        rows: the candidates, best first, from the same function.

    Returns:
        `count`, the number of found candidates: the frontier, the compiled ones, and the best of each strategy and set
        of mesh axes; `columns`, their values as in `run_data`, where `frontier` is a flag; `capacity_bytes` of a
        device; `largest_bytes`, the end of the memory axis; `density`, the number of candidates by memory and
        throughput; and `strategies`, the names of all strategies in the search.

    Raises:
        RecordError: no candidate is feasible.
    """
    if rows[f"formula.{BYTES}"].isna().all():
        raise RecordError("nothing to show, no candidate is feasible; each row's `reason` says why")
    rows = rows.assign(options=rows["options"].fillna("") if "options" in rows else "")
    frontier = beaten_by_none(rows)
    found = rows.loc[sorted({*frontier.index, *compiled(rows).index, *best_of_each_mesh(rows).index})]
    values = {name: [as_json(value) for value in found[name]] for name in TABLE if name in found}
    values["frontier"] = [bool(value) for value in found.index.isin(frontier.index)]
    return {
        "count": len(found),
        "columns": {name: column(of_rows) for name, of_rows in values.items()},
        "capacity_bytes": facts["capacity_bytes"],
        "largest_bytes": SHOWN * facts["capacity_bytes"],
        "density": density(rows, SHOWN * facts["capacity_bytes"]),
        "strategies": list(rows["strategy"].unique()),
    }


def density(rows: pd.DataFrame, largest: float) -> dict[str, Any]:
    """Count the feasible candidates in each cell of memory and throughput, both by formula.

    Args:
        rows: the candidates.
        largest: end of the memory axis, in bytes.

    Returns:
        `bytes` and `speed`, the edges of the cells in bytes and in tokens/s per device; and `count[speed][bytes]`.
    """
    feasible = rows.dropna(subset=[f"formula.{BYTES}", f"formula.{SPEED}"])
    speeds = feasible[f"formula.{SPEED}"]
    counted, across, up = np.histogram2d(
        feasible[f"formula.{BYTES}"], speeds, bins=CELLS, range=[[0, largest], [0, 1.05 * max(speeds.max(), 1e-9)]]
    )
    return {
        "bytes": [as_json(edge) for edge in across],
        "speed": [as_json(edge) for edge in up],
        "count": counted.T.astype(int).tolist(),
    }


def beaten_by_none(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the candidates on the frontier of those that fit, by formula, smallest first."""
    names = {f"formula.{BYTES}": "memory.total_bytes", f"formula.{SPEED}": "tokens_per_second"}
    best = pareto(rows[rows["status"] == "fits"].rename(columns=names))
    return best.rename(columns={new: old for old, new in names.items()})


def search_words(facts: dict[str, Any], rows: pd.DataFrame) -> list[str]:
    """Return the summary of a search as sentences in plain text."""
    status = rows["status"].value_counts()
    fitting, large, infeasible = (int(status.get(each, 0)) for each in ("fits", "too_large", "infeasible"))
    sentences = [
        f"{many(len(rows), 'candidate')} of {what_was_searched(facts)}; a device has {size(facts['capacity_bytes'])}.",
        f"By formula, {fitting:,} fit, {large:,} need more memory than a device has, "
        f"and {infeasible:,} are infeasible.",
    ]
    best = beaten_by_none(rows)
    if len(best):
        row = best.iloc[-1]
        name = f"{row['strategy']} ({row['mesh']})" if "mesh" in row else row["strategy"]
        speed, needed = f"{row[f'formula.{SPEED}']:,.0f}", size(row[f"formula.{BYTES}"])
        sentences.append(f"The fastest that fits is {name}: at most {speed} tokens/s per device, using {needed}.")
    asked = compiled(rows)
    over = int((asked[f"compiled.{BYTES}"] > facts["capacity_bytes"]).sum())
    return [
        *sentences,
        f"{many(len(asked), 'candidate')} were compiled; {over} of them did not fit.",
        *trial_words(facts["trials"]),
        "Throughputs by formula are upper bounds from the chip's published figures. "
        "They assume that compute, memory traffic and communication overlap fully; only pipeline bubbles add time. "
        "Those of compiled candidates are simulated from the compiled schedule.",
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
