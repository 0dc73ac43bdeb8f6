"""Helpers for tests of figures: the points and the picture of a figure of runs, and what pictures show."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from results.figures.frame import PLAIN, Style, themed
from results.figures.run import BY_NAME, drawings_of_run, picture
from results.figures.tables import Batch
from results.records.rows import is_counted


def counted(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that count."""
    return rows[is_counted(rows)]


def points_of(rows: pd.DataFrame, name: str, batch: Batch = None) -> pd.DataFrame:
    """All rows as a figure of one workload marks them: it draws those that count."""
    ((_, chosen),) = BY_NAME[name].of(rows, batch)
    return BY_NAME[name].points(chosen)


def drawn(rows: pd.DataFrame, name: str, style: Style = PLAIN, batch: Batch = None) -> Figure:
    """A figure of one workload."""
    with themed(style):
        return picture(BY_NAME[name], points_of(rows, name, batch), style)


def names_of(rows: pd.DataFrame) -> list[str]:
    """The names of the figures that are drawn of rows."""
    return [drawing.name for drawing in drawings_of_run(rows, PLAIN)]


def legend_of(figure: Figure) -> list[str]:
    """The entries of the legends of a figure."""
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def bars_of(axes: Axes) -> dict[str, list[tuple[float, float, float]]]:
    """The height, start and width of the bars of each part of a stacked chart that has a width."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for part in (each for each in axes.containers if isinstance(each, BarContainer)):
        bars = [(bar.get_y(), bar.get_x(), bar.get_width()) for bar in part if bar.get_width()]
        found.setdefault(str(part.get_label()).lstrip("_"), []).extend(bars)
    return {part: bars for part, bars in found.items() if bars}
