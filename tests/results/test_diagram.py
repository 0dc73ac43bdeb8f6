"""Pictures of strategies: those that are committed, and what is drawn of any overview."""

import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Tree

import pytest

from results.figures.communication import communication
from results.records.overviews import Overview, read
from strategies import STRATEGIES
from strategies.costs.overview import overview
from tests.commands import command
from tests.processes import ROOT

PAGES = ROOT / "docs" / "strategies"
SVG = "{http://www.w3.org/2000/svg}"
ANEW = "meshmark show {name} --preset {preset} --json | meshmark plot - --out docs/strategies/{name}.svg"
MOST_BYTES = 60_000


def facts(name: str, **others: Any) -> dict[str, Any]:
    """An overview as JSON has it."""
    return json.loads(json.dumps(overview(name, **others).as_dict()))


def read_one(name: str, **others: Any) -> Overview:
    """An overview as it is read."""
    return read(json.dumps([facts(name, **others)]))[0]


def drawn(name: str, **others: Any) -> Tree.Element:
    """Its picture."""
    return Tree.fromstring(communication(read_one(name, **others)))


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_committed_picture_is_what_is_drawn_today(name: str) -> None:
    """Of today's layouts and formulas, to the byte, and it is small; a page shows it, with words that describe it."""
    committed = (PAGES / f"{name}.svg").read_text(encoding="utf-8")
    preset = "nano-moe" if name == "expert" else "gpt2"
    assert committed == communication(read_one(name, preset=preset)), ANEW.format(name=name, preset=preset)
    assert len(committed) < MOST_BYTES
    pages = [page.read_text(encoding="utf-8") for page in PAGES.glob("*.md")]
    shown = [line for page in pages for line in page.splitlines() if line.endswith(f"]({name}.svg)")]
    assert len(shown) == 1
    assert len(shown[0].split()) > 10


@pytest.mark.parametrize(
    ("name", "others", "arrows"),
    [
        ("single", {}, 0),
        ("data", {}, 4 * 3),
        ("fsdp", {}, 3 * 4 * 3),
        ("hsdp", {}, 4 * 4),
        ("context", {}, 4 + 4 * 3),
        ("context", {"context_attention": "ulysses"}, 2 * 4 * 3),
        ("pipeline", {}, 6 + 4 * 3),
        ("three_d", {}, 5 * 8),
    ],
)
def test_an_arrow_leads_to_each_who_gets_something(name: str, others: dict[str, Any], arrows: int) -> None:
    """From each device to all others of its group, for each collective; of a permutation, to its neighbours."""
    assert len([*drawn(name, **others).iter(f"{SVG}polygon")]) == arrows


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_device_is_filled_with_what_it_holds(name: str) -> None:
    """Of each array, all parts that differ fill one whole box, but for what the strategy leaves to several devices."""
    shown = read_one(name)
    for held in shown.held:
        parts = {shown.part(device, (*held.rows, *held.columns)) for device in shown.devices}
        (count,) = {count for _, count in parts}
        assert {index for index, _ in parts} == {*range(count)}


@pytest.mark.parametrize("name", STRATEGIES)
def test_nothing_is_drawn_outside_of_the_picture(name: str) -> None:
    """No box and no arrow."""
    picture = drawn(name)
    _, _, width, height = map(float, picture.attrib["viewBox"].split())
    boxes = [each.attrib for each in picture.iter(f"{SVG}rect") if "x" in each.attrib]
    assert all(0 <= float(box["x"]) <= width - float(box["width"]) for box in boxes)
    assert all(0 <= float(box["y"]) <= height - float(box["height"]) for box in boxes)
    assert all(0 <= float(line.attrib[end]) <= width for line in picture.iter(f"{SVG}line") for end in ("x1", "x2"))


def test_the_command_writes_a_picture_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Into a folder that it makes, and prints where they are."""
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps([facts("data"), facts("auto")])))
    command("plot")(["-", "--out", str(tmp_path / "new")])
    assert capsys.readouterr().out.split() == [str(tmp_path / "new" / name) for name in ("data.svg", "auto.svg")]
    assert (tmp_path / "new" / "data.svg").read_text() == communication(read_one("data"))
