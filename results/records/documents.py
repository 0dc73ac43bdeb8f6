"""Reads the JSON documents of searches: shared facts, and a table of candidates."""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pandas as pd
from msgspec import Meta

from results.records.reading import read_document
from strategies.files import shown
from strategies.schema import Amount, Count, Number, Scalar, checked_fields

SCHEMA_VERSION = 3
WRITTEN_BY = "`meshmark search --json FILE`"
Limit = Literal[
    "matmuls",
    "memory bandwidth",
    "links inside a host",
    "network between hosts",
    "latency",
    "launches",
    "pipeline bubble",
]
"""What limits a step, as a search names it."""
NUMBERS = (
    *("needed_bytes", "bound_seconds", "predicted_seconds", "model_flops_utilization"),
    *("compiled.needed_bytes", "compiled.seconds", "measured.seconds"),
)
CANDIDATE: dict[str, Any] = {
    "status": Literal["fits", "too_large", "infeasible"],
    **{"scaling": Literal["strong", "weak"] | None, "devices": Count, "global_batch_sequences": Count},
    **{"strategy": str, "mesh": str, "microbatches": Count, "remat": str, "options": dict[str, Scalar]},
    **{"waits_for": dict[Limit, Number] | None},
    **dict.fromkeys(NUMBERS, Amount | None),
}
"""Columns of a candidate, with their types; it has others."""
SHOWN: dict[str, Any] = {"parts": dict[str, Number] | None, **dict.fromkeys(["bubble"], Amount | None)}
"""Columns that it may lack, of which the page shows what is there."""


class Search(msgspec.Struct, frozen=True):
    """The result of a search; on several numbers of devices, the facts are those of the first."""

    topology: str
    devices: Count
    capacity_bytes: Count
    usable_bytes: Count
    machine: str | None
    interval: tuple[Amount, Amount] | None
    preset: str
    param_count: Count
    global_batch_sequences: Count
    sequence_tokens: Count
    dtype: str
    candidates: Annotated[list[dict[str, Any]], Meta(min_length=1)]


def is_search(document: Any) -> bool:
    """Return whether a document was written by a search; `read_search` refuses those of older versions as such."""
    return isinstance(document, dict) and document.get("kind") in ("search", "feasibility", "scaling")


def read_search(path: Path, document: Any = None) -> tuple[dict[str, Any], pd.DataFrame]:
    """Read the file that a search wrote; `document` is its content, if it was read before.

    Returns the facts that all candidates share, and a row for each candidate, best first; `limit` is what it waits for
    most.
    """
    facts = msgspec.structs.asdict(read_document(path, "search", SCHEMA_VERSION, Search, WRITTEN_BY, document))
    candidates = facts.pop("candidates")
    for number, row in enumerate(candidates):
        kinds = CANDIDATE | {name: kind for name, kind in SHOWN.items() if name in row}
        checked_fields(row, kinds, f"{shown(path)}: candidates[{number}]")
    rows = pd.DataFrame(candidates)
    rows["options"] = [", ".join(f"{name}={value}" for name, value in options.items()) for options in rows["options"]]
    rows["limit"] = [next(iter(shares or {}), "") for shares in rows["waits_for"]]
    rows[[*NUMBERS]] = rows[[*NUMBERS]].apply(pd.to_numeric)
    return facts, rows
