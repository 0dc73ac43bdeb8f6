"""Strict types for all input: JSON, tables (files.py) and configurations. They need neither JAX nor pandas.

msgspec converts nothing silently: a string is not a number, a number is not a Boolean, and NaN is refused.
"""

import re
import reprlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

MOST = 2.0**63
"""Upper bound on amounts: 63 bits suffice. It also refuses infinities."""
Number = Annotated[float, Meta(ge=-MOST, lt=MOST)]
Amount = Annotated[float, Meta(ge=0, lt=MOST)]
Positive = Annotated[float, Meta(gt=0, lt=MOST)]
Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Scalar = bool | Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | Number | str | None
"""Possible values of a table cell whose column has no narrower type."""

T = TypeVar("T")

WORDS = {
    "float": "a number",
    "int": "a whole number",
    "str": "a string",
    "bool": "true or false",
    "null": "null",
    "object": "an object",
    "array": "a list",
    "Callable": "a function",
}
"""Names of types in msgspec's messages, in words."""
BOUNDS = {">=": "of at least", ">": "above", "<=": "of at most", "<": "below"}


class SchemaError(ValueError):
    """A value or file does not match its schema. The message is one line: the place, the value, what it can be."""


def checked(value: Any, kind: type[T] | Any, where: str, *, texts: bool = False) -> T:
    """Return a value as its type, which may be a `msgspec.Struct` or any annotation.

    Args:
        kind: the type; objects become structs, and lists become tuples where it says so.
        where: the file, or what the value is, for the message.
        texts: whether numbers and Booleans may be strings, as in a table's cells.

    >>> checked({"devices": 8}, dict[str, Count], "run.json")
    {'devices': 8}
    >>> checked([3, -1], list[Amount], "run.json: samples")
    Traceback (most recent call last):
    strategies.schema.SchemaError: run.json: samples[1] is -1; it must be a number of at least 0
    """
    try:
        return msgspec.convert(value, kind, strict=not texts)
    except msgspec.ValidationError as error:
        said, _, path = str(error).partition(" - at `$")
        path = path.removesuffix("`")
        mapping, unnamed, _ = path.partition("[...]")
        if unnamed:
            _check_values(_at(value, mapping), _inner(kind, mapping), _place(where, mapping))
        raise SchemaError(_message(said, path, _at(value, path), kind, where)) from None


def checked_fields(facts: Mapping[str, Any], kinds: Mapping[str, Any], where: str) -> None:
    """Check the values of some keys; others are allowed."""
    if missing := [name for name in kinds if name not in facts]:
        raise SchemaError(f"{where} lacks {', '.join(missing)}")
    for name, kind in kinds.items():
        checked(facts[name], kind, f"{where}: {name}")


def require_types(config: Any, error: type[ValueError] = SchemaError) -> None:
    """Check each field of a dataclass, which may be frozen, against its annotation. A mismatch raises `error`.

    Fields get their annotated types: an integer becomes a float, and a list a tuple, where these are annotated. NumPy
    numbers become Python's.
    """
    kinds = _struct(type(config))
    # By attribute, because where msgspec has made the dataclass, defaults are attributes of its class.
    values = {name: getattr(config, name) for name in kinds.__struct_fields__}
    try:
        try:
            converted = msgspec.convert(values, kinds)
        except msgspec.ValidationError:  # only after a failure, because a search makes thousands
            values = _plain(values)
            converted = msgspec.convert(values, kinds)
    except msgspec.ValidationError as problem:
        said, _, path = str(problem).partition(" - at `$")
        path = path.removesuffix("`")
        kind = get_type_hints(type(config), include_extras=True).get(str(next(iter(_steps(path)), "")))
        value = reprlib.repr(_at(values, path))
        allowed = _allowed(said, kind).replace(" or null", " or None")  # as Python writes it
        raise error(f"{path[1:]}={value}; {allowed}") from None
    vars(config).update(msgspec.structs.asdict(converted))


@cache
def _struct(kind: type) -> type[msgspec.Struct]:
    """The fields of a dataclass as a struct, which checks all in one call, because a search checks thousands."""
    hints = get_type_hints(kind, include_extras=True)
    return msgspec.defstruct(kind.__name__, [(field.name, hints[field.name]) for field in fields(kind)])


def _plain(value: Any) -> Any:
    """The value with NumPy numbers converted to Python's."""
    if type(value) in (tuple, list):
        return type(value)(map(_plain, value))
    if type(value) is dict:
        return {name: _plain(each) for name, each in value.items()}
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () else value


def _check_values(mapping: Any, kind: Any, where: str) -> None:
    """Check the values of a mapping one by one, because msgspec does not say which is wrong."""
    for option in (kind, *get_args(kind)):
        if get_origin(option) is dict and isinstance(mapping, dict):
            for name, value in mapping.items():
                checked(value, get_args(option)[1], f"{where}: {name}")


def _place(where: str, path: str) -> str:
    """The file, and the path in msgspec's messages."""
    return f"{where}{path}" if path.startswith("[") or not path else f"{where}: {path[1:]}"


def _message(said: str, path: str, value: Any, kind: Any, where: str) -> str:
    """A one-line message: the place, the value there, and what it can be."""
    place = _place(where, path)
    if found := re.fullmatch(r"Object missing required field `(.*)`", said):
        return f"{place} lacks {found[1]}"
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", said):
        return f"{place} has an unknown field {found[1]!r}"
    return f"{place} is {reprlib.repr(value)}; {_allowed(said, _inner(kind, path))}"


def _allowed(said: str, kind: Any) -> str:
    """What a value must be, in words.

    >>> _allowed("Expected `float | null`, got `str`", None), _allowed("Expected `int` >= 1", None)
    ('it must be a number or null', 'it must be a whole number of at least 1')
    """
    choices = ", ".join(map(str, _choices(kind)))
    if said.startswith("Invalid enum value") and choices:
        counted = any(int in (each, *get_args(each)[:1]) for each in get_args(kind))
        return f"it can be {choices}{' or a whole number' if counted else ''}"
    if said.startswith("Number out of range"):
        return "it is too large"
    found = re.fullmatch(r"Expected `([^`]*)`(?: (>=|>|<=|<) ([^,]*))?(?:, got .*)?", said)
    if not found:
        return said[0].lower() + said[1:]
    named = WORDS | ({"str": f"one of {choices}" if "," in choices else choices} if choices else {})
    words = "it must be " + " or ".join(named.get(name, name) for name in found[1].split(" | "))
    if not found[2]:
        return words
    if ends := _ends(kind):
        return f"{words} from {ends[0]:g} to {ends[1]:g}"
    limit = f"{float(found[3]):g}" if "." in found[3] else found[3]
    return f"{words} {BOUNDS[found[2]]} {limit}"


def _choices(kind: Any) -> tuple[Any, ...]:
    """The values of a `Literal`, also inside a union or an annotation."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    inner = get_args(kind)[:1] if get_origin(kind) is Annotated else get_args(kind)
    unions = get_origin(kind) in (Annotated, Union, UnionType)
    return tuple(value for each in inner for value in _choices(each)) if unions else ()


def _ends(kind: Any) -> tuple[float, float] | None:
    """Both ends of a range of fractions; None unless it has two."""
    metas = [meta for option in (kind, *get_args(kind)) for meta in getattr(option, "__metadata__", ())]
    ranges = [(meta.ge, meta.le) for meta in metas if isinstance(meta.ge, float) and isinstance(meta.le, float)]
    return ranges[0] if ranges else None


def _steps(path: str) -> list[str | int]:
    """The steps of a path in msgspec's messages: names and indices."""
    return [int(number) if number else name for name, number in re.findall(r"\.([^.\[]+)|\[([0-9]+)\]", path)]


def _at(value: Any, path: str) -> Any:
    """The value at a path in msgspec's messages; the enclosing value where the path is ambiguous."""
    with suppress(LookupError, TypeError):
        for step in _steps(path):
            value = value[step]
    return value


def _inner(kind: Any, path: str) -> Any:
    """The annotation at a path; None if the path leads elsewhere."""
    for step in _steps(path):
        options = [kind, *get_args(kind)] if get_origin(kind) in (Annotated, Union, UnionType) else [kind]
        inside = None
        for option in options:
            if isinstance(step, str) and isinstance(option, type) and issubclass(option, msgspec.Struct):
                inside = get_type_hints(option, include_extras=True).get(step)
            elif isinstance(step, int) and get_origin(option) in (list, tuple):
                inside = get_args(option)[0]
        kind = inside
    return kind
