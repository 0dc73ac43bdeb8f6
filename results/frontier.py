"""Draws the result of a search: times and memory of the best candidates.

meshmark search --topology h100:8x8 --preset gpt3-6.7b --batch-size 512 --json FILE
meshmark frontier FILE [--out PICTURE]
"""

from collections.abc import Sequence

from benchmarks.commandline.ending import run as run_command
from results.cli import parsers
from results.figures.pictures import draw_file, themed
from results.figures.search import figure_of
from results.records.documents import read_search


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = parsers.frontier()
    draw_file(parser, parser.parse_args(arguments), lambda path: figure_of(*read_search(path)), themed)


if __name__ == "__main__":
    run_command(main)
