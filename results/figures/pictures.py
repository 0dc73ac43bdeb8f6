"""Figures as files: the supported formats, and settings that make the files reproducible."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import matplotlib as mpl
import seaborn as sns
from matplotlib.axis import Axis
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, NullFormatter

from benchmarks.commandline.outputs import require_picture, save
from results.cli.ending import write_output

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


@contextmanager
def themed() -> Iterator[None]:
    """Draw in the theme of seaborn's curves, reproducibly."""
    with mpl.rc_context():
        sns.set_theme(style="whitegrid", rc=REPRODUCIBLE)
        yield


def draw_file(
    parser: ArgumentParser,
    options: Namespace,
    figure_of: Callable[[Path], Figure],
    theme: Callable[[], AbstractContextManager[None]] = nullcontext,
    dpi: int = 150,
) -> None:
    """Run a command that draws one file. By default the picture is the file with the suffix ".png".

    Args:
        parser: of the command.
        options: `file` and `out`.
        figure_of: reads the file and returns its figure; may raise `RecordError`.
        theme: what the figure is drawn in.
        dpi: resolution in dots per inch.
    """
    out, name = options.out or options.file.with_suffix(".png"), "--out" if options.out else "the picture"
    with theme():
        draw_output(parser, lambda: figure_of(options.file), out, [options.file], name=name, dpi=dpi)


def draw_output(
    parser: ArgumentParser,
    make: Callable[[], Figure],
    out: Path,
    inputs: Iterable[Path] = (),
    *,
    name: str = "--out",
    way_out: str = "",
    dpi: int = 150,
) -> None:
    """Run a command that writes a picture; the arguments are those of `write_output`."""

    def write(path: Path, figure: Figure) -> None:
        save(path, lambda to: draw(figure, to, dpi))

    def check(path: Path) -> None:
        require_picture(path, FORMATS)

    write_output(parser, make, out, inputs, name=name, way_out=way_out, check=check, write=write)
