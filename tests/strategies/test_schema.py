"""What is read is of its type, or is refused in one line that names the place, the value and what it can be."""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pytest

from strategies import Infeasible, MeshSpec, TrainConfig
from strategies.files import decode_json, read_bytes, read_table
from strategies.schema import Amount, Count, Number, SchemaError, checked, checked_fields, require_types


def table_of(content):
    """The rows of a table with this content."""
    with NamedTemporaryFile(suffix=".csv") as file:
        file.write(content)
        file.flush()
        return read_table(Path(file.name), ["a"])


class Point(msgspec.Struct):
    """A record with a choice and a number."""

    kind: Literal["a", "b"]
    x: Number


class Document(msgspec.Struct):
    """A record with a list of others."""

    points: list[Point]
    count: Count
    bytes: Amount | None = None
    share: Annotated[float, msgspec.Meta(ge=0.5, le=1.0)] | None = None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"points": [{"kind": "c", "x": 1}], "count": 1}, r"f: points\[0\].kind is 'c'; it can be a, b"),
        ({"points": [{"kind": "a", "x": math.inf}], "count": 1}, r"f: points\[0\].x is inf; it must be a number below"),
        ({"points": [{"kind": "a"}], "count": 1}, r"f: points\[0\] lacks x"),
        ({"points": 3, "count": 1}, "f: points is 3; it must be a list"),
        ({"points": [], "count": True}, "f: count is True; it must be a whole number"),
        ({"points": [], "count": 0}, "f: count is 0; it must be a whole number of at least 1"),
        ({"points": [], "count": 1.0}, "f: count is 1.0; it must be a whole number"),
        ({"points": [], "count": 1, "bytes": math.nan}, "f: bytes is nan; it must be a number of at least 0"),
        ({"points": [], "count": 1, "bytes": "2"}, "f: bytes is '2'; it must be a number or null"),
        ({"points": [], "count": 1, "share": 1.5}, "f: share is 1.5; it must be a number from 0.5 to 1"),
        (3, "f is 3; it must be an object"),
    ],
)
def test_a_value_of_another_type_is_refused(value, message):
    """The message names the place, the value and what it can be."""
    with pytest.raises(SchemaError, match=message) as refused:
        checked(value, Document, "f")
    assert "\n" not in str(refused.value)


def test_a_value_of_its_type_is_returned():
    """Whole numbers are numbers; fields that may be left out have their defaults."""
    found = checked({"points": [{"kind": "a", "x": 1}], "count": 2}, Document, "f")
    assert found == Document([Point("a", 1.0)], 2)


def test_missing_keys_are_named():
    """A mapping must have the keys that are asked for, and may have others."""
    checked_fields({"x": 1, "other": object()}, {"x": Number}, "row 3")
    with pytest.raises(SchemaError, match="row 3 lacks y, z"):
        checked_fields({"x": 1}, {"x": Number, "y": Number, "z": Number}, "row 3")


@dataclass
class Config:
    """A configuration."""

    size: Count = 1
    on: bool = True


@pytest.mark.parametrize(("field", "value"), [("size", True), ("size", 1.5), ("size", None), ("on", "no"), ("on", 0)])
def test_a_configuration_is_of_its_types(field, value):
    """A text or a number is not taken for true or false, nor a fraction for a count."""
    with pytest.raises(LookupError, match=f"{field}={value!r}; it must be"):
        require_types(Config(**{field: value}), LookupError)  # pyright: ignore[reportArgumentType]


def test_numbers_of_numpy_are_numbers():
    """They become Python's, also inside a mesh; an array and a number out of range are refused."""
    numbers: dict[str, Any] = {"unroll": np.int32(2), "regather": np.bool_(False), "learning_rate": np.float64(1e-3)}
    train = TrainConfig(8, np.int64(2), **numbers)  # pyright: ignore[reportArgumentType]
    assert train == TrainConfig(8, 2, learning_rate=1e-3, unroll=2, regather=False)
    assert [type(each) for each in (train.microbatches, train.learning_rate, train.regather)] == [int, float, bool]
    mesh = MeshSpec((("data", np.int64(2)),))  # pyright: ignore[reportArgumentType]
    assert mesh == MeshSpec.parse("data=2")
    wrong: Any
    for wrong in (np.float64("nan"), np.ones(2), np.str_("fast")):
        with pytest.raises(Infeasible, match="learning_rate="):
            TrainConfig(8, learning_rate=wrong)


WRONG_JSON = (
    *(b"", b'{"a": NaN}', b'{"a": 1e999}', b'{"a": "\\ud800"}', b'{"a": 1, "a": 2}', b"\xff", b"[" * 100_000),
    *(b'{"a": %s}' % (b"1" * 5000), b"{} x", '{"a": 1}'.encode("utf-16"), "\ud800"),
)
"""Python's own reader takes NaN, infinities, keys that occur twice and lone surrogates."""
WRONG_TABLES = {
    b"": "lacks the columns a",
    b"a,b\n": "has no rows",
    b"a,a\n1,2\n": "has the column 'a' twice",
    b"b,c\n1,2\n": "lacks the columns a",
    b'a,b\n1,"2\n': "is not CSV: unexpected end of data",
    b"a,b\n1,2\n\n3,4,5\n": "line 4 has 3 cells, and the header 2",
    b"a,b\n1\n": "line 2 has 1 cells, and the header 2",
    b"a\n\xff\n": "is not UTF-8 at byte 2",
    "a\n1\n".encode("utf-16"): "is UTF-16; save it as UTF-8",
    b"\x1f\x8b\x08": "is compressed with gzip; unpack it first",
}
NO_FILES = {
    "/dev/null": "is a pipe or a device; name a file",
    "/": "is a folder, not a file",
    "/missing": "/missing does not exist",
    "/\udcff": r"/\? does not exist",
    "\0": "(does not exist|cannot be read)",
    "x" * 5000: "cannot be read: File name too long",
}


@pytest.mark.parametrize(
    ("reader", "given", "message"),
    [
        *((partial(decode_json, where="f"), text, "f is cut short or not JSON") for text in WRONG_JSON),
        *((table_of, *row) for row in WRONG_TABLES.items()),
        *((lambda path: read_bytes(Path(path)), *row) for row in NO_FILES.items()),
    ],
    ids=lambda value: repr(value)[:30] if isinstance(value, bytes | str) else "",
)
def test_what_cannot_be_read_is_refused(reader, given, message):
    """The message says what is there instead, in a line of printable text of a bounded length."""
    with pytest.raises(SchemaError, match=message) as refused:
        reader(given)
    assert len(str(refused.value)) < 400
    assert "\n" not in str(refused.value)
    str(refused.value).encode()


def test_a_table_is_read():
    """A byte order mark, empty lines and space around cells are no content."""
    assert table_of(b'\xef\xbb\xbfa, b\n , \n"1,5", 2 \n') == [{"a": "1,5", "b": "2"}]
