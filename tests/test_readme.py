"""What README and the pages of docs/ show is what happens."""

import re
import subprocess
import sys

import pytest
import yaml

from strategies.costs.overview import overview
from tests.examples import examples
from tests.processes import ROOT

README = ROOT / "README.md"
YET_TO_BE_WRITTEN = {"strategies/NAME.py"}
PAGES = README, *sorted((ROOT / "docs").rglob("*.md"))


def test_the_example_runs_as_it_stands():
    """The code block is a program that a newcomer can paste."""
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("5."), "the loss of a uniform guess over 256 bytes is log(256) = 5.5"


def test_five_files_have_about_as_many_lines_as_it_says():
    """Those that it recommends to readers of the strategies, within 15%."""
    (said, files) = re.findall(
        r"read these five files, about ([\d,]+) lines: (.*?)\n\n", README.read_text(), re.DOTALL
    )[0]
    named = re.findall(r"`(strategies/[\w/]+\.py)`", files)
    lines = sum(len((ROOT / name).read_text().splitlines()) for name in named)
    assert len(named) == 5
    assert lines == pytest.approx(int(said.replace(",", "")), rel=0.15)


def test_every_file_that_a_page_links_to_is_there():
    """Seen from the page. Those of the site link only to the site, which is built from docs/ alone."""
    linked = {(page, path) for page in PAGES for path in re.findall(r"\]\(([^)#:]+)\)", page.read_text())}
    assert not [(page, path) for page, path in linked if not (page.parent / path).exists()]
    site = [(page, (page.parent / path).resolve()) for page, path in linked if page != README]
    assert not [(page, path) for page, path in site if not path.is_relative_to(ROOT / "docs")]


def test_the_version_is_the_same_everywhere():
    """That of pyproject.toml is in CITATION.cff and in the newest heading of the changelog, with one date."""
    (version,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## \[(.*)\] - (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest
    assert newest.groups() == (version, str(cited["date-released"])) == (cited["version"], newest[2])


def test_every_page_is_found():
    """Each page and notebook of docs/ is in the contents of the site, and README links to the site's front."""
    contents = re.findall(r"^ +- .*?([\w/-]+\.(?:md|ipynb))$", (ROOT / ".mkdocs.yml").read_text(), re.MULTILINE)
    docs = ROOT / "docs"
    there = {str(page.relative_to(docs)) for page in docs.rglob("*") if page.suffix in {".md", ".ipynb"}}
    assert {*contents} == there
    assert "](docs/index.md)" in README.read_text()


def test_paths_that_are_named_are_there():
    """Of modules and folders, wherever a page speaks of them; but for those that are yet to be written."""
    path = re.compile(r"`((?:strategies|benchmarks|results)/[\w./-]+)`")
    named = {name for page in PAGES for name in path.findall(page.read_text())} - YET_TO_BE_WRITTEN
    assert len(named) > 10
    assert not [name for name in named if not (ROOT / name).exists()]


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "strategies").glob("[!i]*.md")), ids=lambda page: page.name)
def test_a_page_shows_what_show_prints(page):
    """At least one example, each with what stands below it."""
    found = examples(page.read_text(), "show")
    assert found
    for example in found:
        name, *preset = (word for word in example.arguments if word != "--preset")
        assert example.shown.strip() == str(overview(name, preset[0] if preset else None))


def test_the_lines_of_arrays_are_those_that_show_prints():
    """docs/strategies/index.md quotes some of them, below the commands that print them."""
    quoted = re.findall(
        r"^    (  \S.* [\d,]+|  array .*)$", (ROOT / "docs" / "strategies" / "index.md").read_text(), re.MULTILINE
    )
    printed = overview("three_d", "nano", "fsdp=4,tensor=2").array_table().splitlines()
    assert len(quoted) == 4
    assert {*quoted} <= {*printed}
