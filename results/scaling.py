"""Draws predicted time of a step and utilization against devices, for strong and weak scaling.

python -m benchmarks.advise --preset gpt3-6.7b --topology h100:1x8 --batch-size 2048 --scaling 8..16384 --json FILE
python -m results.scaling FILE [--out PICTURE]
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns

from benchmarks.commandline.ending import run as run_command
from results import parsers
from results.figures.pictures import REPRODUCIBLE, draw, draw_file
from results.figures.scaling import figure_of
from results.records.reading import RecordError, check_kinds, is_amount, is_text, read_json

SCHEMA_VERSION = 1
FACTS = {"device": str, "preset": str, "sequence_tokens": int, "dtype": str, "machine": str, "error": float}
NUMBERS = "devices", "batch_size", "predicted_seconds", "tokens_per_second", "model_flops_utilization"
KEYS = {**dict.fromkeys(("scaling", "strategy", "mesh", "limit"), is_text), **dict.fromkeys(NUMBERS, is_amount)}


def read(path: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Read the file that `python -m benchmarks.advise --scaling` wrote.

    Returns:
        The facts that all points share, and a table with a row for each point.

    Raises:
        RecordError: the file cannot be read, or another command wrote it.
    """
    document = read_json(path)
    if not isinstance(document, dict) or document.get("kind") != "scaling":
        raise RecordError(f"{path} was not written by `python -m benchmarks.advise --scaling N..N --json FILE`")
    if document.get("schema_version") != SCHEMA_VERSION:
        raise RecordError(f"{path} has schema {document.get('schema_version')}, not {SCHEMA_VERSION}; run it again")
    for fact, kind in FACTS.items():
        if type(document.get(fact)) is not kind:
            raise RecordError(f"{path}: {fact} is {document.get(fact)!r}, not {kind.__name__}; run it again")
    points = document.get("points")
    if not isinstance(points, list) or not points or not all(isinstance(each, dict) for each in points):
        raise RecordError(f"{path}: `points` is not a list of rows; run it again")
    for point in points:
        check_kinds(f"{path}: {point.get('devices')} devices", point, KEYS)
    return {fact: document[fact] for fact in FACTS}, pd.DataFrame(points)


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
