"""The chapters of docs/learn: what a reader sees is what happens."""

import itertools
import json
import re
import subprocess
import sys

import pytest

from docs.learn.collectives import COLLECTIVES, picture
from docs.learn.notebook import FOLDER, cells, chapters, scripts
from tests.processes import ROOT, environment
from tests.strategies.sampling import nightly

MOST_WORDS, MOST_CODE_LINES = 400, 40
CHAPTERS = pytest.mark.parametrize("script", chapters(), ids=lambda script: script.stem)
SCRIPTS = pytest.mark.parametrize("script", scripts(), ids=lambda script: script.stem)


def notebook(path):
    """The cells of a notebook."""
    return json.loads(path.read_text())["cells"]


def printed(found):
    """What each cell prints, without those whose output varies, and how many pictures it draws."""
    outputs = [cell.get("outputs", []) for cell in found if "varies" not in cell["metadata"].get("tags", [])]
    return [[output.get("text", "a picture") for output in each] for each in outputs]


@pytest.mark.parametrize(
    "script",
    [script if script.stem[0] in "13e" else nightly(script)[0] for script in scripts()],
    ids=lambda script: script.stem,
)
def test_a_chapter_prints_what_its_notebook_shows(script, tmp_path):
    """A fresh process prints the stored text, cell by cell, and draws as many pictures."""
    command = [sys.executable, FOLDER / "notebook.py", script, "--out", tmp_path]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    name = f"{script.stem}.ipynb"
    assert printed(notebook(tmp_path / name)) == printed(notebook(FOLDER / name))


@SCRIPTS
def test_a_notebook_has_the_cells_of_its_script(script):
    """The script is the source; `python docs/learn/notebook.py` writes the notebooks."""
    stored = notebook(script.with_suffix(".ipynb"))
    for cell in (cell for cell in stored if cell["cell_type"] == "code"):
        cell.update(outputs=[], execution_count=None)
    assert stored == cells(script.read_text())


@CHAPTERS
def test_a_chapter_is_short(script):
    """At most 400 words of text and 40 lines of code, with one picture or more, an exercise and its answer."""
    found = notebook(script.with_suffix(".ipynb"))
    text = "\n".join(cell["source"] for cell in found if cell["cell_type"] == "markdown")
    code = [line for cell in found if cell["cell_type"] == "code" for line in cell["source"].splitlines() if line]
    assert len(text.split()) <= MOST_WORDS
    assert len(code) <= MOST_CODE_LINES
    assert "a picture" in itertools.chain(*printed(found))
    assert "## Exercise" in text
    assert "<summary>Answer</summary>" in text


def test_every_term_that_is_linked_is_in_the_glossary():
    """Chapters link a term to its heading in docs/reference/glossary.md."""
    headings = re.findall(r"^## (.*)$", (FOLDER.parent / "reference" / "glossary.md").read_text(), re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    linked = re.findall(r"glossary\.md#([\w-]+)", "".join(script.read_text() for script in scripts()))
    assert linked
    assert {*linked} <= anchors


def test_exercises_are_not_solved_and_their_answers_are_right():
    """Each exercise has a check of what a reader writes, and one of its folded answer."""
    found = notebook(FOLDER / "exercises.ipynb")
    said = [
        (output["text"].strip(), "answer" in cell["metadata"].get("tags", []))
        for cell in found
        for output in cell.get("outputs", [])
        if "text" in output
    ]
    assert said == [("not written yet", False), ("right", True)] * 3


@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_picture_of_a_collective_is_what_is_drawn_today(name):
    """To draw them anew: `python docs/learn/collectives.py`. A chapter and the overview show each."""
    assert (FOLDER / f"{name}.svg").read_text() == picture(name)
    shown = f"]({name}.svg)"
    assert shown in (FOLDER / "index.md").read_text()
    assert any(shown in chapter.read_text() for chapter in chapters())
