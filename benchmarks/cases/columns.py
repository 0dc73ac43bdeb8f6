"""The table of columns of a row, columns.csv. It needs the standard library alone, so that `results` reads it, too.

The record takes its values by it, readers check them by it, gates judge by it, and docs/reference/columns.md is made of
it.
"""

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SCHEMA_VERSION = 4
"""Raised when a column changes its meaning or is removed."""


@dataclass(frozen=True)
class Column:
    """One column, or a family of them.

    Attributes:
        name: a key of `extra_info`; a part in angle brackets, such as `<axis>`, stands for any word.
        type: `text`, `word` (a string that is never null), `flag`, `count` (a whole number of at least 1), `amount` (at
            least 0), `positive` or `number`. Values are null where they are not known.
        unit: unit of the values; empty for strings, flags and plain numbers.
        part: of docs/reference/columns.md.
        source: where the record has the value: a path of attributes, or the name of a mapping from names of columns to
            values (`Record.as_extra_info`); empty if the path is the column's name.
        gate: `exact` if equal programs have equal values and the exact gate judges them; `tracked` if reports for
            trackers have the values, too; otherwise empty.
        better: whether `lower` or `higher` values are better; empty without a gate.
        meaning: the meaning, in one or two sentences.
    """

    name: str
    type: str
    unit: str
    part: str
    source: str
    gate: str
    better: str
    meaning: str

    @property
    def is_family(self) -> bool:
        """Whether it stands for several columns."""
        return "<" in self.name

    @property
    def is_number(self) -> bool:
        """Whether its values are numbers."""
        return self.type in ("count", "amount", "positive", "number")

    def covers(self, key: str) -> bool:
        """Return whether this column describes a key of `extra_info`.

        >>> column_of("compiled.sent_bytes.<kind>.<axis>").covers("compiled.sent_bytes.permute.toy")
        True
        """
        return re.fullmatch(re.sub("<[a-z]+>", "[a-z_]+", re.escape(self.name)), key) is not None


def _read() -> dict[str, Column]:
    with Path(__file__).with_name("columns.csv").open(encoding="utf-8", newline="") as lines:
        return {line["name"]: Column(**line) for line in csv.DictReader(lines)}


COLUMNS = _read()
"""All columns by name, in the order of a row."""


@cache
def column_of(key: str) -> Column | None:
    """Return the column, or the family of columns, of a key of `extra_info`; None if there is none.

    >>> column_of("noisy").type, column_of("compiled.sent_bytes.permute.toy").unit, column_of("mine")
    ('flag', 'bytes', None)
    """
    found = (column for column in COLUMNS.values() if column.is_family and column.covers(key))
    return COLUMNS.get(key) or next(found, None)


def gated(keys: Iterable[str], *gates: str) -> dict[str, Column]:
    """Return the columns of those keys that have one of these gates, in the order of the table.

    >>> list(gated(["memory.temp_bytes", "preset", "compiled.sent_bytes.permute.toy", "compiled.flops"], "exact"))
    ['memory.temp_bytes', 'compiled.flops', 'compiled.sent_bytes.permute.toy']
    """
    found = {key: column for key in keys if (column := column_of(key)) and column.gate in gates}
    return dict(sorted(found.items(), key=lambda item: _ORDER[item[1].name]))


_ORDER = {name: position for position, name in enumerate(COLUMNS)}
