"""Tables of plain text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cli.tables import LEAST_WIDTH, PLAIN_WIDTH, aligned, wrapped

CELLS = st.text("ab=,[]/ 1", max_size=60).map(str.strip)


def letters(lines: list[str]) -> str:
    """All that is shown, but for spaces, in no order."""
    return "".join(sorted("".join(lines).replace(" ", "")))


@given(rows=st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=4), width=st.integers(1, 200))
def test_nothing_is_cut_off(rows: list[tuple[str, str, str]], width: int) -> None:
    """However narrow the screen, every letter of every cell is shown, and no line is wider than the screen."""
    lines = aligned(rows, "<><", width=width)
    assert letters(lines) == letters(["".join(row) for row in rows])
    assert max(map(len, lines)) <= max(width, LEAST_WIDTH * 3)


def test_columns_stand_under_each_other() -> None:
    """Where they fit, a row is a line, and numbers end below each other."""
    assert aligned([("mesh", "ms"), ("fsdp=8", "1.5")], "<>", width=80) == ["mesh     ms", "fsdp=8  1.5"]
    assert aligned([]) == []


def test_output_that_is_no_terminal_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its width is fixed whatever the environment says, and it has no colours."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    (line,) = aligned([("mesh", "x" * (PLAIN_WIDTH - 6))])
    assert line == "mesh  " + "x" * (PLAIN_WIDTH - 6)


def test_cells_break_between_words() -> None:
    """Words and sizes of a mesh stay whole as long as there is room for them."""
    rows = [("mesh", "bottleneck"), ("data=2,fsdp=2", "links inside a host")]
    folded = ["mesh          bottleneck", "data=2,       links inside", "fsdp=2        a host"]
    assert aligned(rows, width=27) == folded
    assert aligned([("MiB/device", "equal")], width=13) == ["MiB/    equal", "device"]


@given(text=CELLS, width=st.integers(1, 200))
def test_sentences_wrap(text: str, width: int) -> None:
    """No word is lost or broken; a line is wider than the screen only if it has a single word."""
    lines = wrapped(text, width)
    assert " ".join(lines).split() == text.split()
    assert all(len(line) <= max(width, LEAST_WIDTH) or len(line.split()) == 1 for line in lines)
