"""Puts a page together from its template, its data and Plotly: one file that works without a network."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

SCRIPTS = "format", "charts", "table", "details", "run", "density", "main"
"""In the order in which they use each other."""
LOUD = "This run is noisy"


class PlotlyMissing(ValueError):
    """Plotly is not installed; the message says how to."""


def plotly_source() -> str:
    """Plotly as one script.

    Raises:
        PlotlyMissing: it is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise PlotlyMissing(
            "a page needs plotly; pip install 'meshmark[page]', or in the checkout, pip install -e '.[page]'"
        ) from error
    return get_plotlyjs()


def page(title: str, sections: Sequence[str], data: Mapping[str, Any], plotly: str) -> str:
    """The whole page.

    Args:
        title: what it is about; any text.
        sections: HTML, as `run_section` and `search_section` write it.
        data: `strategies`, in the order in which they get their colours, and `parts`, the data of each section.
        plotly: a script.
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
    """What the page has about runs."""
    facts = "\n".join(f"    <dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in machine.items())
    return Template(static("run.html")).substitute(summary=items(summary), machine=facts)


def search_section(number: int, title: str, summary: Sequence[str]) -> str:
    """What the page has about a search; `number` is the place of its data among the parts."""
    return Template(static("search.html")).substitute(number=number, title=escape(title), summary=items(summary))


def items(sentences: Sequence[str]) -> str:
    """Sentences as the items of a list; that of a noisy run is marked."""
    loud = {True: ' class="loud"', False: ""}
    return "\n".join(f"    <li{loud[text.startswith(LOUD)]}>{escape(text)}</li>" for text in sentences)


def embedded(text: str) -> str:
    """JSON as a script element can hold it: nothing in it ends the element.

    >>> embedded('"</script>"')
    '"\\\\u003c/script>"'
    """
    return text.replace("<", "\\u003c")


def static(name: str) -> str:
    """A file of the page's own."""
    return (files("results.webpage") / "static" / name).read_text(encoding="utf-8")
