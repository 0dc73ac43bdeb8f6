"""The arrays of a checkpoint on disk: Zarr, version 3, by TensorStore.

All chunks of an array are written, including zeros, so counting finds a missing chunk. A chunk ends with its checksum.
A digest of all of them (`chunk_checksums`) identifies which chunk belongs where.
"""

import hashlib
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorstore as ts

from strategies.checkpoints.canonical import Index, Leaf, assembled

METADATA = "zarr.json"
CHECKSUM_BYTES = 4
"""Size of the CRC-32C at the end of a chunk."""


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
    """Write shards of a leaf, and wait until they are on disk."""
    store = create(folder, leaf)
    writes = [
        store[there].write(shard[here])
        for index, shard in shards
        for there, here in leaf.pieces(index, every_copy=False)
    ]
    for each in writes:
        each.result()


def read(folder: Path, leaf: Leaf, digests: Mapping[str, str]) -> jax.Array:
    """Read a leaf, sharded as in the state. Padding is zero. Equal shards are read once."""
    store = open_array(folder, leaf.name, digests)
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
    """SHA-256 of each array's metadata: dtype, shape, chunks and their order."""
    return {name: hashlib.sha256(_metadata(folder, name).read_bytes()).hexdigest() for name in names}


def chunk_checksums(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """For each array the SHA-256 of its chunks' names and checksums, the last bytes of each file."""
    names = list(names)
    return dict(zip(names, on_threads(lambda name: _digest(folder / name, _chunks(folder, name)), names), strict=True))


def require_writable(folder: Path) -> None:
    """Write a small array into a folder, as a save does, and remove it."""
    with tempfile.TemporaryDirectory(prefix=".meshmark-", dir=folder) as name:
        metadata = {"shape": (1,), "data_type": "float32"}
        _open({**_spec(Path(name)), "metadata": metadata}, create=True).write(np.ones(1, np.float32)).result()


def open_array(folder: Path, name: str, digests: Mapping[str, str]) -> ts.TensorStore:
    """Open an array for reading. `digests` are its `chunk_checksums` when written; empty before format 3."""
    _metadata(folder, name)
    store = _open(_spec(folder / name), open=True)
    chunk: Any = store.chunk_layout.read_chunk.shape
    expected = math.prod(math.ceil(size / part) for size, part in zip(store.shape, chunk, strict=True))
    there = _chunks(folder, name)
    if len(there) != expected:
        raise ValueError(f"{name} has {len(there)} of {expected} chunks")
    if name in digests and _digest(folder / name, there) != digests[name]:
        raise ValueError(f"{name} has a chunk that was not written there: damaged, moved, or of another checkpoint")
    return store


def _chunks(folder: Path, name: str) -> list[Path]:
    there = sorted((folder / name).rglob("*"))
    for path in (folder / name).parent, folder / name, *there:
        if path.is_symlink():
            raise ValueError(f"{path.relative_to(folder)} is a link; put the file or folder in its place")
    return [path for path in there if path.name != METADATA and path.is_file()]


def _digest(array: Path, chunks: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in chunks:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - CHECKSUM_BYTES))
            digest.update(f"{path.relative_to(array).as_posix()} {file.read().hex()}\n".encode())
    return digest.hexdigest()


def _metadata(folder: Path, name: str) -> Path:
    if not (path := folder / name / METADATA).is_file():
        raise ValueError(f"{name} is missing")
    return path


def on_threads(function: Any, arguments: Iterable[Any]) -> list[Any]:
    """Apply a function to each argument on threads, because it mostly waits for the disk."""
    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(function, arguments))


def _open(spec: dict[str, Any], **how: Any) -> ts.TensorStore:
    """Open an array. Shortens TensorStore's errors, which repeat the whole specification after the file name."""
    try:
        return ts.open(spec, **how).result()
    except ValueError as error:
        raise ValueError(str(error).partition(" [tensorstore_spec=")[0]) from error


def _spec(path: Path) -> dict[str, Any]:
    return {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
