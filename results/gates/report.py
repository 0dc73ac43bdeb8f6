"""Formats a gate's report: for the terminal, as Markdown for a pull request, and for other programs.

These read JUnit XML, and HEAD's values for github-action-benchmark and Bencher.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree import ElementTree

from benchmarks.cases.columns import column_of
from benchmarks.cli.parser import one_line
from benchmarks.cli.tables import aligned
from results.formats import escaped
from results.gates.verdict import RED, Finding, Report

# GitHub refuses a comment of more than 65,536 characters, and there may be two tables in it.
TABLE_LETTERS = 30_000
INDENT = "  "
DECIDING = RED | {"inconclusive"}


def terminal(report: Report) -> str:
    """Format a report as text: the changes case by case, a summary, and remarks."""
    return "\n".join([*changed_lines(report), summary(report), *map(one_line, report.remarks)]) + "\n"


def changed_lines(report: Report) -> list[str]:
    """Return the lines of a heading and of the changes, case by case."""
    shared = shared_words(report)
    changed = changes(report)
    widths = [max(map(len, column)) for column in zip(*map(cells, itertools.chain(*changed.values())), strict=True)]
    lines = [*heading(report, shared), ""]
    for case, findings in changed.items():
        lines += [own_words(case, shared), *table_of(findings, widths), ""]
    return lines


def table_of(findings: Sequence[Finding], widths: Sequence[int]) -> Iterator[str]:
    """Yield the lines of a case's findings, with equal column widths in all cases.

    A finding about the whole case has no metric and leaves out the columns of values.
    """
    for of_case, group in itertools.groupby(findings, key=lambda finding: not finding.metric):
        rows = [(found[0], found[-1]) if of_case else found for found in map(cells, group)]
        least = (widths[0], 0) if of_case else (*widths[:-1], 0)
        yield from aligned(rows, least=least, indent=INDENT)


def markdown(report: Report) -> str:
    """Format a report as Markdown: the verdict, the findings that decided it, and the other changes collapsed."""
    shared = shared_words(report)
    changed = [finding for findings in changes(report).values() for finding in findings]
    deciding = [finding for finding in changed if finding.word in DECIDING]
    folded = [finding for finding in changed if finding.word not in DECIDING]
    title, *about = map(escaped, heading(report, shared))
    lines = [f"### {title}", "", f"**{escaped(summary(report))}**", ""]
    lines += [f"- {line}" for line in (*about, *map(escaped, report.remarks))]
    lines += ["", *markdown_table(deciding, shared)]
    if folded:
        words = counted_words(Counter(finding.word for finding in folded))
        lines += ["<details>", f"<summary>and {words}</summary>", "", *markdown_table(folded, shared), "</details>"]
    return "\n".join(lines).rstrip() + "\n"


def changes(report: Report) -> dict[str, list[Finding]]:
    """Return the changed findings by case, without cases that have none."""
    shown = {case: [finding for finding in findings if finding.changed] for case, findings in report.cases().items()}
    return {case: findings for case, findings in shown.items() if findings}


def shared_words(report: Report) -> list[str]:
    """Return the words that the names of all cases share, which the heading states once."""
    cases = [case.split() for case in report.cases()]
    return [word for word in cases[0] if all(word in case for case in cases)] if len(cases) > 1 else []


def own_words(case: str, shared: Sequence[str]) -> str:
    """Return the name of a case without the words that all cases share."""
    return one_line(" ".join(word for word in case.split() if word not in shared))


def heading(report: Report, shared: Sequence[str]) -> list[str]:
    """Return the title, and the words that all cases share if there are any."""
    return [one_line(report.title), *([one_line(f"all cases: {' '.join(shared)}")] if shared else [])]


def summary(report: Report) -> str:
    """Return the verdict with the number of cases by their gravest finding, or with the reason of a refusal."""
    counts = Counter(findings[0].word for findings in report.cases().values())
    return one_line(f"{report.verdict}: {report.reason or counted_words(counts)}")


def counted_words(counts: Counter) -> str:
    """List counts.

    >>> counted_words(Counter(worse=1, same=38))
    '1 worse, 38 same'
    """
    return ", ".join(f"{count} {word}" for word, count in counts.items()) or "nothing was compared"


def cells(finding: Finding) -> tuple[str, ...]:
    """Return the cells of a finding: word, metric, values, ratio and note."""
    column = column_of(finding.metric)
    values = f"{number(finding.base)} -> {number(finding.head)} {column.unit}" if column else ""
    return finding.word, finding.metric, values, ratio(finding), one_line(finding.note)


def number(value: float | None) -> str:
    """Format a value: whole numbers in full, others with six significant digits, unknown ones as "-".

    >>> number(2097152), number(0.12345678), number(None)
    ('2,097,152', '0.123457', '-')
    """
    if value is None:
        return "-"
    return f"{int(value):,}" if value % 1 == 0 else f"{value:,.6g}"


def ratio(finding: Finding) -> str:
    """Format the ratio of HEAD to BASE, with its bounds if it has any; "" if it is unknown."""
    if finding.ratio is None:
        return ""
    bounds = " ({:.3f} to {:.3f})".format(*finding.interval) if finding.interval else ""
    return f"{finding.ratio:.3f}x{bounds}"


def markdown_table(findings: Sequence[Finding], shared: Sequence[str]) -> Iterator[str]:
    """Yield a table of findings that names each case once, truncated to fit into a GitHub comment."""
    if not findings:
        return
    yield "| case | | metric | base -> head | ratio | |"
    yield "|---|---|---|---|---|---|"
    named, letters_left = "", TABLE_LETTERS
    for shown, finding in enumerate(findings):
        case = own_words(finding.case, shared) if finding.case != named else ""
        line = f"| {' | '.join(map(escaped, (case, *cells(finding))))} |"
        named, letters_left = finding.case, letters_left - len(line)
        if letters_left < 0:
            yield f"\n... and {len(findings) - shown} more"
            break
        yield line
    yield ""


def junit(report: Report) -> str:
    """Format a report as JUnit XML, one test per case: red cases are failures, inconclusive ones are skipped."""
    suite = ElementTree.Element("testsuite", name=one_line(report.title))
    for case, findings in report.cases().items():
        test = ElementTree.SubElement(suite, "testcase", classname="meshmark", name=one_line(case))
        word = findings[0].word
        outcome = "failure" if word in RED else "skipped" if word == "inconclusive" else "system-out"
        element = ElementTree.SubElement(test, outcome)
        lines = [" ".join(filter(None, cells(finding))) for finding in findings]
        element.text = "\n".join(lines)
        if outcome != "system-out":
            element.set("message", lines[0])
    if report.verdict in ("not comparable", "broken input"):
        test = ElementTree.SubElement(suite, "testcase", classname="meshmark", name="comparison")
        ElementTree.SubElement(test, "error", message=summary(report))
    for attribute, tag in {"tests": "testcase", "failures": "failure", "skipped": "skipped", "errors": "error"}.items():
        suite.set(attribute, str(len(list(suite.iter(tag)))))
    ElementTree.indent(suite)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(suite, encoding="unicode")}\n'


def action_json(report: Report) -> str:
    """Format the metrics that are better when lower for github-action-benchmark's `tool: customSmallerIsBetter`.

    https://github.com/benchmark-action/github-action-benchmark#examples
    """
    entries = []
    for measure in report.measures:
        column = column_of(measure.metric)
        if column and column.better == "lower":
            entry = {"name": f"{one_line(measure.case)} {measure.metric}", "unit": column.unit, "value": measure.value}
            if measure.low is not None and measure.high is not None:
                entry["range"] = f"{measure.low:.6g} to {measure.high:.6g}"
            entries.append(entry | {"extra": f"better: {column.better}"})
    return "[\n" + ",\n".join(map(json.dumps, entries)) + "\n]\n"


def bencher_json(report: Report) -> str:
    """Format HEAD's values in Bencher Metric Format: one benchmark per case, one measure per metric.

    https://bencher.dev/docs/reference/bencher-metric-format
    """
    benchmarks: dict[str, dict[str, Any]] = {}
    for measure in report.measures:
        bounds = {"value": measure.value, "lower_value": measure.low, "upper_value": measure.high}
        known = {name: value for name, value in bounds.items() if value is not None}
        benchmarks.setdefault(one_line(measure.case), {})[measure.metric] = known
    return json.dumps(benchmarks, indent=1) + "\n"
