"""Tests of the colours: each strategy has one look in all figures, and all colour visions can tell colours apart."""

import ast
from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import is_color_like

from docs.reference.published import SPENT_COLOURS
from docs.strategies.pictures import ARRAY_COLOURS
from results.figures.palette import (
    LANE_COLOURS,
    LIMIT_COLOURS,
    MARKERS,
    PART_COLOURS,
    PASS_COLOURS,
    STRATEGY_COLOURS,
    TIME_COLOURS,
    strategy_looks,
    symbol_path,
)
from strategies import STRATEGIES
from tests.processes import ROOT

# Matrices of colour visions in linear sRGB, from Machado, Oliveira and Fernandes 2009, table 1, severity 1.
EYES = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
# From linear sRGB to OKLab, from https://bottosson.github.io/posts/oklab/.
TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_OKLAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def linear(colour: str) -> np.ndarray:
    """Return #rrggbb in linear sRGB, as an array of shape [3]."""
    values = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    """Return the relative luminance of #rrggbb, from 0 to 1, as WCAG 2.1 defines it."""
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


TABLES = {
    **{"strategies": STRATEGY_COLOURS, "arrays": ARRAY_COLOURS, "parts of memory": PART_COLOURS},
    **{"parts of time": TIME_COLOURS, "passes": PASS_COLOURS, "lanes": LANE_COLOURS},
    **{"predicted parts": SPENT_COLOURS, "limits": LIMIT_COLOURS},
}
ALIKE = "data", "zero1", "zero2", "fsdp"
"""Strategies that users compare with one another; each shards more of the state."""


def distances(colours: dict[str, str], eye: str) -> dict[tuple[str, str], float]:
    """How far apart any two colours are in OKLab, as seen with a colour vision."""
    seen = {
        name: TO_OKLAB @ np.cbrt(TO_CONES @ np.clip(np.array(EYES[eye]) @ linear(colour), 0, 1))
        for name, colour in colours.items()
    }
    return {pair: float(np.linalg.norm(seen[pair[0]] - seen[pair[1]])) for pair in combinations(seen, 2)}


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("table", TABLES)
def test_colours_are_told_apart(table: str, eye: str) -> None:
    """Any two colours of a table differ by at least 0.08 in OKLab, as seen with each colour vision."""
    assert {pair: found for pair, found in distances(TABLES[table], eye).items() if found < 0.08} == {}


def test_strategies_are_told_apart_in_grey() -> None:
    """Lightness of any two differs by 0.03 in OKLab, of those that are compared by 0.05: printed grey, they differ.

    Twelve colours with a contrast of 3 to white cannot be further apart; markers tell them apart as well.
    """
    lightness = {name: float(np.cbrt(luminance(colour))) for name, colour in STRATEGY_COLOURS.items()}
    for one, other in combinations(lightness, 2):
        least = 0.05 if {one, other} <= {*ALIKE} else 0.03
        assert abs(lightness[one] - lightness[other]) >= least, (one, other)


def test_strategies_that_are_compared_have_different_hues() -> None:
    """Those that shard more and more of the state are not shades of one colour."""
    compared = {name: STRATEGY_COLOURS[name] for name in ALIKE}
    assert min(distances(compared, "normal").values()) > 0.15


@pytest.mark.parametrize("name", STRATEGY_COLOURS)
def test_strategies_stand_out_from_the_paper(name: str) -> None:
    """Contrast to white is at least 3, as WCAG 2.1 (1.4.11) requires of the parts needed to understand a graphic."""
    assert 1.05 / (luminance(STRATEGY_COLOURS[name]) + 0.05) >= 3


@pytest.mark.parametrize("kind", PASS_COLOURS)
def test_numbers_on_passes_are_legible(kind: str) -> None:
    """Contrast of black text to the colour is at least 4.5, as WCAG 2.1 (1.4.3) requires of text."""
    assert (luminance(PASS_COLOURS[kind]) + 0.05) / 0.05 >= 4.5


def test_a_strategy_looks_the_same_in_all_figures() -> None:
    """A strategy's look is independent of the others drawn and of their order. Legends are in the registry's order."""
    everything = strategy_looks(sorted(STRATEGIES))
    assert list(everything) == list(STRATEGY_COLOURS) == list(STRATEGIES)
    for name in STRATEGIES:
        assert strategy_looks([name, "toy"])[name] == everything[name]
    assert len({look.marker for look in everything.values()}) == len(STRATEGIES)


def test_strategies_of_users_have_looks_of_their_own() -> None:
    """With a hundred strategies of users, each one differs from every other in colour or marker."""
    names = [*STRATEGIES, *(f"strategy {number}" for number in range(100))]
    looks = strategy_looks(names)
    assert set(looks) == set(names)
    assert len(set(looks.values())) == len(names) <= len(MARKERS) * len(STRATEGY_COLOURS)
    assert [name for name, look in looks.items() if look.colour == STRATEGY_COLOURS["single"]] == ["single"]
    assert len({symbol_path(marker) for marker in MARKERS}) == len(MARKERS)


def test_colours_are_in_one_file() -> None:
    """No other module of `results` writes one; docstrings may.

    In `results/figures` names and grey levels of matplotlib count, too. Elsewhere "red" and "green" are verdicts.
    """
    folder = ROOT / "results"
    modules = [path for path in folder.rglob("*.py") if path.name != "palette.py"]
    assert folder / "figures" / "marks.py" in modules
    found = {path: colours(path.read_text(), names=path.parent.name == "figures") for path in modules}
    assert not {path.name: texts for path, texts in found.items() if texts}


@pytest.mark.parametrize("colour", ["#aabbcc", "#AABBCC", "#abc", "black", "White", "0.95", "tab:red"])
def test_a_colour_in_code_is_found(colour: str) -> None:
    """However it is written, and wherever it stands; in a docstring it is none."""
    assert colours(f'draw(ink="{colour}", fill="none")', names=True) == [colour]
    assert colours(f'"""{colour}"""', names=True) == []
    assert colours(f'draw("{colour}")', names=False) == [colour] * colour.startswith("#")


def colours(code: str, names: bool) -> list[str]:
    """Return the strings in code that matplotlib takes for colours; `names` includes names and grey levels."""
    tree = ast.parse(code)
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = {node for node in ast.walk(tree) if isinstance(node, ast.Constant)} - docstrings
    texts = [node.value for node in constants if isinstance(node.value, str) and is_color_like(node.value)]
    return [text for text in texts if text.startswith("#") or (names and len(text) > 2 and text.lower() != "none")]
