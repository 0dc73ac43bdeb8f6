"""Mappings whose errors list the known names."""

import difflib
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

Value = TypeVar("Value")
NO_OTHERS: Mapping[str, str] = MappingProxyType({})


class UnknownName(KeyError, ValueError):
    """A name is not in a mapping. The message lists the names that are."""

    def __str__(self) -> str:
        """The message without quotes, which `KeyError` would add."""
        return str(self.args[0])


class Named(dict[str, Value]):
    """A dict that raises `UnknownName` for a missing key, and suggests a similar name.

    `what` says in messages what a value is; `known_as` maps names that others use to keys.

    >>> Named("strategy", {"fsdp": 1, "data": 2}, {"zero3": "fsdp"})["zero3"]
    Traceback (most recent call last):
        ...
    strategies.names.UnknownName: 'zero3' is not a strategy; use one of fsdp, data; did you mean fsdp?
    """

    def __init__(self, what: str, items: Mapping[str, Value], known_as: Mapping[str, str] | None = None) -> None:
        super().__init__(items)
        self.what, self.known_as = what, dict(known_as or {})

    def __missing__(self, name: object) -> Value:
        raise UnknownName(unknown(name, self.what, self, self.known_as))


def unknown(name: object, what: str, names: Iterable[str], known_as: Mapping[str, str] = NO_OTHERS) -> str:
    """The error message for an unknown name: the known names, and a suggestion."""
    names, text = list(names), str(name).lower()
    meant = [known_as[text]] if text in known_as else similar(text, names)
    article = "an" if what[0] in "aeiou" else "a"
    return f"{name!r} is not {article} {what}; use one of {', '.join(names)}{did_you_mean(meant)}"


def similar(name: str, names: Iterable[str]) -> list[str]:
    """The most similar name, if any is."""
    return difflib.get_close_matches(name.lower(), list(names), n=1)


def did_you_mean(names: Sequence[str]) -> str:
    """The end of an error message that suggests names; empty without any."""
    return f"; did you mean {' or '.join(names)}?" if names else ""


MOST_DIFFERENCES = 5
"""Upper bound on the differences that a message lists."""


def differences(before: Mapping[str, Any], now: Mapping[str, Any], options: Mapping[str, str] | None = None) -> str:
    """The fields that differ, with both values, and the options that set them. Fields without an option come last.

    >>> differences({"layers": 2, "dtype": "float32"}, {"layers": 3, "dtype": "float32"}, {"layers": "--model"})
    'layers=2, not 3 (--model)'
    """
    known = options or {}
    names = sorted((name for name in now if before[name] != now[name]), key=lambda name: name not in known)
    values = ((reprlib.repr(facts[name]).strip("'") for facts in (before, now)) for name in names)
    said = [f"{name}={', not '.join(pair)}" for name, pair in zip(names, values, strict=True)]
    said = [f"{text} ({known[name]})" if name in known else text for name, text in zip(names, said, strict=True)]
    more = len(said) - MOST_DIFFERENCES
    return "; ".join([*said[:MOST_DIFFERENCES], *([f"and {more} more"] if more > 0 else [])])


def in_a_line(error: BaseException) -> str:
    """An error's type and the first line of its message.

    >>> in_a_line(SystemExit(3)), in_a_line(KeyError("x")), in_a_line(ValueError())
    ('SystemExit: 3', "KeyError: 'x'", 'ValueError')
    """
    lines = [line for line in text_of(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__


def text_of(error: BaseException) -> str:
    """The message of an error, even if its `__str__` fails.

    >>> text_of(ValueError("heads=3")), text_of(type("Silent", (Exception,), {"__str__": lambda self: self})())
    ('heads=3', '(without a message: its __str__ raised TypeError)')
    """
    try:
        return str(error)
    except Exception as again:
        return f"(without a message: its __str__ raised {type(again).__name__})"
