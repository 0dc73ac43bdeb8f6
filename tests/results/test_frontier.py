"""The laws of the figure of a search: times and memory of the drawn candidates are those of their rows."""

from pathlib import Path

import numpy as np
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from results.figures.frame import caption_of
from results.figures.palette import STRATEGY_COLOURS
from results.figures.search import TIMES, drawn_candidates, figure_of
from results.records.documents import read_search as read
from tests.results.documents import GIB
from tests.results.pictures import legend_of


def test_the_best_the_compiled_and_the_measured_are_drawn(found: Path) -> None:
    """A line each in the order of their ranks, named by strategy, mesh and options; the caption counts all."""
    facts, rows = read(found)
    assert list(drawn_candidates(rows)["needed_bytes"] / GIB) == [12, 4, 8]
    figure = figure_of(facts, rows)
    left, _ = figure.axes
    names = [label.get_text() for label in left.get_yticklabels()]
    assert names == [f"{name}\nremat dots" for name in ("fsdp fsdp=16", "fsdp fsdp=16", "tensor tensor=16")]
    said = caption_of(figure)
    assert "3 of 7 candidates drawn, 2 of them compiled and 1 measured" in said
    assert "By formula 4 fit, 2 are too large, 1 are infeasible" in said
    assert "-50% to +100% with a probability of 80%" in said
    assert "gpt2 (124.0M parameters), 64 sequences of 1024 tokens, bfloat16, on 16 devices of v5e:4x4" in said


def test_times_are_those_of_the_rows(found: Path) -> None:
    """Least, predicted, compiled and measured, in milliseconds on the line of a candidate, in its strategy's colour."""
    facts, rows = read(found)
    shown = drawn_candidates(rows)
    assert shown[[*TIMES]].fillna(0).values.tolist() == [[1e3, 2e3, 2.5e3, 0], [1e3, 2.5e3, 0, 0], [1e3, 3e3, 0, 2750]]
    axes = figure_of(facts, rows).axes[0]
    points = [tuple(np.asarray(line.get_xydata())[0]) for line in axes.lines]
    assert points[:3] == [(1e3, 0), (2e3, 0), (2.5e3, 0)]
    assert [to_hex(line.get_color()) for line in axes.lines[:3]] == [STRATEGY_COLOURS["fsdp"]] * 3
    labels = legend_of(figure_of(facts, rows))
    assert labels[:4] == [label for _, label in TIMES.values()]
    assert labels[4:] == ["memory as compiled", "memory by formula", "memory of the chip"]


def test_memory_is_next_to_what_a_device_has(found: Path) -> None:
    """A bar as compiled, a tick by formula, and the line of the device; all inside the axes."""
    axes = figure_of(*read(found)).axes[1]
    assert [bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)] == [14, 20, 0]
    ticks, limit = axes.lines
    assert np.asarray(ticks.get_xdata()).tolist() == [12, 4, 8]
    assert {*np.asarray(limit.get_xdata())} == {16}
    assert axes.get_xlim()[1] > 20


def test_without_compiled_candidates_the_best_are_drawn(found: Path) -> None:
    """The first of each strategy and set of mesh axes, as the search ranks them."""
    facts, rows = read(found)
    some = rows[rows["compiled.needed_bytes"].isna() & rows["measured.seconds"].isna()]
    assert "1 of 4 candidates drawn, 0 of them compiled and 0" in caption_of(figure_of(facts, some))
