"""Laws of the pages in docs/: they are short enough to be read, and the reference has every public name."""

import re

import pytest

import strategies
from benchmarks.cli.tables import amount
from docs.reference import api, commands, modes, optimizers, payloads, schedules
from tests.processes import ROOT

DOCS = ROOT / "docs"
MOST_WORDS = 1200
GUIDES = sorted((DOCS / "guides").glob("*.md"))
SHORT = [*GUIDES, *(page for room in (".", "strategies", "contribute") for page in sorted((DOCS / room).glob("*.md")))]


def test_pages_are_few_and_short():
    """A page has at most 1,200 words; at most 14 guides have 12,000, so that each thing is said once.

    README has at most 600, without code, output and the addresses of links.
    """
    words = {path: len(path.read_text().split()) for path in SHORT}
    assert {path: count for path, count in words.items() if count > MOST_WORDS} == {}
    assert len(GUIDES) <= 14
    assert sum(words[path] for path in GUIDES) <= 12_000
    readme = (ROOT / "README.md").read_text()
    prose = re.sub(r"```.*?```|^    .*?$|\]\([^)]*\)|\|", " ", readme, flags=re.DOTALL | re.MULTILINE)
    assert len(prose.split()) <= 600


def test_the_reference_has_every_public_name():
    """Once, and nothing else."""
    names = [name for _, section in api.SECTIONS.values() for name in section if "." not in name]
    assert sorted(names) == sorted(strategies.__all__)


@pytest.mark.parametrize("script", [api, commands], ids=lambda script: script.__name__)
def test_the_reference_is_what_its_script_makes(script):
    """From docstrings and from the table of commands. To regenerate it: `python docs/reference/NAME.py`."""
    assert script.PAGE.read_text() == script.page()


def test_the_page_of_placements_has_what_its_script_computes():
    """`docs/reference/optimizers.py`: rows by formula, where dealing out sends and computes less than gathering."""
    assert optimizers.PAGE.read_text() == optimizers.page()
    rows = [*optimizers.rows()]
    by_placement = {row[:3]: [float(cell.replace(",", "")) for cell in row[3:5]] for row in rows}
    for (model, mesh, placement), (sent, flops) in by_placement.items():
        if placement.startswith("gather"):
            dealt = by_placement[model, mesh, placement.replace("gather", "deal")]
            assert dealt < [sent / 3, flops]


@pytest.mark.parametrize("script", [schedules, payloads], ids=lambda script: script.__name__)
def test_a_page_of_formulas_is_what_its_script_makes(script):
    """Schedules, and payloads of context parallelism."""
    assert script.FILE.read_text() == script.page()


def test_beyond_adamw_programs_send_what_formulas_say():
    """Every compiled or measured step with Muon, in the table next to the page of placements."""
    rows = {(*optimizers.group(row), row["options"].partition("matrices=")[2]): row for row in optimizers.read()}
    for (devices, preset, placement), row in rows.items():
        adamw, muon = (
            (int(each["sent_bytes"]), optimizers.by_formula(each)) for each in (rows[devices, preset, ""], row)
        )
        assert (muon[0] > adamw[0]) == bool(placement)
        assert muon[0] - adamw[0] == muon[1] - adamw[1]


def test_the_page_of_modes_is_what_its_script_makes_of_its_table():
    """`python -m docs.reference.modes`. On CPUs and GPUs all steps but those of `auto` send what formulas say.

    On H100s XLA casts biases to bfloat16 before `explicit` gathers them along fsdp: in each of four layers 9 x 256
    numbers, and with tensor 2 x 256.
    """
    committed, rows = modes.PAGE.read_text(), modes.read()
    assert modes.page(committed) == committed
    assert {row["status"] for row in rows} == {"ok"}
    as_stated = [row for row in rows if not row["topology"].startswith("v5") and row["strategy"] != "auto"]
    changed = {(row["topology"], row["mesh"], row["strategy"], row["changed"]) for row in as_stated if row["changed"]}
    assert changed == {
        ("h100:2x8", mesh, "explicit", f"all_gather over fsdp: {amount(4 * numbers * 2 * share, 'B')} less")
        for mesh, numbers, share in (("fsdp=16", 9 * 256, 15 / 16), ("fsdp=4,tensor=4", 2 * 256, 3 / 4))
    }


def test_every_experiment_has_one_line_of_result():
    """In the table of its overview."""
    overview = (DOCS / "experiments" / "index.md").read_text()
    results = dict(re.findall(r"^\| \[.*?\]\(([\w.-]+)\).*? \| (.+) \|$", overview, re.MULTILINE))
    assert {*results} == {page.name for page in (DOCS / "experiments").glob("20*.md")}
    assert all(len(result) <= 150 for result in results.values())
