"""Read JSON files and tables. A SchemaError says in one line why a file cannot be read. schema.py checks types."""

import csv
import io
import json
import reprlib
from codecs import BOM_UTF8
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec

from strategies.schema import SchemaError

LARGEST_BYTES = 2**30
"""Larger files are refused: the largest runs have a few MiB."""


def read_json(path: Path, written_by: str = "") -> Any:
    """Read a JSON file. `written_by` tells the message which command writes such files."""
    content = read_bytes(path, written_by)
    try:
        return decode_json(content, str(path))
    except SchemaError as error:
        raise SchemaError(f"{error}; {written_by}" if written_by else str(error)) from None


def decode_json(text: bytes | str, where: str) -> Any:
    """Decode JSON (RFC 8259) without duplicate keys, NaN, infinities and lone surrogates."""
    data = (text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text).removeprefix(BOM_UTF8)
    try:
        value = msgspec.json.decode(data)
        json.loads(data, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise SchemaError(f"{where} is cut short or not JSON: {error}") from None
    return value


def read_table(path: Path, columns: Collection[str] = (), written_by: str = "") -> list[dict[str, str]]:
    """Read the rows of a UTF-8 CSV file (RFC 4180) with a header that has `columns`.

    Cells are stripped strings; empty lines are skipped. `written_by` tells the message which command writes such files.
    """
    text = read_text(path, written_by).removeprefix("\ufeff")
    try:
        lines = csv.reader(io.StringIO(text, newline=""), strict=True)
        table = [(lines.line_num, [cell.strip() for cell in line]) for line in lines]
    except csv.Error as error:
        raise SchemaError(f"{shown(path)} is not CSV: {error}") from None
    table = [(number, cells) for number, cells in table if any(cells)]
    header = table[0][1] if table else []
    if twice := [name for name in dict.fromkeys(header) if header.count(name) > 1]:
        raise SchemaError(f"{shown(path)} has the column {reprlib.repr(twice[0])} twice")
    if missing := [name for name in columns if name not in header]:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        way_out = written_by or "name a table that has them in its first line"
        raise SchemaError(f"{shown(path)} lacks the columns {', '.join(missing[:5])}{more}; {way_out}")
    if len(table) < 2:
        raise SchemaError(f"{shown(path)} has no rows")
    for number, cells in table[1:]:
        if len(cells) != len(header):
            raise SchemaError(f"{shown(path)}: line {number} has {len(cells)} cells, and the header {len(header)}")
    return [dict(zip(header, cells, strict=True)) for _, cells in table[1:]]


def read_text(path: Path, written_by: str = "") -> str:
    """Read UTF-8 text, keeping its line ends and byte order mark."""
    try:
        return read_bytes(path, written_by).decode("utf-8")
    except UnicodeDecodeError as error:
        raise SchemaError(f"{shown(path)} is not UTF-8 at byte {error.start:,}; save it as UTF-8") from None


def read_bytes(path: Path, written_by: str = "") -> bytes:
    """Read a regular file."""
    way_out = f"; {written_by}" if written_by else ""
    try:
        if not path.exists():
            raise SchemaError(f"{shown(path)} does not exist{way_out}")
        if path.is_dir():
            raise SchemaError(f"{shown(path)} is a folder, not a file{way_out}")
        if not path.is_file():
            raise SchemaError(f"{shown(path)} is a pipe or a device; name a file")
        if (size := path.stat().st_size) > LARGEST_BYTES:
            raise SchemaError(f"{shown(path)} has {size:,} bytes; files up to {LARGEST_BYTES:,} are read")
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, SchemaError):
            raise
        raise SchemaError(f"{shown(path)} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if content.startswith(b"\x1f\x8b"):
        raise SchemaError(f"{shown(path)} is compressed with gzip; unpack it first")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise SchemaError(f"{shown(path)} is UTF-16; save it as UTF-8")
    return content


def shown(path: Path) -> str:
    """A path as printable text of at most 300 characters; bytes that are not UTF-8 become `?`."""
    text = str(path).encode("utf-8", "replace").decode("utf-8")
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= 300 else f"{text[:100]}...{text[-100:]}"


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that occurs twice; JSON readers silently take one of them."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"the key {reprlib.repr(twice)} occurs twice in an object")
    return found
