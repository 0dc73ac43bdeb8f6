"""Tables of plain text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cli.tables import GAP, LEAST_WIDTH, PLAIN_WIDTH, aligned, wrapped

CELLS = st.text("ab=,[]/ 1", max_size=60).map(str.strip)


def letters(lines: list[str]) -> str:
    """All that is shown, but for spaces, in no order."""
    return "".join(sorted("".join(lines).replace(" ", "")))


@given(rows=st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=4), width=st.integers(1, 200))
def test_nothing_is_cut_off(rows: list[tuple[str, str, str]], width: int) -> None:
    """However narrow the screen, every letter of every cell is shown, and only two columns are wider than the screen.

    If the columns do not fit side by side, another table has the first column and the rest.
    """
    lines = aligned(rows, "<><", width=width)
    every, first = "".join("".join(row) for row in rows), "".join(row[0] for row in rows)
    assert letters(lines) in (letters([every]), letters([every, first]))
    names, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    assert max(map(len, lines)) <= max(width, names + GAP + max(others))


def test_columns_stand_under_each_other() -> None:
    """Where they fit, a row is a line, and numbers end below each other."""
    assert aligned([("mesh", "ms"), ("fsdp=8", "1.5")], "<>", width=80) == ["mesh     ms", "fsdp=8  1.5"]
    assert aligned([]) == []


def test_output_that_is_no_terminal_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tables are as wide as they are, whatever the environment says, its sentences as wide as a log, uncoloured."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    words = "a word " * PLAIN_WIDTH
    assert aligned([("mesh", words)]) == [f"mesh  {words}".rstrip()]
    assert PLAIN_WIDTH - LEAST_WIDTH < max(map(len, wrapped(words))) <= PLAIN_WIDTH


@given(text=CELLS, width=st.integers(1, 200))
def test_sentences_wrap(text: str, width: int) -> None:
    """No word is lost or broken; a line is wider than the screen only if it is one word, or a number and its unit."""
    lines = wrapped(text, width)
    assert " ".join(lines).split() == text.split()
    assert all(len(line) <= max(width, LEAST_WIDTH) or len(line.split()) == 1 or "1" in line for line in lines)
