"""Laws of the pages in docs/: they are short enough to be read, and the reference has every public name."""

import re

import pytest

import strategies
from tests.processes import ROOT

DOCS = ROOT / "docs"
MOST_WORDS = 1200
SHORT = sorted(page for room in ("guides", "strategies", "contribute") for page in (DOCS / room).glob("*.md"))


@pytest.mark.parametrize("page", SHORT, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_a_page_has_at_most_1200_words(page):
    """What was tried and measured on one machine has pages of its own, in docs/experiments."""
    assert len(page.read_text().split()) <= MOST_WORDS


def test_the_reference_has_every_public_name():
    """Once, and nothing else."""
    named = re.findall(r"^::: strategies\.(\w+)$", (DOCS / "reference" / "api.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(strategies.__all__)
