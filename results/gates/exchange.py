"""A gate's report for other programs: JUnit XML, and HEAD's values for github-action-benchmark and Bencher."""

import json
from typing import Any
from xml.etree import ElementTree

from benchmarks.cases.columns import column_of
from benchmarks.cli.parser import one_line
from results.gates.report import cells, summary
from results.gates.verdict import RED, Report


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
