"""Draws predicted time of a step and utilization against devices, for strong and weak scaling.

meshmark search --preset gpt3-6.7b --topology h100:1x8 --batch-size 2048 --scaling 8..16384 --json FILE
meshmark scaling FILE [--out PICTURE]
"""

from collections.abc import Sequence

from benchmarks.commandline.ending import run as run_command
from results.cli import parsers
from results.figures.pictures import draw_file, themed
from results.figures.scaling import figure_of
from results.records.documents import read_scaling


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = parsers.scaling()
    draw_file(parser, parser.parse_args(arguments), lambda path: figure_of(*read_scaling(path)), themed, dpi=110)


if __name__ == "__main__":
    run_command(main)
