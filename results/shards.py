"""Draws which device holds which part of each array, as `jax.debug.visualize_array_sharding` colours them.

python -m strategies show three_d --mesh fsdp=4,tensor=2 --json | python -m results.shards shards.png
"""

from collections.abc import Sequence

from benchmarks.commandline.ending import run as run_command
from benchmarks.commandline.outputs import require_picture, save
from results import parsers
from results.figures.pictures import FORMATS, draw
from results.figures.shards import MOST_DEVICES, figure_of
from results.records.overviews import WRITTEN_BY, read
from results.records.reading import RecordError
from results.refusing import read_stdin, refusing


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = parsers.shards()
    out = parser.parse_args(arguments).out
    with refusing(parser, WRITTEN_BY):
        require_picture(out, FORMATS)
        overviews = read(read_stdin(), MOST_DEVICES)
        if len(overviews) != 1:
            raise RecordError(f"stdin has {len(overviews)} overviews, and a picture is of one")
        figure = figure_of(overviews[0])
        save(out, lambda path: draw(figure, path))


if __name__ == "__main__":
    run_command(main)
