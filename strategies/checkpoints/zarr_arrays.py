"""The arrays of a checkpoint on disk: Zarr, version 3, by TensorStore.

All chunks of an array are written, zeros as well, so one that is missing is found by counting. Each has a checksum.
"""

import hashlib
import math
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorstore as ts

from strategies.checkpoints.canonical import Index, Leaf, assembled


def create(folder: Path, leaf: Leaf) -> ts.TensorStore:
    """Create the array of a leaf, or open it if another process of this save has created it."""
    metadata = {
        "shape": leaf.shape,
        "data_type": str(leaf.stored.dtype),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": leaf.chunks}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
    }
    spec = {**_spec(folder / leaf.name), "metadata": metadata, "store_data_equal_to_fill_value": True}
    return _open(spec, create=True, open=True)


def write(folder: Path, leaf: Leaf, shards: Iterable[tuple[Index, np.ndarray]]) -> None:
    """Write shards of a leaf, and wait until they are on disk.

    Raises:
        ValueError: the file system refuses.
    """
    store = create(folder, leaf)
    writes = [
        store[there].write(shard[here])
        for index, shard in shards
        for there, here in leaf.pieces(index, every_copy=False)
    ]
    for each in writes:
        each.result()


def read(folder: Path, leaf: Leaf) -> jax.Array:
    """Read a leaf, sharded as it is stored in the state. Padding is zero. Equal shards are read once.

    Raises:
        ValueError: a chunk is missing or damaged, or the array has another shape.
    """
    store = open_array(folder, leaf.name)
    if store.shape != leaf.shape:
        raise ValueError(f"{leaf.name} has shape {store.shape}, not {leaf.shape}")
    if (dtype := store.dtype.name) not in ("float32", str(leaf.stored.dtype)):
        raise ValueError(f"{leaf.name} has dtype {dtype}, not float32")

    def fill(values: np.ndarray, pieces: Iterator[tuple[Index, Index]]) -> None:
        reads = [(here, store[there].read()) for there, here in pieces]
        for here, piece in reads:
            values[here] = piece.result()

    return assembled(leaf, fill)


def checksums(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of the metadata of arrays, which say how bytes are to be read: dtype, shape, chunks and their order.

    Raises:
        ValueError: an array is missing.
    """
    return {name: hashlib.sha256(_metadata(folder, name).read_bytes()).hexdigest() for name in names}


def require_writable(folder: Path) -> None:
    """Write a small array into a folder, as a save does, and remove it.

    Raises:
        OSError, ValueError: the file system or TensorStore refuses.
    """
    with tempfile.TemporaryDirectory(prefix=".meshmark-", dir=folder) as name:
        metadata = {"shape": (1,), "data_type": "float32"}
        _open({**_spec(Path(name)), "metadata": metadata}, create=True).write(np.ones(1, np.float32)).result()


def open_array(folder: Path, name: str) -> ts.TensorStore:
    """Open an array for reading.

    Raises:
        ValueError: it is missing, or has not all of its chunks.
    """
    _metadata(folder, name)
    store = _open(_spec(folder / name), open=True)
    chunk: Any = store.chunk_layout.read_chunk.shape
    expected = math.prod(math.ceil(size / part) for size, part in zip(store.shape, chunk, strict=True))
    there = sum(path.is_file() for path in (folder / name / "c").rglob("*"))
    if there != expected:
        raise ValueError(f"{name} has {there} of {expected} chunks")
    return store


def _metadata(folder: Path, name: str) -> Path:
    """The file with the metadata of an array."""
    if not (path := folder / name / "zarr.json").is_file():
        raise ValueError(f"{name} is missing")
    return path


def on_threads(function: Any, arguments: Iterable[Any]) -> list[Any]:
    """Apply a function to each of the arguments, on some threads: most of the time they wait for the disk."""
    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(function, arguments))


def _open(spec: dict[str, Any], **how: Any) -> ts.TensorStore:
    """Open an array. TensorStore's errors name the file, and then repeat the whole specification, which is left out."""
    try:
        return ts.open(spec, **how).result()
    except ValueError as error:
        raise ValueError(str(error).partition(" [tensorstore_spec=")[0]) from error


def _spec(path: Path) -> dict[str, Any]:
    return {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
