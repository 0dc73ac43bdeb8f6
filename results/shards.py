"""Draws which device holds which part of each array, as `jax.debug.visualize_array_sharding` colours them.

meshmark show three_d --mesh fsdp=4,tensor=2 --json | meshmark shards shards.png
"""

from collections.abc import Sequence

from matplotlib.figure import Figure

from benchmarks.commandline.ending import run as run_command
from results.cli import parsers
from results.cli.ending import read_stdin
from results.figures.pictures import draw_output
from results.figures.shards import MOST_DEVICES, figure_of
from results.records.overviews import WRITTEN_BY, read
from results.records.reading import RecordError


def figure_of_stdin() -> Figure:
    """Draw the overview on stdin.

    Raises:
        RecordError: stdin has something else, or several overviews.
    """
    overviews = read(read_stdin(), MOST_DEVICES)
    if len(overviews) != 1:
        raise RecordError(f"stdin has {len(overviews)} overviews, and a picture is of one")
    return figure_of(overviews[0])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = parsers.shards()
    draw_output(parser, figure_of_stdin, parser.parse_args(arguments).out, way_out=WRITTEN_BY)


if __name__ == "__main__":
    run_command(main)
