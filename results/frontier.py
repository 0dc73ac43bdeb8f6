"""Draws the result of a search: memory per device against the upper bound on throughput, for every candidate.

The search is `python -m benchmarks.feasibility --json FILE`.

python -m results.frontier FILE [--out PICTURE]
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import matplotlib as mpl
import msgspec
import pandas as pd
import seaborn as sns
from msgspec import Meta

from benchmarks.commandline.ending import run as run_command
from results import parsers
from results.figures.feasibility import BYTES, SPEED, figure_of
from results.figures.pictures import REPRODUCIBLE, draw, draw_file
from results.records.reading import check_rows, read_document
from strategies.files import shown
from strategies.schema import Amount, Count, Number, Positive, Scalar

SCHEMA_VERSION = 1
WRITTEN_BY = "`python -m benchmarks.feasibility --json FILE`"
NUMBERS = [f"{source}.{name}" for source in ("formula", "compiled") for name in (BYTES, SPEED)]
COLUMNS = {
    **{"status": str, "strategy": str, "mesh": str | None},
    **dict.fromkeys(NUMBERS, Amount | None),
}
"""Columns that a candidate has, with their types; it has others."""


class Trial(msgspec.Struct, frozen=True):
    """The fastest compiled step with other values of options, and the part of its time that they save."""

    options: dict[str, Scalar]
    compiled_seconds: Positive | None
    saves: Number | None


class Search(msgspec.Struct, frozen=True):
    """The result of a search; the fields but `candidates` are facts that all candidates share."""

    topology: str
    chip: str
    devices: Count
    capacity_bytes: Count
    preset: str
    param_count: Count
    global_batch_sequences: Count
    sequence_tokens: Count
    dtype: str
    candidates: Annotated[list[dict[str, Scalar]], Meta(min_length=1)]
    trials: list[Trial] = []


def read(path: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Read the file that a search wrote.

    Returns:
        The facts that all candidates share, and a table with a row for each candidate.

    Raises:
        RecordError: the file cannot be read, or the search did not write it.
    """
    facts = msgspec.structs.asdict(read_document(path, "feasibility", SCHEMA_VERSION, Search, WRITTEN_BY))
    candidates = facts.pop("candidates")
    check_rows(candidates, COLUMNS, f"{shown(path)}: candidates")
    rows = pd.DataFrame(candidates)
    rows[NUMBERS] = rows[NUMBERS].apply(pd.to_numeric)
    return facts, rows


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
