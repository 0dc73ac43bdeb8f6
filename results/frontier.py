"""Draws the result of a search: memory per device against the upper bound on throughput, for every candidate.

The search is `python -m benchmarks.feasibility --json FILE`.

python -m results.frontier FILE [--out PICTURE]
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns

from benchmarks.commandline.ending import run as run_command
from results import parsers
from results.figures.feasibility import BYTES, SPEED, figure_of
from results.figures.pictures import REPRODUCIBLE, draw, draw_file
from results.records.reading import RecordError, check_kinds, is_amount, is_text, read_json

SCHEMA_VERSION = 1
FACTS = {
    "topology": str,
    "chip": str,
    "devices": int,
    "capacity_bytes": int,
    "preset": str,
    "param_count": int,
    "global_batch_sequences": int,
    "sequence_tokens": int,
    "dtype": str,
}
NUMBERS = [f"{source}.{name}" for source in ("formula", "compiled") for name in (BYTES, SPEED)]
KEYS = dict.fromkeys(("status", "strategy", "mesh"), is_text) | dict.fromkeys(NUMBERS, is_amount)


def read(path: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Read the file that a search wrote.

    Returns:
        The facts that all candidates share, and a table with a row for each candidate.

    Raises:
        RecordError: the file cannot be read, or the search did not write it.
    """
    document = read_json(path)
    if not isinstance(document, dict) or document.get("kind") != "feasibility":
        raise RecordError(f"{path} was not written by `python -m benchmarks.feasibility --json FILE`")
    if document.get("schema_version") != SCHEMA_VERSION:
        raise RecordError(f"{path} has schema {document.get('schema_version')}, not {SCHEMA_VERSION}; run it again")
    for fact, kind in FACTS.items():
        if type(document.get(fact)) is not kind:
            raise RecordError(f"{path}: {fact} is {document.get(fact)!r}, not {kind.__name__}; run it again")
        if kind is int and document[fact] < 1:
            raise RecordError(f"{path}: {fact} is {document[fact]}, not at least 1; run it again")
    candidates = document.get("candidates")
    if not isinstance(candidates, list) or not candidates or not all(isinstance(each, dict) for each in candidates):
        raise RecordError(f"{path}: `candidates` is not a list of rows; run the search again")
    for candidate in candidates:
        check_kinds(f"{path}: candidate {candidate.get('rank')}", candidate, KEYS)
    rows = pd.DataFrame(candidates)
    rows[NUMBERS] = rows[NUMBERS].apply(pd.to_numeric)
    return {fact: document[fact] for fact in FACTS}, rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""

    def draw_found(found: tuple[dict[str, Any], pd.DataFrame], path: Path) -> None:
        with mpl.rc_context():
            sns.set_theme(style="whitegrid", rc=REPRODUCIBLE)
            draw(figure_of(*found), path)

    parser = parsers.frontier()
    draw_file(parser, parser.parse_args(arguments), read, draw_found)


if __name__ == "__main__":
    run_command(main)
