"""Assembles the HTML page from its template, its data and Plotly into one file that works offline."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from benchmarks.commandline.outputs import Unwritable
from results.webpage.words import LOUD

SCRIPTS = "format", "charts", "table", "details", "run", "density", "main"
"""The page's scripts in load order: each uses only those before it."""


class PlotlyMissing(Unwritable):
    """Plotly is not installed; the message names the command that installs it."""


def plotly_source() -> str:
    """Return the source of Plotly as one JavaScript text.

    Raises:
        PlotlyMissing: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise PlotlyMissing(
            "a page needs plotly; pip install 'meshmark[page]', or in the checkout, pip install -e '.[page]'"
        ) from error
    return get_plotlyjs()


def page(title: str, sections: Sequence[str], data: Mapping[str, Any], plotly: str) -> str:
    """Return the whole page as HTML.

    Args:
        title: plain text; it is escaped here.
        sections: HTML from `run_section` and `search_section`.
        data: `strategies`, in the order that assigns their colours, and `parts`, the data of each section.
        plotly: the source of Plotly.

    Raises:
        ValueError: `data` contains NaN or an infinity.
    """
    return Template(static("page.html")).substitute(
        title=escape(title),
        style=static("page.css"),
        sections="\n".join(sections),
        data=embedded(json.dumps(data, allow_nan=False, separators=(",", ":"))),
        plotly=plotly,
        script="\n".join(static(f"{name}.js") for name in SCRIPTS),
    )


def run_section(summary: Sequence[str], machine: Mapping[str, str]) -> str:
    """Return the HTML of the section about runs.

    Args:
        summary: sentences in plain text.
        machine: facts about the machine, by label.
    """
    facts = "\n".join(f"    <dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in machine.items())
    return Template(static("run.html")).substitute(summary=items(summary), machine=facts)


def search_section(number: int, title: str, summary: Sequence[str]) -> str:
    """Return the HTML of the section about one search; `number` is the index of its data in `parts`."""
    return Template(static("search.html")).substitute(number=number, title=escape(title), summary=items(summary))


def items(sentences: Sequence[str]) -> str:
    """Return sentences as HTML list items; the warning about a noisy run gets the class "loud"."""
    loud = {True: ' class="loud"', False: ""}
    return "\n".join(f"    <li{loud[text.startswith(LOUD)]}>{escape(text)}</li>" for text in sentences)


def embedded(text: str) -> str:
    """Escape JSON for a script element, so that no text in it can end the element.

    >>> embedded('"</script>"')
    '"\\\\u003c/script>"'
    """
    return text.replace("<", "\\u003c")


def static(name: str) -> str:
    """Return the text of one of the page's static files."""
    return (files("results.webpage") / "static" / name).read_text(encoding="utf-8")
