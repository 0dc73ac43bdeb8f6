"""Pictures as files: the formats that can be drawn, and the settings with which one picture is one file."""

from pathlib import Path

from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

FORMATS = frozenset(FigureCanvasBase.get_supported_filetypes())
"""The endings of file names that say which kind of picture it is."""
# Figures drawn twice from the same rows are the same files, so that a committed one shows what changed.
REPRODUCIBLE = {"svg.hashsalt": "meshmark"}
METADATA = {"png": {}, "svg": {"Date": None}}


def draw(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Write a figure as the kind of picture that the ending of the path says."""
    figure.savefig(path, dpi=dpi, metadata=METADATA.get(path.suffix.removeprefix("."), {}))
