"""Figures as files: the supported formats, and settings that make the files reproducible."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
import seaborn as sns
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, NullFormatter

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
