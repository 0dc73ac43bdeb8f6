"""Pictures of strategies: those that are committed, and what is drawn of any overview."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Tree

import pytest
from matplotlib.patches import FancyArrowPatch, Rectangle

from docs.strategies.pictures import FOLDER, Picture, picture, write
from strategies import STRATEGIES
from strategies.costs.overview import overview

MOST_BYTES = 100_000


def content(path: Path) -> list[tuple[str, list[str]]]:
    """The text, and the numbers and colours of each element, as far as one sees them: to a tenth of a point."""
    return [
        (
            (element.text or "").strip(),
            [
                f"{float(found):.1f}" if re.fullmatch(r"-?[\d.]+", found) else found
                for value in element.attrib.values()
                for found in re.findall(r"#[0-9a-f]{6}|(?<![\w.])-?\d+\.?\d*", value)
            ],
        )
        for element in Tree.parse(path).iter()
    ]


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_committed_picture_is_what_is_drawn_today(name: str, tmp_path: Path) -> None:
    """Of today's layouts and formulas, and it is small; a page shows it, with words that describe it."""
    committed = FOLDER / f"{name}.svg"
    assert content(committed) == content(write(name, tmp_path)), f"run `python docs/strategies/pictures.py {name}`"
    assert committed.stat().st_size < MOST_BYTES
    pages = [page.read_text(encoding="utf-8") for page in FOLDER.glob("*.md")]
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
    (axes,) = picture(overview(name, **others)).axes
    assert sum(isinstance(getattr(text, "arrow_patch", None), FancyArrowPatch) for text in axes.texts) == arrows


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_device_is_filled_with_what_it_holds(name: str) -> None:
    """Of each array, all parts that differ fill one whole box, but for what the strategy leaves to several devices."""
    drawn = Picture(overview(name))
    for held in drawn.shown.held:
        parts = {drawn.part(device, (*held.rows, *held.columns)) for device in drawn.devices}
        (count,) = {count for _, count in parts}
        assert {index for index, _ in parts} == {*range(count)}


@pytest.mark.parametrize("name", STRATEGIES)
def test_nothing_is_drawn_outside_of_the_picture(name: str) -> None:
    """No box and no arrow."""
    (axes,) = picture(overview(name)).axes
    width, height = axes.get_xlim()[1], axes.get_ylim()[0]
    for box in (each for each in axes.patches if isinstance(each, Rectangle)):
        assert 0 <= box.get_x() <= width - box.get_width()
        assert 0 <= box.get_y() <= height - box.get_height()
    for text in axes.texts:
        x, y = text.get_position()
        assert 0 <= x <= width
        assert 0 <= y <= height
