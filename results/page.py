"""Writes an HTML page about runs and searches: `meshmark page RUN.json [MORE.json] --out page.html`.

The page is one file that works offline, of the templates, the style and the scripts in `results/webpage/static`.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from benchmarks.cli.outputs import require_apart, require_file, save_text, short
from results.figures.marks import DODGE, LOG_SPAN
from results.figures.palette import PART_COLOURS, TIME_COLOURS, in_order, strategy_looks, symbol_path
from results.figures.search import TIMES as CANDIDATE_TIMES
from results.figures.tables import PARTS, TIMES, workloads
from results.records.documents import is_search, read_search
from results.records.reading import RecordError, as_run, read_json
from results.records.rows import table_of
from results.webpage.data import DERIVED, machine_facts, run_data, search_data
from results.webpage.words import LOUD, heading, search_words, summary
from strategies.files import shown

SCRIPTS = "format", "charts", "table", "details", "run", "search", "main"
"""The page's scripts in load order: each uses only those before it."""


def main(options: argparse.Namespace) -> None:
    """Run the command."""
    out = options.out or options.files[0].with_suffix(".html")
    require_apart({"--out" if options.out else "the page": out}, options.files)
    require_file(out, "html")
    save_text(out, page_of(options.files))
    print(short(out))


def page_of(paths: Sequence[Path]) -> str:
    """Return the HTML page about some files: all runs share one section, and each search has its own."""
    contents = [(path, read_json(path)) for path in paths]
    searches = [(path, content) for path, content in contents if is_search(content)]
    runs = [(path, as_run(path, content)) for path, content in contents if not is_search(content)]
    parts, sections, titles = [], [], []
    if runs:
        rows = table_of(runs)
        parts.append(run_data(rows))
        words = [sentence for _, part in workloads(rows) for sentence in summary(part)]
        facts = machine_facts(dict(runs)).items()
        machine = "\n".join(f"    <dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
        sections.append(filled("run.html", summary=items(words), machine=machine))
        titles.append(heading(rows))
    for number, (path, content) in enumerate(searches, start=len(parts)):
        facts, rows = read_search(path, content)
        if rows["scaling"].notna().any():
            raise RecordError(f"{shown(path)} is of several numbers of devices; draw it with `meshmark plot`")
        parts.append(search_data(facts, rows))
        titles.append(f"{facts['preset']} on {facts['topology']}")
        words = items(search_words(facts, rows))
        sections.append(filled("search.html", number=number, title=escape(f"Search: {titles[-1]}"), summary=words))
    data = {**looks([name for part in parts for name in part["strategies"]]), "parts": parts}
    return filled(
        "page.html",
        title=escape("; ".join(dict.fromkeys(titles))),
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


def filled(template: str, **parts: object) -> str:
    """Return one of the page's templates with its parts filled in."""
    return Template(static(template)).substitute(parts)


def static(name: str) -> str:
    """Return the text of one of the page's static files."""
    return (files("results.webpage") / "static" / name).read_text(encoding="utf-8")
