"""Draws a pipeline schedule: a row for each stage, and a cell for each operation at its tick.

meshmark schedule zb-h1 --stages 4 --microbatches 8 --json | meshmark timeline zb-h1.png
"""

from collections.abc import Sequence

from benchmarks.commandline.ending import run as run_command
from results.cli import parsers
from results.cli.ending import read_stdin
from results.figures.pictures import draw_output
from results.figures.timeline import timeline
from results.records.schedules import WRITTEN_BY, read


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = parsers.timeline()
    out = parser.parse_args(arguments).out
    draw_output(parser, lambda: timeline(read(read_stdin())), out, way_out=WRITTEN_BY, dpi=144)


if __name__ == "__main__":
    run_command(main)
