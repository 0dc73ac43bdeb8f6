"""From what a search found to the data that its page carries: a density, the frontier, and the compiled candidates."""

from typing import Any

import numpy as np
import pandas as pd

from results.figures.feasibility import BYTES, SHOWN, SPEED, beaten_by_none, what_was_searched
from results.webpage.columns import column, plain
from results.webpage.words import many, size

CELLS = 48, 32
"""Of the density: along memory and along throughput."""
TABLE = [
    *("rank", "status", "strategy", "mesh", "microbatches", "remat", "options"),
    *(f"formula.{name}" for name in (BYTES, SPEED, "sent_bytes", "bubble", "bound")),
    *(f"compiled.{name}" for name in (BYTES, SPEED, "status", "reason")),
]
"""What the page says of a candidate, as far as the search wrote it."""


def search_data(facts: dict[str, Any], rows: pd.DataFrame) -> dict[str, Any]:
    """What a search found, as JSON can carry it.

    Returns:
        `capacity_bytes` of a device; `density`, how many candidates there are by memory and throughput; `frontier`, the
        numbers of the rows that are on it; and `columns` as in `run_data`, of the candidates to name.
    """
    rows = rows.assign(options=rows["options"].fillna("") if "options" in rows else "")
    frontier = beaten_by_none(rows)
    named = rows.loc[sorted({*frontier.index, *compiled(rows).index, *foremost(rows).index})]
    known = {name: [plain(value) for value in named[name]] for name in TABLE if name in named}
    known["frontier"] = [bool(value) for value in named.index.isin(frontier.index)]
    return {
        "count": len(named),
        "columns": {name: column(values) for name, values in known.items()},
        "capacity_bytes": facts["capacity_bytes"],
        "largest_bytes": SHOWN * facts["capacity_bytes"],
        "density": density(rows, SHOWN * facts["capacity_bytes"]),
        "strategies": list(rows["strategy"].unique()),
    }


def density(rows: pd.DataFrame, largest: float) -> dict[str, Any]:
    """How many feasible candidates there are in each cell, by formula: edges in bytes and tokens/s, counts by row."""
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
    """The candidates of which a compiler said how much memory they need."""
    return rows.dropna(subset=f"compiled.{BYTES}")


def foremost(rows: pd.DataFrame) -> pd.DataFrame:
    """The best candidate of each strategy and set of mesh axes; a search lists its best first."""
    feasible = rows[rows["status"] != "infeasible"]
    axes = feasible["mesh"].str.replace(r"=\d+", "", regex=True) if "mesh" in feasible else feasible["strategy"]
    return feasible.groupby([feasible["strategy"], axes], sort=False).head(1)


def search_words(facts: dict[str, Any], rows: pd.DataFrame) -> list[str]:
    """The summary of a search in sentences."""
    status = rows["status"].value_counts()
    fitting, large, infeasible = (int(status.get(each, 0)) for each in ("fits", "too_large", "infeasible"))
    sentences = [
        f"{many(len(rows), 'candidate')} of {what_was_searched(facts)}; a device has {size(facts['capacity_bytes'])}.",
        f"By formula {fitting:,} fit, {large:,} need more memory than a device has, and {infeasible:,} are infeasible.",
    ]
    best = beaten_by_none(rows)
    if len(best):
        row = best.iloc[-1]
        name = f"{row['strategy']} ({row['mesh']})" if "mesh" in row else row["strategy"]
        speed, needed = f"{row[f'formula.{SPEED}']:,.0f}", size(row[f"formula.{BYTES}"])
        sentences.append(f"The fastest that fits is {name}: at most {speed} tokens/s per device, in {needed}.")
    asked = compiled(rows)
    over = int((asked[f"compiled.{BYTES}"] > facts["capacity_bytes"]).sum())
    return [
        *sentences,
        f"{many(len(asked), 'candidate')} were compiled; {over} of them did not fit.",
        "Throughputs are bounds by published figures: everything overlaps, and only pipeline bubbles wait.",
    ]
