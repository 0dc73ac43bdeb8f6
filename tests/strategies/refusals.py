"""The law of a refusal: it says in one line what is wrong, the value, and what is allowed or what to do."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from strategies import Infeasible

LONGEST = 600
"""Characters of a message."""


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
