"""Mappings from names, which say what there is where a name is not known."""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

Value = TypeVar("Value")


class UnknownName(KeyError):
    """A name that a mapping does not have; the message has those that it has."""

    def __str__(self) -> str:
        """The message as it is: `KeyError` would quote it."""
        return str(self.args[0])


class Named(dict[str, Value]):
    """A dict that raises `UnknownName`.

    Args:
        what: one of its values is.
        items: as for a dict.
        known_as: other names by which its values are known, each with the name here.

    >>> Named("strategy", {"fsdp": 1, "data": 2}, {"zero3": "fsdp"})["zero3"]
    Traceback (most recent call last):
        ...
    strategies.names.UnknownName: 'zero3' is no strategy; there are fsdp, data; did you mean fsdp?
    """

    def __init__(self, what: str, items: Mapping[str, Value], known_as: Mapping[str, str] | None = None) -> None:
        super().__init__(items)
        self.what, self.known_as = what, dict(known_as or {})

    def __missing__(self, name: object) -> Value:
        raise UnknownName(unknown(name, self.what, self, self.known_as))


def unknown(name: object, what: str, names: Iterable[str], known_as: Mapping[str, str]) -> str:
    """Say that a name is not known, which one may be meant, and which there are."""
    names, text = list(names), str(name).lower()
    near = [known_as[text]] if text in known_as else difflib.get_close_matches(text, names, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"{name!r} is no {what}; there are {', '.join(names)}{meant}"
