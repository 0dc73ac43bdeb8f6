"""Draws a replayed step as lanes: compute, memory traffic and waits of a device, and what its links send.

Of a predicted pipeline each stage is a row.

meshmark compile --topology h100:16x8 --strategy fsdp --preset gpt3-6.7b --dtype bfloat16 --trace step.json
meshmark lanes step.json
"""

from collections.abc import Sequence

from benchmarks.commandline.ending import run as run_command
from results.cli import parsers
from results.figures.lanes import lanes
from results.figures.pictures import draw_file
from results.records.traces import read


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = parsers.lanes()
    options = parser.parse_args(arguments)
    draw_file(parser, options, lambda path: lanes(read(path), options.between))


if __name__ == "__main__":
    run_command(main)
