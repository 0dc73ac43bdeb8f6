"""Pseudo-random numbers by element of a weight, equal on any mesh: signs for projections, noise for initial weights.

Each is a hash of the element's place in the model: the weight's name, the layer, and the index within the layer. So a
device computes only its shard's, whatever the padding, pipeline slots and replicas of KV heads.

All functions take places: for each dim of an array the indices of a shard's elements along it, shaped to broadcast.
Places and results are JAX arrays on devices, or NumPy arrays on the host.
"""

import zlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from strategies.checkpoints.canonical import Index, Leaf
from strategies.core.gradients import KEYS

Places = Sequence[Any]


def places_on_device(leaf: Leaf, shape: tuple[int, ...]) -> Places:
    """The places of this device's shard, inside `jax.shard_map`."""
    spec = (*leaf.stored.sharding.spec, *len(shape) * [None])[: len(shape)]
    starts = [lax.axis_index(axes) * size if axes else 0 for axes, size in zip(spec, shape, strict=True)]
    return _broadcast([jnp.arange(size) + start for size, start in zip(shape, starts, strict=True)])


def places_on_host(index: Index) -> Places:
    """The places of the shard at an index."""
    return _broadcast([np.arange(part.start, part.stop) for part in index])


def _broadcast(places: Places) -> Places:
    return [place.reshape([-1 if i == dim else 1 for i in range(len(places))]) for dim, place in enumerate(places)]


def signs(leaf: Leaf, places: Places) -> Any:
    """A random sign for each element."""
    return 1 - 2 * (hashed(leaf, places) >> 31).astype("float32")


def noise(leaf: Leaf, places: Places) -> Any:
    """A uniform random number in [-1, 1) for each element; 0 in slots without a layer."""
    uniform = hashed(leaf, places).astype("float32") * 2.0**-31 - 1
    return uniform if leaf.slots is None else uniform * (_layer(leaf, places) >= 0)


def key_share(leaf: Leaf, places: Places) -> Any:
    """Factor of squares and products that makes each KV head count once: 1 / its replicas."""
    if leaf.key_copies == 1:
        return 1.0
    is_key = places[-2] >= leaf.stored.shape[-2] - KEYS[leaf.dims[-2]]
    return _of(places).where(is_key, 1 / leaf.key_copies, 1.0).astype("float32")


def hashed(leaf: Leaf, places: Places) -> Any:
    """32 random bits per element (the finaliser of MurmurHash3, Appleby 2011)."""
    x = _index(leaf, places) * np.uint32(0x9E3779B1) ^ _seed(leaf, places)
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def _of(places: Places) -> ModuleType:
    return places[0].__array_namespace__()


def _seed(leaf: Leaf, places: Places) -> Any:
    """One seed per layer of a weight; arbitrary for empty slots, whose values are zero."""
    name = np.uint32(zlib.crc32(leaf.name.rpartition("/")[2].encode()))
    if not leaf.is_stacked:
        return name
    return (_layer(leaf, places).astype("uint32") + 1) * np.uint32(0x27D4EB2F) ^ name


def _layer(leaf: Leaf, places: Places) -> Any:
    """The layer of each element of a stacked weight; -1 in empty slots."""
    return places[0] if leaf.slots is None else _of(places).asarray(leaf.slots)[places[0]]


def _index(leaf: Leaf, places: Places) -> Any:
    """The index of each element within its layer of the model, modulo 2^32."""
    if leaf.key_copies > 1:
        places = [*places[:-2], *_without_replicas(leaf, *places[-2:])]
    first = 1 if leaf.is_stacked else 0
    index = np.uint32(0)
    for size, place in zip(leaf.shape[first:], places[first:], strict=True):
        index = index * np.uint32(size) + place.astype("uint32")
    return index


def _without_replicas(leaf: Leaf, row: Any, feature: Any) -> tuple[Any, Any]:
    """Row and feature in the model, from row and feature where KV heads have replicas (core/gradients.py)."""
    held_rows, rows, kv_rows = leaf.stored.shape[-2], leaf.shape[-2], KEYS[leaf.dims[-2]]
    copy, within = feature // leaf.head_dim, feature % leaf.head_dim
    query_row = copy % leaf.key_copies * (held_rows - kv_rows) + row
    row = _of([row]).where(row < held_rows - kv_rows, query_row, row + rows - held_rows)
    return row, copy // leaf.key_copies * leaf.head_dim + within
