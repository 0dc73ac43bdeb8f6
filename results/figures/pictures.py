"""Figures as files: the supported formats, and settings that make the files reproducible."""

from pathlib import Path

from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

FORMATS = frozenset(FigureCanvasBase.get_supported_filetypes())
"""Supported file formats, as endings of file names without the dot."""
# With these settings, figures drawn twice from the same rows are equal files, so a committed figure's diff shows a real
# change.
REPRODUCIBLE = {"svg.hashsalt": "meshmark"}
METADATA = {"png": {}, "svg": {"Date": None}}


def draw(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Write a figure to a file whose ending is the format. `dpi` is the resolution in dots per inch."""
    figure.savefig(path, dpi=dpi, metadata=METADATA.get(path.suffix.removeprefix("."), {}))
