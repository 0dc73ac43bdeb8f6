"""Laws of the pages in docs/: they are short enough to be read, and the reference has every public name."""

import re

import pytest

import strategies
from docs.reference.api import PAGE, SECTIONS, page
from tests.processes import ROOT

DOCS = ROOT / "docs"
MOST_WORDS = 1200
GUIDES = sorted((DOCS / "guides").glob("*.md"))
SHORT = [*GUIDES, *(page for room in (".", "strategies", "contribute") for page in sorted((DOCS / room).glob("*.md")))]


@pytest.mark.parametrize("path", SHORT, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_page_has_at_most_1200_words(path):
    """What was tried and measured on one machine has pages of its own, in docs/experiments."""
    assert len(path.read_text().split()) <= MOST_WORDS


def test_guides_are_few_and_short():
    """At most 14 guides with 12,000 words, so that each thing is said once."""
    assert len(GUIDES) <= 14
    assert sum(len(path.read_text().split()) for path in GUIDES) <= 12_000


def test_the_reference_has_every_public_name():
    """Once, and nothing else."""
    names = [name for _, section in SECTIONS.values() for name in section if "." not in name]
    assert sorted(names) == sorted(strategies.__all__)


def test_the_reference_is_made_of_the_docstrings():
    """To regenerate it: `python docs/reference/api.py`."""
    assert PAGE.read_text() == page()


def test_every_experiment_has_one_line_of_result():
    """In the table of its overview."""
    overview = (DOCS / "experiments" / "index.md").read_text()
    results = dict(re.findall(r"^\| \[.*?\]\(([\w.-]+)\).*? \| (.+) \|$", overview, re.MULTILINE))
    assert {*results} == {page.name for page in (DOCS / "experiments").glob("20*.md")}
    assert all(len(result) <= 150 for result in results.values())
