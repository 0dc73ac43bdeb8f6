"""docs/reference/constants.md has every constant as the code describes it; guides show what the commands print."""

import inspect
import re

import pytest

from benchmarks.simulate.machine import RANGES, Constants
from benchmarks.simulate.machines import machine, machine_names
from strategies import PRESETS, TrainConfig
from strategies.costs import predict as cost
from tests.commands import command
from tests.examples import examples
from tests.processes import ROOT

GUIDES = {page.stem: page.read_text() for page in sorted((ROOT / "docs" / "guides").glob("*.md"))}
CONSTANTS = (ROOT / "docs" / "reference" / "constants.md").read_text()
COMMANDS = "predict", "search"
EXAMPLES = [found for name, page in GUIDES.items() if name != "choosing" for found in examples(page, *COMMANDS)]
"""Examples that need a compiler have no `$`; tests/test_choosing.py has those of its page."""


def test_every_constant_has_its_range_and_meaning():
    """A row for each, with the words of its docstring."""
    doc = inspect.getdoc(Constants) or ""  # with the same indentation on every Python
    described = re.findall(r"^ {4}(\w+): (.*?)(?=^ {4}\w+: |\Z)", doc, re.MULTILINE | re.DOTALL)
    meanings = {name: " ".join(text.split()) for name, text in described}
    assert {*meanings} == {*RANGES}
    for name, (low, high, _) in RANGES.items():
        assert f"| `{name}` | {low:g} | {high:g} | {meanings[name]} |\n" in CONSTANTS


def test_the_memory_without_recomputation_is_what_the_page_says():
    """Of the best candidate, if it recomputes nothing."""
    case = {"batch_size": 64, "dtype": "bfloat16", "remat": "none", "gather": "layer"}
    needed = cost.predict("fsdp", PRESETS["gpt2-xl"], "fsdp=8", TrainConfig(**case), "cuda").needed_bytes
    assert f"With `--remat none`, `fsdp=8` takes {needed / 2**30:.1f} GiB." in GUIDES["search"]


@pytest.mark.parametrize("name", machine_names())
def test_every_machine_file_has_its_error_and_source(name):
    """A row for each."""
    its = machine(name)
    assert f"| `{name}` | {its.stack.name} | {its.error:.1%} | {its.source} |\n" in CONSTANTS


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.command for example in EXAMPLES])
def test_examples_are_what_commands_print(example, capsys, monkeypatch, terminal):
    """Line by line, on a terminal of 100 columns; dots stand for lines that are left out."""
    terminal(100)
    monkeypatch.chdir(ROOT)
    command(example.command)(example.arguments)
    printed = capsys.readouterr().out.rstrip().splitlines()
    before, dots, after = example.shown.rstrip().partition("\n...\n")
    assert printed[: len(before.splitlines())] == before.splitlines()
    assert printed[len(printed) - len(after.splitlines()) :] == after.splitlines()
    assert dots or printed == before.splitlines()
