"""Draws predicted time of a step and utilization against devices, for strong and weak scaling.

python -m benchmarks.advise --preset gpt3-6.7b --topology h100:1x8 --batch-size 2048 --scaling 8..16384 --json FILE
python -m results.scaling FILE [--out PICTURE]
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import matplotlib as mpl
import msgspec
import pandas as pd
import seaborn as sns
from msgspec import Meta

from benchmarks.commandline.ending import run as run_command
from results import parsers
from results.figures.palette import Limit
from results.figures.pictures import REPRODUCIBLE, draw, draw_file
from results.figures.scaling import figure_of
from results.records.reading import read_document
from strategies.files import shown
from strategies.schema import Amount, Count, Positive, checked_fields

SCHEMA_VERSION = 1
WRITTEN_BY = "`python -m benchmarks.advise --scaling N..N --json FILE`"
POINT: dict[str, Any] = {"scaling": Literal["strong", "weak"], "devices": Count, "batch_size": Count}
"""Columns that a point has, with their types; it has others."""
CHOICE: dict[str, Any] = {
    **{"strategy": str, "mesh": str, "limit": Limit},
    **dict.fromkeys(("predicted_seconds", "tokens_per_second", "model_flops_utilization"), Positive),
}
"""Columns of what was chosen at a point; None where nothing fits."""


class Scaling(msgspec.Struct, frozen=True):
    """Predicted times against devices; the fields but the last are facts that all points share."""

    device: str
    preset: str
    sequence_tokens: Count
    dtype: str
    machine: str
    error: Amount
    points: Annotated[list[dict[str, Any]], Meta(min_length=1)]


def read(path: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Read the file that `python -m benchmarks.advise --scaling` wrote.

    Returns:
        The facts that all points share, and a table with a row for each point.

    Raises:
        RecordError: the file cannot be read, or another command wrote it.
    """
    facts = msgspec.structs.asdict(read_document(path, "scaling", SCHEMA_VERSION, Scaling, WRITTEN_BY))
    points = facts.pop("points")
    for number, point in enumerate(points):
        fits = point.get("predicted_seconds") is not None
        checked_fields(point, POINT | (CHOICE if fits else {}), f"{shown(path)}: points[{number}]")
    return facts, pd.DataFrame(points)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""

    def draw_found(found: tuple[dict[str, Any], pd.DataFrame], path: Path) -> None:
        with mpl.rc_context():
            sns.set_theme(style="whitegrid", rc=REPRODUCIBLE)
            draw(figure_of(*found), path, dpi=110)

    parser = parsers.scaling()
    draw_file(parser, parser.parse_args(arguments), read, draw_found)


if __name__ == "__main__":
    run_command(main)
