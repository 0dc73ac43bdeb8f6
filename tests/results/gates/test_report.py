"""Reports of a gate as text, Markdown, JUnit and tracker JSON: each is complete and valid in its format."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cases.columns import gated
from results.gates.counters import read_snapshot
from results.gates.exact import compare
from results.gates.report import action_json, bencher_json, junit, markdown, terminal
from results.gates.verdict import EXIT_CODES, WORDS, Finding, Measure, Report
from tests.results.synthetic import failed, row, write_run

METRICS = gated(row()["extra_info"], "exact", "tracked")
MIXED = Report(
    "exact counters, base.json -> head.json",
    (
        Finding("a nano", "better", "compiled.flops", 200, 150, 0.75),
        Finding("a nano", "worse", "memory.temp_bytes", 1048576, 2097152, 2.0),
        Finding("b nano", "vanished", note="renamed? c is the same program"),
        Finding("c nano", "new", note="ok"),
        Finding("d nano", "same"),
        Finding("e nano", "same", "memory.total_bytes", 100, 101, 1.01, note="allowed: 1%"),
    ),
    remarks=("among the same: 1 another program",),
)
# A report of the paired gate.
PAIRED = Report(
    "paired",
    (
        Finding("fsdp=8", "slower", "step_seconds_median", 0.1, 0.12, 1.2, (1.1, 1.3), "7 launches"),
        Finding("data=8", "inconclusive", "step_seconds_median", 0.1, 0.103, 1.03, (0.9, 1.2)),
        Finding("tensor=8", "same", "step_seconds_median", 0.2, 0.201, 1.005, (0.99, 1.01)),
    ),
    (Measure("fsdp=8", "step_seconds_median", 0.12, 0.11, 0.13), Measure("fsdp=8", "tokens_per_second", 17000.0)),
)
REFUSED = Report("exact", refusal="not comparable", reason="jax is 0.10 in BASE and 0.11 in HEAD")

findings = st.builds(
    Finding,
    case=st.text(max_size=5),
    word=st.sampled_from(WORDS),
    metric=st.sampled_from(["", *METRICS]),
    base=st.none() | st.integers() | st.floats(),
    head=st.none() | st.integers() | st.floats(),
    ratio=st.none() | st.floats(),
    interval=st.none() | st.tuples(st.floats(), st.floats()),
    note=st.text(),
)
reports = st.builds(
    Report,
    title=st.text(),
    findings=st.lists(findings, max_size=8).map(tuple),
    measures=st.lists(st.builds(Measure, st.text(), st.sampled_from(list(METRICS)), st.integers())).map(tuple),
    remarks=st.lists(st.text(), max_size=2).map(tuple),
    refusal=st.none() | st.sampled_from(["not comparable", "broken input"]),
    reason=st.text(),
)


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        (["same", "better", "faster", "new"], "green"),
        (["same", "better", "worse"], "red"),
        (["faster", "slower", "inconclusive"], "red"),
        (["same", "vanished"], "red"),
        (["faster", "inconclusive", "new"], "inconclusive"),
        (["new"], "not comparable"),
        ([], "not comparable"),
    ],
)
def test_the_gravest_word_decides(words: list, verdict: str) -> None:
    """A report is red if any finding is, else inconclusive if any is, and green only if something was compared."""
    report = Report("", tuple(Finding(f"case {word}", word) for word in words))
    assert report.verdict == verdict
    assert report.exit_code == EXIT_CODES[report.verdict]


def test_the_terminal_shows_what_changed() -> None:
    """The text report shows each change with its numbers, the gravest case first, and counts what is the same."""
    assert terminal(MIXED) == (
        "exact counters, base.json -> head.json\n"
        "all cases: nano\n"
        "\n"
        "b\n"
        "  vanished  renamed? c is the same program\n"
        "\n"
        "a\n"
        "  worse     memory.temp_bytes   1,048,576 -> 2,097,152 bytes  2.000x\n"
        "  better    compiled.flops      200 -> 150 FLOP               0.750x\n"
        "\n"
        "c\n"
        "  new       ok\n"
        "\n"
        "e\n"
        "  same      memory.total_bytes  100 -> 101 bytes              1.010x  allowed: 1%\n"
        "\n"
        "red: 1 vanished, 1 worse, 1 new, 2 same\n"
        "among the same: 1 another program\n"
    )


def test_the_terminal_shows_confidence() -> None:
    """The text report shows a ratio with its interval, and only counts step times that are the same."""
    shown = terminal(PAIRED)
    assert "  slower        step_seconds_median  0.1 -> 0.12 s   1.200x (1.100 to 1.300)  7 launches\n" in shown
    assert "tensor=8" not in shown
    assert shown.endswith("red: 1 slower, 1 inconclusive, 1 same\n")


@pytest.mark.parametrize("show", [terminal, markdown, junit])
def test_a_refusal_says_why(show) -> None:
    """Every format says that there is no verdict, and why."""
    assert "not comparable: jax is 0.10 in BASE and 0.11 in HEAD" in show(REFUSED)


def test_markdown_folds_what_does_not_decide() -> None:
    """Markdown shows the verdict and what decided it first, folds improvements and new cases, and counts the rest."""
    shown = markdown(MIXED)
    top, folded = shown.split("<details>")
    assert top.startswith("### exact counters, base.json -> head.json\n\n**red: 1 vanished, 1 worse, 1 new, 2 same**\n")
    assert "| a | worse | memory.temp_bytes | 1,048,576 -> 2,097,152 bytes | 2.000x |" in top
    assert "| b | vanished |" in top
    assert "| a | better | compiled.flops | 200 -> 150 FLOP | 0.750x |" in folded
    assert "| c | new |" in folded
    assert "| d |" not in shown


def test_markdown_fits_into_a_comment() -> None:
    """Markdown stays below GitHub's limit of a comment and shows the first changes, however many there are."""
    case = "test_step[three_d-data=2,pipeline=2,tensor=2-b16] nano,layers=24 bfloat16 remat=dots microbatches={}"
    metric = "compiled.collectives.reduce_scatter.outside_loops"
    several = (Finding(case.format(i), word, metric, 1, 2, 2.0) for word in ("worse", "better") for i in range(1000))
    shown = markdown(Report("", tuple(several)))
    assert len(shown) < 65_536
    first = shown.count(f"| worse | {metric}"), shown.count(f"| better | {metric}")
    assert min(first) > 50
    assert re.findall(r"and (\d+) more", shown) == [str(1000 - count) for count in first]


def test_markdown_shows_text_as_it_is() -> None:
    """Names and reasons are escaped, so they make no column, tag, link or mention."""
    (line,) = (
        line
        for line in markdown(Report("", (Finding("a|b\nc", "worse", note="<b>`@main`"),))).splitlines()
        if "worse" in line and line.startswith("|")
    )
    assert line == "| a\\|b c | worse |  |  |  | &lt;b>\\`&#64;main\\` |"


def test_junit_has_a_test_case_for_each_case() -> None:
    """JUnit has one test for each case: red ones failed, inconclusive ones are skipped, and the counts agree."""
    suite = ElementTree.fromstring(junit(MIXED))
    outcomes = {test.get("name"): [child.tag for child in test] for test in suite}
    passed = ["system-out"]
    assert outcomes == {"b nano": ["failure"], "a nano": ["failure"]} | dict.fromkeys(
        ["c nano", "e nano", "d nano"], passed
    )
    assert suite.attrib.items() >= {"tests": "5", "failures": "2", "skipped": "0", "errors": "0"}.items()
    (failure,) = suite.iterfind("testcase[@name='a nano']/failure")
    assert failure.get("message") == "worse memory.temp_bytes 1,048,576 -> 2,097,152 bytes 2.000x"
    assert "better compiled.flops" in str(failure.text)
    suite = ElementTree.fromstring(junit(PAIRED))
    assert [child.tag for test in suite for child in test] == ["failure", "skipped", "system-out"]


@given(reports)
def test_every_report_can_be_shown(report: Report) -> None:
    """Any report, with any characters and numbers, is valid in every format."""
    assert all(line.isprintable() for line in terminal(report).split("\n"))
    assert markdown(report).encode()
    tests = ElementTree.fromstring(junit(report).encode()).findall("testcase")
    assert len(tests) == len(report.cases()) + (report.verdict in ("not comparable", "broken input"))
    assert [entry["value"] for entry in json.loads(action_json(report))] == [
        measure.value for measure in report.measures if METRICS[measure.metric].better == "lower"
    ]
    assert isinstance(json.loads(bencher_json(report)), dict)


@pytest.fixture
def measured(tmp_path: Path) -> Report:
    """A report on a run with one good and one failed case."""
    timed = row("fsdp", "fsdp=8")
    timed["stats"] = {"data": [1.0, 2.0, 3.0, 4.0, 5.0]}
    snapshot = read_snapshot(write_run(tmp_path / "run.json", [timed, failed("oom", "data", "data=2")]))
    return compare(snapshot, snapshot, {})


CASE = "test_step[fsdp-fsdp=8-b16] synthetic float32 remat=none microbatches=1 sequence=128 params=10000000"


def test_trackers_get_the_values_of_head(measured: Report) -> None:
    """Trackers get each nonzero number of a good case, with quartiles of step time, and nothing of a failed one."""
    facts = row("fsdp", "fsdp=8")["extra_info"]
    numbers = {name: facts[name] for name in METRICS if facts[name]}
    (benchmark,) = (tracked := json.loads(bencher_json(measured))).values()
    assert list(tracked) == [CASE]
    assert {name: measure["value"] for name, measure in benchmark.items()} == numbers
    assert benchmark["step_seconds_median"] == {
        "value": numbers["step_seconds_median"],
        "lower_value": 2,
        "upper_value": 4,
    }
    entries = {entry["name"]: entry for entry in json.loads(action_json(measured))}
    lower = {name: value for name, value in numbers.items() if METRICS[name].better == "lower"}
    assert {name: entry["value"] for name, entry in entries.items()} == {
        f"{CASE} {name}": lower[name] for name in lower
    }
    assert entries[f"{CASE} step_seconds_median"]["range"] == "2 to 4"
    assert all(entry["unit"] and entry["extra"] == "better: lower" for entry in entries.values())


def test_higher_is_better_metrics_are_not_given_to_github_action_benchmark(measured: Report) -> None:
    """Metrics that are better when higher are left out for github-action-benchmark, which ranks by smaller only."""
    higher = [name for name, metric in METRICS.items() if metric.better == "higher"]
    assert "tokens_per_second" in higher
    assert not any(name in action_json(measured) for name in higher)
    assert all(name in bencher_json(measured) for name in higher)


def test_bencher_names_fit() -> None:
    """Names fit Bencher's limits: 64 characters for a measure, 1,024 for a benchmark."""
    assert max(map(len, METRICS)) <= 64
    assert len(CASE) <= 1024
