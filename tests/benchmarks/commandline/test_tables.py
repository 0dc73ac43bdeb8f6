"""Tables of plain text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.commandline import tables
from benchmarks.commandline.tables import LEAST_WIDTH, PLAIN_WIDTH, aligned

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


def test_a_wide_table_needs_no_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rich a wide table has long lines, and nothing of it is lost."""
    rows = [("mesh", "x" * 60), ("fsdp=8", "y")]
    assert max(map(len, aligned(rows, width=40))) <= 40
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    assert aligned(rows, width=40) == ["mesh    " + "x" * 60, "fsdp=8  y"]
