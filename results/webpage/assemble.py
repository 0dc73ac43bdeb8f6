"""Assembles the HTML page from its template, its data and its scripts into one file that works offline."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from results.figures.marks import DODGE, LOG_SPAN
from results.figures.palette import PART_COLOURS, TIME_COLOURS, in_order, strategy_looks, symbol_path
from results.figures.search import TIMES as CANDIDATE_TIMES
from results.figures.tables import PARTS, TIMES
from results.webpage.columns import DERIVED
from results.webpage.words import LOUD

SCRIPTS = "format", "charts", "table", "details", "run", "search", "main"
"""The page's scripts in load order: each uses only those before it."""


def page(title: str, sections: Sequence[str], data: Mapping[str, Any]) -> str:
    """Return the whole page as HTML.

    The title is plain text. Sections are those of `run_section` and `search_section`, and `data` is what `looks`
    returns, and `parts`, the data of each section.
    """
    return Template(static("page.html")).substitute(
        title=escape(title),
        style=static("page.css"),
        sections="\n".join(sections),
        data=embedded(json.dumps(data, allow_nan=False, separators=(",", ":"))),
        script="\n".join(static(f"{name}.js") for name in SCRIPTS),
    )


def looks(strategies: Sequence[str]) -> dict[str, Any]:
    """Return how the page draws strategies and parts of bars: as figures do."""

    def parts(names: Mapping[str, str], colours: Mapping[str, str]) -> list[dict[str, str]]:
        columns = {label: name if "." in name else DERIVED + name for label, name in names.items()}
        return [{"label": label, "name": name, "colour": colours[label]} for label, name in columns.items()]

    found = strategy_looks(in_order(strategies))
    return {
        "looks": {name: {"colour": each.colour, "path": symbol_path(each.marker)} for name, each in found.items()},
        "log_span": LOG_SPAN,
        "dodge": DODGE,
        "memory": parts(PARTS, PART_COLOURS),
        "time": parts(TIMES, TIME_COLOURS),
        "candidate": [{"label": label, "name": DERIVED + name} for name, (_, label) in CANDIDATE_TIMES.items()],
    }


def run_section(summary: Sequence[str], machine: Mapping[str, str]) -> str:
    """Return the HTML of the section about runs: sentences, and facts about the machine by label, in plain text."""
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
