"""Converts the result of a search to the page's data: the best candidates, and those compiled or measured."""

from typing import Any

import pandas as pd

from results.figures.search import TIMES, counts_by_status, drawn_candidates, how_certain, tried, what_was_searched
from results.webpage.columns import DERIVED, as_json, column
from results.words import many, size

TABLE = [
    *("rank", "status", "strategy", "mesh", "microbatches", "remat", "options"),
    *("needed_bytes", "sent_bytes", "bubble", "tokens_per_second", "model_flops_utilization"),
    *("compiled.needed_bytes", "compiled.exposed_seconds", "compiled.reason", "measured.reason"),
    *(DERIVED + name for name in (*TIMES, "waits_for")),
]
"""Columns of a candidate on the page; columns that the file lacks are left out."""


def search_data(facts: dict[str, Any], rows: pd.DataFrame) -> dict[str, Any]:
    """Return what `read_search` returns as values that JSON can represent, with the columns of drawn candidates."""
    shown = drawn_candidates(rows)
    shown = shown.rename(columns={name: DERIVED + name for name in TIMES} | {"limit": f"{DERIVED}waits_for"})
    return {
        "count": len(shown),
        "columns": {name: column([as_json(value) for value in shown[name]]) for name in TABLE if name in shown},
        "capacity_bytes": facts["capacity_bytes"],
        "strategies": list(rows["strategy"].unique()),
    }


def search_words(facts: dict[str, Any], rows: pd.DataFrame) -> list[str]:
    """Return the summary of a search as sentences in plain text."""
    fitting, large, infeasible = counts_by_status(rows)
    first = drawn_candidates(rows).iloc[0]
    words = zip(TIMES, ("by roofline", "as predicted", "as compiled", "as measured"), strict=True)
    times = ", ".join(f"{first[name]:,.0f} ms {word}" for name, word in words if pd.notna(first[name]))
    compiled, measured = (
        int(tried(rows)[name].notna().sum()) for name in ("compiled.needed_bytes", "measured.seconds")
    )
    over = int((rows["compiled.needed_bytes"] > facts["capacity_bytes"]).sum())
    return [
        f"{many(len(rows), 'candidate')} of {what_was_searched(facts)}; a device has {size(facts['capacity_bytes'])}.",
        f"By formula, {fitting:,} fit into {size(facts['usable_bytes'])}, {large:,} need more memory, "
        f"and {infeasible:,} are infeasible.",
        f"The predicted best is {first['strategy']} ({first['mesh']}): a step takes {times}. "
        f"It needs {size(first['needed_bytes'])} by formula.",
        f"{many(compiled, 'candidate')} were compiled; {over} of them did not fit. {measured} were measured.",
        how_certain(facts),
        "The roofline is the time of the matmuls at the chip's peak or of the communication, whichever is longer. As "
        "compiled, the communication that the compiler's schedule leaves exposed replaces that of the prediction.",
    ]
