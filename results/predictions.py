"""Writes a page that compares predicted with published seconds, its two pictures, and every row as CSV.

meshmark predict results/published/*.csv --out PREDICTED.csv
meshmark predictions PREDICTED.csv --out docs/reference
"""

from collections.abc import Sequence

from benchmarks.commandline.ending import run as run_command
from benchmarks.commandline.outputs import require_apart, require_file, save, save_text
from results.cli import parsers
from results.cli.ending import refusing
from results.figures.pictures import draw, themed
from results.figures.predictions import parts_figure, predicted_figure
from results.records.predictions import judged, read
from results.records.reading import RecordError
from results.reports.predictions import EMPTY, PAGE, PARTS_PICTURE, PICTURE, TABLE, every_row, page
from strategies.files import read_text, shown


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page, its pictures and its rows. Broken input ends the command."""
    parser = parsers.predictions()
    options = parser.parse_args(arguments)
    names = PAGE, TABLE, PICTURE, PARTS_PICTURE
    paths = [options.out / name for name in names]
    with refusing(parser):
        require_apart(dict(zip(names, paths, strict=True)), [options.file])
        rows = read(options.file)
        known = judged(rows)
        if known.empty:
            raise RecordError(f"{shown(options.file)} has no row that is both predicted and measured")
        for path in paths:
            require_file(path)
        before = read_text(paths[0]) if paths[0].exists() else EMPTY
        save_text(paths[0], page(rows, before))
        save_text(paths[1], every_row(rows))
        with themed():
            for path, figure in zip(paths[2:], (predicted_figure(known), parts_figure(known)), strict=True):
                save(path, lambda to, drawn=figure: draw(drawn, to, dpi=110))
    print("\n".join(map(str, paths)))


if __name__ == "__main__":
    run_command(main)
