"""Files of tensors in the safetensors format, mapped into memory: bytes are read or written when a view is used.

A file is the length of its header (8 bytes, little endian), the header (JSON: dtype, shape and byte range of each
tensor), and the bytes of all tensors without gaps. See https://huggingface.co/docs/safetensors.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import msgspec
import numpy as np

from strategies.files import decode_json, shown
from strategies.schema import SchemaError, Whole, checked

DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""By their names in a header."""
MOST_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library."""


class Entry(msgspec.Struct, frozen=True):
    """A tensor in a header."""

    dtype: str
    shape: tuple[Whole, ...]
    data_offsets: tuple[Whole, Whole]


def opened(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file by name."""
    try:
        bytes_N = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise SchemaError(f"{shown(path)} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    length = int.from_bytes(bytes_N[:8].tobytes(), "little")
    if length > min(MOST_HEADER_BYTES, len(bytes_N) - 8):
        raise SchemaError(f"{shown(path)} is cut short or not safetensors: its header has {length:,} bytes")
    header = checked(decode_json(bytes_N[8 : 8 + length].tobytes(), shown(path)), dict[str, Any], shown(path))
    header.pop("__metadata__", None)
    entries = checked(header, dict[str, Entry], shown(path))
    data_N, start = np.asarray(bytes_N)[8 + length :], 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        where, (begin, end) = f"{shown(path)}: {name}", entry.data_offsets
        if entry.dtype not in DTYPES:
            raise SchemaError(f"{where} has dtype {entry.dtype}; supported are {', '.join(DTYPES)}")
        if begin != start or end - begin != math.prod(entry.shape) * _dtype(entry).itemsize:
            raise SchemaError(f"{where} of shape {list(entry.shape)} is in bytes {begin:,} to {end:,}, after {start:,}")
        start = end
    if start != len(data_N):
        raise SchemaError(f"{shown(path)} has {len(data_N):,} bytes of tensors, and its header says {start:,}")
    return {name: _mapped(data_N, entry) for name, entry in entries.items()}


def created(path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: str) -> dict[str, np.ndarray]:
    """Create a file of tensors of one dtype. Writes to the tensors go to the file."""
    code = next(code for code, name in DTYPES.items() if name == dtype)
    entries, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * jnp.dtype(dtype).itemsize
        entries[name] = Entry(code, shape, (begin, end))
    facts = {name: msgspec.structs.asdict(entry) for name, entry in entries.items()}
    header = json.dumps({"__metadata__": {"format": "pt"}, **facts}).encode()
    header += b" " * (-len(header) % 8)  # aligns tensors
    with path.open("xb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)
        if hasattr(os, "posix_fallocate"):  # otherwise a full disk kills the process when a page is written
            file.flush()
            os.posix_fallocate(file.fileno(), 0, 8 + len(header) + end)
    data_N = np.asarray(np.memmap(path, np.uint8, "r+"))[8 + len(header) :]
    return {name: _mapped(data_N, entry) for name, entry in entries.items()}


def _dtype(entry: Entry) -> np.dtype:
    return jnp.dtype(DTYPES[entry.dtype])


def _mapped(data_N: np.ndarray, entry: Entry) -> np.ndarray:
    return data_N[slice(*entry.data_offsets)].view(_dtype(entry)).reshape(entry.shape)
