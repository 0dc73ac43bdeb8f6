"""Writes an HTML page about runs and searches: `meshmark page RUN.json [MORE.json] --out page.html`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cli.outputs import require_apart, require_file, save_text, short
from results.figures.tables import workloads
from results.records.documents import is_search, read_search
from results.records.metrics import with_metrics
from results.records.reading import RecordError, as_run, read_json
from results.records.rows import table_of
from results.webpage.assemble import looks, page, run_section, search_section
from results.webpage.candidates import search_data, search_words
from results.webpage.columns import run_data
from results.webpage.machine import machine_facts
from results.webpage.words import heading, summary
from strategies.files import shown


def page_of(paths: Sequence[Path]) -> str:
    """Return the HTML page about some files: all runs share one section, and each search has its own."""
    contents = [(path, read_json(path)) for path in paths]
    searches = [(path, content) for path, content in contents if is_search(content)]
    runs = [(path, as_run(path, content)) for path, content in contents if not is_search(content)]
    parts, sections, titles = [], [], []
    if runs:
        rows = with_metrics(table_of(runs))
        parts.append(run_data(rows))
        words = [sentence for _, part in workloads(rows) for sentence in summary(part)]
        sections.append(run_section(words, machine_facts(dict(runs))))
        titles.append(heading(rows))
    for number, (path, content) in enumerate(searches, start=len(parts)):
        facts, rows = read_search(path, content)
        if rows["scaling"].notna().any():
            raise RecordError(f"{shown(path)} is of several numbers of devices; draw it with `meshmark plot`")
        parts.append(search_data(facts, rows))
        title = f"{facts['preset']} on {facts['topology']}"
        sections.append(search_section(number, f"Search: {title}", search_words(facts, rows)))
        titles.append(title)
    names = [name for part in parts for name in part["strategies"]]
    return page("; ".join(dict.fromkeys(titles)), sections, {**looks(names), "parts": parts})


def main(options: argparse.Namespace) -> None:
    """Run the command."""
    out = options.out or options.files[0].with_suffix(".html")
    require_apart({"--out" if options.out else "the page": out}, options.files)
    require_file(out, "html")
    save_text(out, page_of(options.files))
    print(short(out))
