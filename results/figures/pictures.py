"""Figures as files: the supported formats, and settings that make the files reproducible."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import matplotlib as mpl
from matplotlib.axis import Axis
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, NullFormatter

from benchmarks.commandline.outputs import require_apart, require_picture, save
from results.refusing import refusing

Content = TypeVar("Content")

FORMATS = frozenset(FigureCanvasBase.get_supported_filetypes())
"""Supported file formats, as endings of file names without the dot."""
# With these settings, figures drawn twice from the same rows are equal files, so a committed figure's diff shows a real
# change.
REPRODUCIBLE = {"svg.hashsalt": "meshmark"}
mpl.rcParams["text.parse_math"] = False
"""Names are drawn as they are: a name with `$` in it is no formula. Log axes need `plain_ticks`."""
METADATA = {"png": {}, "svg": {"Date": None}}


def plain_ticks(axis: Axis) -> None:
    """Label a log axis without formulas, which is what matplotlib does by default."""
    axis.set_major_formatter(LogFormatter())
    axis.set_minor_formatter(NullFormatter())


def draw(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Write a figure to a file whose ending is the format. `dpi` is the resolution in dots per inch."""
    figure.savefig(path, dpi=dpi, metadata=METADATA.get(path.suffix.removeprefix("."), {}))


def draw_file(
    parser: ArgumentParser,
    options: Namespace,
    read: Callable[[Path], Content],
    draw_content: Callable[[Content, Path], None],
) -> None:
    """Run a command that draws one file, and print the name of the picture. Broken input ends the command.

    Args:
        parser: of the command.
        options: `file`, and `out`, by default the file with the suffix ".png".
        read: reads the file; may raise `RecordError`.
        draw_content: draws what was read to a path.
    """
    out = options.out or options.file.with_suffix(".png")
    with refusing(parser):
        require_apart({"--out" if options.out else "the picture": out}, [options.file])
        content = read(options.file)
        require_picture(out, FORMATS)
        save(out, lambda path: draw_content(content, path))
    print(out)
