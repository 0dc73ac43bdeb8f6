"""docs/guides/choosing.md shows what `meshmark advise` predicts, and README quotes it."""

import re
import textwrap

import pytest

from benchmarks import advise
from tests.processes import ROOT

PAGE = (ROOT / "docs" / "guides" / "choosing.md").read_text()
EXAMPLES = re.findall(r"^    \$ meshmark advise ((?:.*\\\n)*.*)\n((?:    .*\n)+)", PAGE, re.MULTILINE)


def test_there_is_an_example_for_each_situation():
    """Every section but the last, which has links."""
    assert len(EXAMPLES) == PAGE.count("\n## ") - 1 == 5


@pytest.mark.parametrize(("arguments", "shown"), EXAMPLES)
def test_examples_are_what_advise_prints(arguments, shown, capsys):
    """Line by line: the whole table of the best of each strategy."""
    assert advise.main(arguments.replace("\\\n", " ").split()) == 0
    printed = capsys.readouterr().out
    assert f"\n\n{textwrap.dedent(shown)}\n" in printed


def test_readme_quotes_these_times():
    """Each row of its decision table has only times in ms that the page has, and the best one of its section."""
    table = re.findall(r"^\|.*\| (.* ms.*) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(table) == len(EXAMPLES)
    for quoted, (_, shown) in zip(table, EXAMPLES, strict=True):
        best = re.findall(r"[\d.]+ +([\d,]+) +[\d,]+ +[\d,]+ +\d+%", shown)
        times = re.findall(r"([\d,]+) ms", quoted)
        assert best[0] in times
        assert {*times} <= {*best} | {*re.findall(r"([\d,]+) ms", PAGE)}
