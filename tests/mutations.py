"""Mutations of valid files and arguments: other types, keys, numbers, cells, encodings."""

import csv
import gzip
import io
import json
import re
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

VALUES: list[Any] = [
    *(None, True, False, -1, 0, 1, 2.5, 10**6, 2**70, 1e308, -1e-300, "", " ", "x", "3,5", "1", "$\\frac$", "_^$"),
    *("=HYPERLINK(1)", "\n", "x" * 3000, "٣", "ﬁ\u202e", [], {}, [[]], [None], {"": 0}, {"data": "data"}),
]
"""Values in place of others."""
TEXTS = [
    *(
        "",
        " ",
        "nan",
        "inf",
        "-inf",
        "-1",
        "0",
        "1e999",
        "99999999999",
        "9" * 30,
        "abc",
        "3,5",
        "٣",
        "a=b",
        "=",
        ",",
        "x=1,y",
    ),
    *(
        "$x_",
        "1..2",
        "8..999999999",
        "None",
        "x" * 1000,
        "/dev/full",
        "/",
        "../x",
        "data=0",
        "data=99999999",
        "2x",
        "1e5",
    ),
    *(
        "unroll=0",
        "unroll=99999999999",
        "gather=never",
        "hbm=1e999GiB",
        "hbm=nanGiB",
        "flops=0x",
        "0.5",
        "run.json",
        "\udcff",
    ),
]
"""Arguments in place of others; the last is what Python makes of a byte that is not UTF-8."""


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for name, inside in items for place in places(inside, (*path, name)))]


def changed(value: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    """A copy of a JSON value in which `change` was called with the container at a path and the last step to it."""
    copy = json.loads(json.dumps(value))
    inside = copy
    for step in path[:-1]:
        inside = inside[step]
    change(inside, path[-1])
    return copy


@st.composite
def other_json(draw: st.DrawFn, text: str) -> bytes:
    """JSON, or a log of JSON Lines, in which one value is another, or a key is missing, renamed or there twice."""
    lines = text.splitlines() if text.count("\n") > 1 else [text]
    number = draw(st.integers(0, len(lines) - 1))
    document = json.loads(lines[number])
    paths = places(document)[1:]
    path = draw(st.sampled_from(paths)) if paths else ()
    kind = draw(st.sampled_from(["value", "value", "value", "missing", "renamed", "doubled", "number"]))
    if kind == "value":
        other = draw(
            st.sampled_from(VALUES) | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
        )
        lines[number] = json.dumps(changed(document, path, lambda inside, step: inside.__setitem__(step, other)))
    elif kind == "missing":
        lines[number] = json.dumps(changed(document, path, lambda inside, step: inside.__delitem__(step)))
    elif kind == "renamed":
        keys = list(re.finditer(r'"([^"]+)": ', lines[number]))
        where = draw(st.sampled_from(keys))
        lines[number] = (
            f"{lines[number][: where.start(1)]}{draw(st.sampled_from(['x', '$_^']))}{lines[number][where.end(1) :]}"
        )
    elif kind == "doubled":
        where = draw(st.sampled_from(list(re.finditer(r'"[^"]+": ', lines[number]))))
        lines[number] = f"{lines[number][: where.start()]}{where[0]}0, {lines[number][where.start() :]}"
    else:
        numbers = list(re.finditer(r"(?<=[ \[])-?[0-9][0-9.e+-]*", lines[number]))
        where = draw(st.sampled_from(numbers)) if numbers else None
        odd = draw(st.sampled_from(["NaN", "-Infinity", "1e999", "9" * 5000, '"\\ud800"', "1,5", "01", "-0"]))
        lines[number] = f"{lines[number][: where.start()]}{odd}{lines[number][where.end() :]}" if where else odd
    return "\n".join(lines).encode("utf-8", "surrogatepass")


@st.composite
def other_table(draw: st.DrawFn, text: str) -> bytes:
    """CSV in which a cell is another, or a column or row is missing, there twice, or of another length."""
    rows = list(csv.reader(io.StringIO(text)))
    row, column = draw(st.integers(0, len(rows) - 1)), draw(st.integers(0, len(rows[0]) - 1))
    kind = draw(st.sampled_from(["cell", "cell", "cell", "missing", "doubled", "short", "long", "blank", "quote"]))
    if kind == "cell":
        rows[row][column] = draw(st.sampled_from(TEXTS[:-1]) | st.text(max_size=8))
    elif kind == "missing":
        rows = [[cell for place, cell in enumerate(cells) if place != column] for cells in rows]
    elif kind == "doubled":
        rows = [[*cells, cells[column]] for cells in rows]
    elif kind == "short":
        del rows[row][column]
    elif kind == "long":
        rows[row].append("1")
    elif kind == "blank":
        rows.insert(row, [" "] * draw(st.integers(0, 30)))
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return (stream.getvalue() + ('"' if kind == "quote" else "")).encode("utf-8", "surrogatepass")


@st.composite
def other_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """A file that is cut short, damaged, compressed, or in another encoding."""
    place = draw(st.integers(0, len(content) - 1))
    return draw(
        st.sampled_from(
            [
                content[:place],
                content[:place] + bytes([draw(st.integers(0, 255))]) + content[place + 1 :],
                content[:place] + b"\xff" + content[place:],
                content[:place] + b"\0" + content[place:],
                content.decode().encode("utf-16"),
                content.decode().encode("utf-8-sig"),
                gzip.compress(content),
                content + content[:place],
                b"",
                b"\n \n",
                b"[" * 100_000,
            ]
        )
    )


def mutated(content: bytes, name: str) -> st.SearchStrategy[bytes]:
    """Mutations of a file."""
    structure = other_table if name.endswith(".csv") else other_json
    return st.one_of(structure(content.decode()), structure(content.decode()), other_bytes(content))
