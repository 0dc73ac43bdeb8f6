"""The command that writes a page: one file, of runs and searches, that holds all it needs."""

import json
from pathlib import Path

import pytest

from results.figures.marks import DODGE, LOG_SPAN
from results.figures.palette import PART_COLOURS, STRATEGY_COLOURS, TIME_COLOURS, strategy_looks, symbol_path
from results.figures.tables import PARTS, TIMES
from results.page import SCRIPTS, embedded
from tests.commands import command
from tests.processes import ROOT
from tests.results.documents import carried
from tests.results.synthetic import row, sweep, write_run

main = command("page")


def test_the_page_is_next_to_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless it is told where; its path is printed. Written twice it is the same file."""
    run = write_run(tmp_path / "run.json", sweep())
    main([str(run)])
    main([str(run), f"--out={tmp_path / 'new' / 'page.html'}"])
    pages = [tmp_path / "run.html", tmp_path / "new" / "page.html"]
    assert capsys.readouterr().out.split() == [str(page) for page in pages]
    assert pages[0].read_bytes() == pages[1].read_bytes()
    assert carried(pages[0])["parts"][0]["count"] == len(sweep())


def test_strategies_have_their_colours_in_one_order(tmp_path: Path) -> None:
    """It is that of the figures, whatever a file has; strategies of a user's own come after, by name."""
    toy, mine = row("data", "data=2"), row("data", "data=4")
    toy["extra_info"]["strategy"], mine["extra_info"]["strategy"] = "toy", "mine"
    run = write_run(tmp_path / "run.json", [row("tensor", "tensor=2"), toy, mine, row()])
    main([str(run)])
    data = carried(tmp_path / "run.html")
    assert list(data["looks"]) == [*STRATEGY_COLOURS, "mine", "toy"]
    assert data["parts"][0]["strategies"] == ["single", "tensor", "mine", "toy"]


def test_every_static_file_is_in_the_page_and_installed() -> None:
    """No script is forgotten, and what is installed has all: its build takes all of the folder."""
    there = {path.name for path in (ROOT / "results" / "webpage" / "static").iterdir()}
    assert there == {"page.html", "run.html", "search.html", "page.css", *(f"{name}.js" for name in SCRIPTS)}
    assert '"results.webpage" = ["static/*"]' in (ROOT / "pyproject.toml").read_text()


def test_a_page_is_small(tmp_path: Path) -> None:
    """Its scripts, its style and its words are less than 100 kB; the rest are the rows."""
    main([str(write_run(tmp_path / "run.json", [row()]))])
    assert (tmp_path / "run.html").stat().st_size < 100_000


def test_a_page_draws_as_figures_do(tmp_path: Path) -> None:
    """Colours and symbols of strategies, scales, and the parts of memory and time, each with its column."""
    main([str(write_run(tmp_path / "run.json", [row()]))])
    data = carried(tmp_path / "run.html")
    looks = strategy_looks(STRATEGY_COLOURS)
    assert data["looks"] == {
        name: {"colour": each.colour, "path": symbol_path(each.marker)} for name, each in looks.items()
    }
    assert (data["log_span"], data["dodge"]) == (LOG_SPAN, DODGE)
    for name, columns, colours in (("memory", PARTS, PART_COLOURS), ("time", TIMES, TIME_COLOURS)):
        assert {part["label"]: part["colour"] for part in data[name]} == colours
        assert [part["name"].removeprefix("page.") for part in data[name]] == list(columns.values())
        assert all(part["name"] in data["parts"][0]["columns"] for part in data[name])


def test_no_text_ends_the_data() -> None:
    """JSON is the same when it is read, and has no tag in it."""
    text = json.dumps({"mesh": "</script><!--<script>"})
    assert "<" not in embedded(text)
    assert json.loads(embedded(text)) == json.loads(text)
