"""docs/guides/choosing.md shows what `meshmark search` predicts. README quotes it, a search, and a measured run."""

import json
import math
import re

import jax
import pytest

from benchmarks.cases.row import Row
from benchmarks.run import summary as terminal
from tests.commands import command
from tests.examples import examples
from tests.processes import ROOT

README = (ROOT / "README.md").read_text()
PAGE = (ROOT / "docs" / "guides" / "choosing.md").read_text()
MEMORY = re.compile(r"\b\d+\.\d(?= +[\d,]+ +[\d,]+ +[\d,]+ +\d+%)")
"""GiB in a row of a table: the number before the two times, the tokens and the MFU."""
EXAMPLES = examples(PAGE, "search")


def test_there_is_an_example_for_each_situation():
    """Every section but the last two: mixtures of experts have a picture, and other strategies have links."""
    assert len(EXAMPLES) == PAGE.count("\n## ") - 2 == 5


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_are_what_search_prints(example, capsys, terminal):
    """The whole table of the best of each strategy, on a terminal of 100 columns.

    Later versions of JAX keep less memory, as the page says.
    """
    terminal(100)
    assert command("search")(example.arguments) == 0
    printed = capsys.readouterr().out
    assert f"\n\n{MEMORY.sub('GiB', example.shown)}\n\n" in MEMORY.sub("GiB", printed)
    mine, theirs = (list(map(float, MEMORY.findall(text))) for text in (printed, example.shown))
    pairs = zip(mine[: len(theirs)], theirs, strict=True)
    assert all(held == stated if jax.__version__.startswith("0.10.") else held <= stated for held, stated in pairs)


def test_readme_quotes_these_times():
    """Each row of its decision table recommends the best of a section, and quotes the best time of each strategy."""
    table = re.findall(r"^\|.*\| (`.*) \| (.* ms.*) \|$", README, re.MULTILINE)
    assert len(table) == len(EXAMPLES)
    for (recommended, quoted), example in zip(table, EXAMPLES, strict=True):
        printed = re.findall(r"^\d+=? +(\w+) .*? [\d.]+ +([\d,]+) +[\d,]+ +[\d,]+ +\d+%", example.shown, re.MULTILINE)
        assert f"`{printed[0][0]}`" in recommended
        best = dict(reversed(printed))
        assert dict(re.findall(r"`(\w+)` ([\d,]+) ms", quoted)) == best


def test_readme_shows_what_search_prints(capsys, terminal):
    """The report on a terminal of 100 columns, from its table on."""
    terminal(100)
    (example,) = examples(README, "search")
    assert command("search")(example.arguments) == 0
    assert f"\n{example.shown}\n\n" in capsys.readouterr().out


def test_readme_shows_rows_of_the_measured_run():
    """Each line of its table is a row of the committed run, as the terminal prints it."""
    run = json.loads((ROOT / "docs" / "examples" / "nano-cpu" / "run.json").read_text())
    rows = [Row(each["name"], each["extra_info"], (), None) for each in run["benchmarks"]]
    printed = {" ".join(line.split()) for line in terminal.table(rows)}
    (example,) = examples(README, "measure")
    shown = [" ".join(line.split()) for line in example.shown.splitlines()]
    assert len(shown) > 6
    assert {*shown} <= printed
    (percent,) = re.findall(r"Differences below (\d+)% are noise", README)
    (resolved,) = re.findall(r"less than ([\d.]+)% with batch 16", " ".join(terminal.resolution(rows)))
    assert math.ceil(float(resolved)) == int(percent)
