"""Writes a run as CSV or Markdown: `meshmark export RUN.json --format markdown`."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from benchmarks.cli.ending import refusing
from benchmarks.cli.outputs import require_apart, require_file, save_text
from results.compare import milliseconds
from results.formats import FORMS
from results.gates.counters import KEPT
from results.records.reading import read_run, records_of
from results.words import ending

Record = Mapping[str, Any]

SHORT = ("strategy", "mesh", "batch", "step time", "95% interval", "tokens/s", "time/single", "MiB/device", "")
SIDES = "<<>><>>><"
NEEDED = (
    *(*KEPT, "strategy", "mesh", "global_batch_sequences", "tokens_per_second", "memory.total_bytes"),
    *("step_seconds_median", "step_seconds_low", "step_seconds_high", "relative_to_single"),
)
"""Columns that a record must have for the short table."""


def short(record: Record) -> tuple[str, ...]:
    """Return a case's row of the short table: step time, throughput, memory, and why it failed if it did."""
    low, high, held = (record[name] for name in ("step_seconds_low", "step_seconds_high", "memory.total_bytes"))
    return (
        *(str(record["strategy"]), " ".join(filter(None, (record["mesh"], record.get("options"))))),
        *(number(record["global_batch_sequences"], ",.0f"), milliseconds(record["step_seconds_median"])),
        "" if low is None else f"{1e3 * low:,.2f} to {1e3 * high:,.2f}",
        *(number(record["tokens_per_second"], ",.0f"), number(record["relative_to_single"], ".2f")),
        *(number(None if held is None else held / 2**20, ",.1f"), "" if record["status"] == "ok" else ending(record)),
    )


def number(value: float | None, spec: str) -> str:
    """Format a number, or return "" if it is unknown.

    >>> number(1234.5, ",.0f"), number(None, ",.0f")
    ('1,234', '')
    """
    return "" if value is None else format(value, spec)


def chosen(records: Sequence[Record], columns: Sequence[str]) -> list[list[str]]:
    """Return a header and the stored values of some columns, without rounding."""
    known = dict.fromkeys(name for record in records for name in record)
    for name in columns:
        if name not in known:
            like = ", ".join(get_close_matches(name, known, n=3, cutoff=0.3)) or ", ".join([*known][:3])
            raise ValueError(f"--columns: no column is called {name!r}; there are {like}, ... (see the docs)")
    return [
        [*columns],
        *(["" if record.get(name) is None else str(record[name]) for name in columns] for record in records),
    ]


def table(records: Sequence[Record], form: str, columns: Sequence[str]) -> str:
    """Return records as a table in one of `FORMS`; without names of columns Markdown has a short one, and CSV all."""
    if form == "markdown" and not columns:
        return FORMS[form]([SHORT, *map(short, records)], SIDES)
    others = dict.fromkeys(name for record in records for name in record if name not in ("name", "samples"))
    rows = chosen(records, columns or ["name", *others])
    return FORMS[form](rows, "<" * len(rows[0]))


def main(options: argparse.Namespace) -> None:
    """Run the command."""
    if options.out:
        require_apart({"--out": options.out}, [options.run])
        require_file(options.out, "md" if options.format == "markdown" else "csv")
    with refusing():
        if options.at is not None or options.dtype != "float32":
            raise ValueError("--at and --dtype are of a checkpoint; pass --to-huggingface FOLDER, or remove them")
        if options.format is None:
            raise ValueError("a run is written as CSV or Markdown; pass --format csv or --format markdown")
        records = records_of(options.run, read_run(options.run), NEEDED)
        written = f"{table(records, options.format, options.columns)}\n"
    if options.out:
        save_text(options.out, written)
    else:
        sys.stdout.write(written)
