"""A column of a record: its name, unit and meaning."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """One column, or a family of them.

    Attributes:
        name: a key of `extra_info`; a part in angle brackets, such as `<axis>`, stands for any word.
        unit: unit of the values; empty for texts, flags and plain numbers.
        meaning: the meaning, in one or two sentences.
    """

    name: str
    unit: str
    meaning: str

    def covers(self, key: str) -> bool:
        """Return whether this column describes a key of `extra_info`.

        >>> Column("compiled.sent_bytes.<kind>.<axis>", "bytes", "").covers("compiled.sent_bytes.permute.data")
        True
        """
        return re.fullmatch(re.sub(r"<\w+>", r"\\w+", re.escape(self.name)), key) is not None
