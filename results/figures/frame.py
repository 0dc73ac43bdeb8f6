"""What surrounds the axes of all figures: the record of a figure, its size, title, caption and legend, and its file."""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib import figure as mpl_figure
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties

from results.figures.palette import GREY
from results.figures.tables import Batch

mpl.rcParams["text.parse_math"] = False
"""Names are drawn as they are: a `$` in a name does not begin a formula."""
REPRODUCIBLE = {"svg.hashsalt": "meshmark", "pdf.fonttype": 42}
"""Figures drawn twice from the same rows are equal files, and PDF files embed fonts that journals accept."""
FONT_SIZE = 11.0
NARROW = 5.0
"""Inches. The legend of a narrower figure is below its axes."""
LETTER = 0.48
"""Mean width of a letter over the size of its font."""
DPI = 150
BELOW = "below"
"""Mark of a legend below the axes."""


class Style(NamedTuple):
    """How figures are drawn: width and height in inches, by default what the content needs; the font's size in points;
    and whether they have a title and remarks; a paper has its own.
    """

    size: tuple[float, float] | None = None
    font_size: float = FONT_SIZE
    title: bool = True


PLAIN = Style()
INTERVALS = "Error bars are 95% intervals."


class Figure(NamedTuple):
    """A figure of runs. It is drawn if some of its points count.

    Attributes:
        name: its file, without a suffix.
        of: (all rows, batch) -> a label and all rows for each picture; what the picture is not about is left out.
        points: these rows -> all rows; only those that are drawn count (`metrics.is_counted`).
        draw: (the points that count, style) -> the picture, without a title.
        remark: points -> what the caption says besides.
        sweeps: whether a picture shows several workloads, so that none lies in the folder of one.
    """

    name: str
    heading: str
    of: Callable[[pd.DataFrame, Batch], Iterable[tuple[str, pd.DataFrame]]]
    points: Callable[[pd.DataFrame], pd.DataFrame]
    draw: Callable[[pd.DataFrame, Style], mpl_figure.Figure]
    remark: Callable[[pd.DataFrame], str] = lambda points: INTERVALS
    sweeps: bool = False


class Drawing(NamedTuple):
    """A picture that is drawn when it is called for; its name is its path in the folder, without a suffix."""

    name: str
    figure: Callable[[], mpl_figure.Figure]


@contextmanager
def themed(style: Style = PLAIN) -> Iterator[None]:
    """Draw in the theme of all figures, reproducibly."""
    with mpl.rc_context():
        sns.set_theme(style="whitegrid", font_scale=style.font_size / 12, rc=REPRODUCIBLE)
        thin = style.font_size / FONT_SIZE
        mpl.rcParams.update({"lines.linewidth": 1.4 * thin, "lines.markersize": 6.5 * thin, "axes.linewidth": 0.8})
        yield


def opened(
    style: Style, panels: int = 1, size: tuple[float, float] | None = None, columns: int = 0, **others: Any
) -> tuple[mpl_figure.Figure, list[Axes]]:
    """Open a figure with panels in a grid: one below another if it is narrow, otherwise up to three side by side.

    `size` is in inches, of a figure whose style has none. `others` are arguments of matplotlib's `subplots`; by default
    panels share both axes.
    """
    narrow = style.size is not None and style.size[0] < NARROW
    columns = columns or (1 if narrow else 2 if panels == 4 else min(panels, 3))
    lines = -(-panels // columns)
    figure = mpl_figure.Figure(figsize=style.size or size or (4.6 + 2.6 * columns, 1.4 + 3.0 * lines))
    figure.set_layout_engine("constrained")
    grid = list(figure.subplots(lines, columns, squeeze=False, **{"sharex": True, "sharey": True, **others}).flat)
    for unused in grid[panels:]:
        unused.remove()
    return figure, grid[:panels]


def named_axes(panels: Sequence[Axes], x: str, y: str) -> None:
    """Name the horizontal axis below the lowest panel of each column, and the vertical one on the left of each row."""
    places = [axes.get_subplotspec() for axes in panels]
    rows = {place.rowspan.start for place in places if place}
    for axes, place in zip(panels, places, strict=True):
        lowest = place is not None and place.rowspan.start == max(
            other.rowspan.start for other in places if other and other.colspan.start == place.colspan.start
        )
        axes.set_xlabel(x if lowest else "")
        axes.set_ylabel(y if place and place.is_first_col() and len(rows) == 1 else "")
        axes.tick_params(labelbottom=lowest)
    if len(rows) > 1:
        figure = panels[0].get_figure(root=True)
        if figure:
            figure.supylabel(y, fontsize=mpl.rcParams["axes.labelsize"])


def described(
    figure: mpl_figure.Figure, style: Style, title: Sequence[str], caption: Sequence[str], remarks: Sequence[str] = ()
) -> mpl_figure.Figure:
    """Write the title in one line, and below the axes the remarks that change what one may conclude.

    The title is what is shown, and facts, the most important first; those that do not fit are left out. The file has
    title, caption and remarks in its metadata. A style without a title omits the remarks, too.
    """
    lines = [title[0], *(f"{title[0]}: {', '.join(title[1:end])}" for end in range(2, len(title) + 1))]
    figure.set_label(" ".join(filter(None, [f"{lines[-1]}.", *caption, *remarks])))
    if style.title:
        letters = letters_in(figure.get_figwidth() - 0.3, style.font_size)
        one_line = max((line for line in lines if len(line) <= letters), key=len, default=title[0])
        size = style.font_size * min(1, letters / len(one_line))
        figure.suptitle(one_line, x=0.01, ha="left", fontsize=size)
        footer(figure, " ".join(filter(None, remarks)), 0.75 * style.font_size)
    return figure


def footer(figure: mpl_figure.Figure, text: str, size: float) -> None:
    """Write text below the axes, as the title of a legend that is already below: the layout has no room for both."""
    lines = "\n".join(textwrap.wrap(text, letters_in(figure.get_figwidth() - 0.3, size)))
    below = next((each for each in figure.legends if each.get_gid() == BELOW), None)
    if not below:
        figure.supxlabel(lines, x=0.01, ha="left", fontsize=size, color=GREY)
    elif lines:
        below.set_title(lines, prop=FontProperties(size=size))
        below.get_title().set_color(GREY)


def letters_in(inches: float, points: float) -> int:
    """Return how many letters of a font fit into a line."""
    return max(10, int(inches * 72 / (LETTER * points)))


def caption_of(figure: mpl_figure.Figure) -> str:
    """Return what `described` was given."""
    return str(figure.get_label())


def legend(
    figure: mpl_figure.Figure, handles: Sequence[Artist] = (), title: str | None = None, *, below: bool = False
) -> None:
    """Name each handle and each labelled artist of the axes once: on the right; below a narrow figure."""
    labelled = [*handles, *(handle for axes in figure.axes for handle in axes.get_legend_handles_labels()[0])]
    unique = {str(handle.get_label()): handle for handle in labelled}
    if not unique:
        return
    size = FontProperties(size=mpl.rcParams["legend.fontsize"]).get_size_in_points()
    below = below or figure.get_figwidth() < NARROW
    style: dict[str, Any] = {"loc": "outside right center"}
    if below:
        columns = letters_in(figure.get_figwidth() - 0.2, size) // (max(map(len, unique)) + 5)
        style = {"loc": "outside lower center", "ncols": max(1, min(len(unique), columns)), "alignment": "left"}
        style |= {"columnspacing": 1.0, "handlelength": 1.4, "labelspacing": 0.25}
    made = figure.legend(list(unique.values()), list(unique), title=title, frameon=False, **style)
    made.set_gid(BELOW if below else None)


def save(figure: mpl_figure.Figure, path: Path) -> None:
    """Write a figure to a file whose suffix is the format, with its caption where the format has room for one."""
    caption = caption_of(figure)
    metadata = {
        "png": {"Description": caption},
        "svg": {"Description": caption, "Date": None},
        "pdf": {"Subject": caption, "CreationDate": None},
    }
    figure.savefig(path, dpi=DPI, metadata=metadata.get(path.suffix.removeprefix(".").lower(), {}))
