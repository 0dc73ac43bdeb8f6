"""The table of columns: of every column of a row, once, and as docs/reference/columns.md has it."""

import re

import pytest

from benchmarks.cases.column import Column
from benchmarks.cases.columns import COLUMNS, tables
from tests.benchmarks.run.test_record import MEASURED
from tests.processes import ROOT


def test_every_column_is_said_once() -> None:
    """Each column of a row has one meaning, and the table has no column that no row has."""
    keys = MEASURED.as_extra_info()
    assert {key: sum(column.covers(key) for column in COLUMNS) for key in keys} == dict.fromkeys(keys, 1)
    assert not [column.name for column in COLUMNS if not any(map(column.covers, keys))]


def test_the_page_is_what_is_made_of_it() -> None:
    """To regenerate it: `python -m benchmarks.cases.columns`."""
    assert (ROOT / "docs" / "reference" / "columns.md").read_text().endswith(tables() + "\n")


@pytest.mark.parametrize("family", [column for column in COLUMNS if "<" in column.name], ids=lambda column: column.name)
def test_a_family_names_its_members(family: Column) -> None:
    """One line of the table stands for many columns: it has every word that stands in the brackets."""
    pattern = re.sub(r"<\w+>", r"(\\w+)", re.escape(family.name))
    found = [match.groups() for key in MEASURED.as_extra_info() if (match := re.fullmatch(pattern, key))]
    assert len(found) > 1
    words = {word for member in found for word in member}
    assert words == set(re.findall(r"`(\w+)`", family.meaning))
