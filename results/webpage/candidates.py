"""Converts the result of a search to the page's data: the density of candidates, the frontier, the compiled ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from results.figures.feasibility import BYTES, SHOWN, SPEED, beaten_by_none, what_was_searched
from results.frontier import Trial
from results.records.reading import RecordError
from results.webpage.columns import column, plain
from results.webpage.words import many, size

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
        facts: the facts that all candidates share, from `results.frontier.read`.
        rows: the candidates, best first, from the same function.

    Returns:
        `count`, the number of listed candidates: the frontier, the compiled ones, and the best of each strategy and set
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
    listed = rows.loc[sorted({*frontier.index, *compiled(rows).index, *foremost(rows).index})]
    values = {name: [plain(value) for value in listed[name]] for name in TABLE if name in listed}
    values["frontier"] = [bool(value) for value in listed.index.isin(frontier.index)]
    return {
        "count": len(listed),
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
        "bytes": [plain(edge) for edge in across],
        "speed": [plain(edge) for edge in up],
        "count": counted.T.astype(int).tolist(),
    }


def compiled(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the candidates whose memory the compiler reported."""
    return rows.dropna(subset=f"compiled.{BYTES}")


def foremost(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the best candidate of each strategy and set of mesh axes; a search lists the best candidates first."""
    feasible = rows[rows["status"] != "infeasible"]
    axes = feasible["mesh"].str.replace(r"=\d+", "", regex=True) if "mesh" in feasible else feasible["strategy"]
    return feasible.groupby([feasible["strategy"], axes], sort=False).head(1)


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
