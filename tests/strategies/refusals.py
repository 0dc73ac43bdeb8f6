"""The law of a refusal: it says in one line what is wrong, the value, and what is allowed or what to do."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from strategies import Infeasible

LONGEST, SHORT = 600, 300
"""Characters of a message: at most, and unless it lists names."""
Row = tuple[Callable[[Path], Any], str]
"""A call, to which an empty folder is passed, and a pattern of what it says."""


def assert_refused(call: Callable[[], Any], message: str, error: type[Exception] = Infeasible) -> str:
    """A call ends in an error with these words (a pattern); returns what it says."""
    with pytest.raises(error, match=message) as caught:
        call()
    said = str(caught.value)
    assert len(said.splitlines()) == 1, said
    assert len(said) < LONGEST, said
    assert re.search(r"[=']|\d", said), f"it does not name the value: {said}"
    assert "; " in said, f"it does not say what is allowed, or what to do: {said}"
    return said


def cases(calls: Mapping[type[Exception], Sequence[Row]]) -> Iterator[Any]:
    """A case for each row of a table of calls by the error that they raise."""
    return (pytest.param(error, *row, id=row[1]) for error, rows in calls.items() for row in rows)


def assert_short(error: type[Exception], call: Callable[[Path], Any], message: str, folder: Path) -> None:
    """A call ends in an error with these words (a pattern) in a few words."""
    with pytest.raises(error, match=message) as caught:
        call(folder)
    said = str(caught.value).replace(str(folder), "")
    assert len(said) < (LONGEST if "use one of" in said or "it can have" in said else SHORT)
