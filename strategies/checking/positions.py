"""Pseudo-random numbers by element of a weight, equal on any mesh: signs for projections, noise for initial weights.

Each is a hash of the element's place in the model: the weight's name, the layer, and the index within the layer. So a
device computes those of its shard alone, whatever the padding, the slots of pipeline stages and the copies of KV heads.
"""

import zlib
from collections.abc import Callable
from functools import reduce

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from strategies.checkpoints.canonical import Leaf
from strategies.core.key_copies import KEYS


def signs(leaf: Leaf, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """A random sign for each element of this device's shard, inside `jax.shard_map`."""
    return 1 - 2 * (hashed(leaf, shape) >> 31).astype("float32")


def noise(leaf: Leaf, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """A uniform random number in [-1, 1) for each element of this device's shard; 0 in slots without a layer."""
    uniform = hashed(leaf, shape).astype("float32") * 2.0**-31 - 1
    return uniform if leaf.slots is None else uniform * (_layer(leaf, shape) >= 0)


def key_share(leaf: Leaf, shape: tuple[int, ...]) -> Float[Array, "..."] | float:
    """By which to multiply squares and products of a shard, so that each KV head counts once: 1 / its replicas."""
    if leaf.key_copies == 1:
        return 1.0
    is_key = _coordinate(leaf, shape, -2) >= leaf.stored.shape[-2] - KEYS[leaf.dims[-2]]
    return jnp.where(is_key, 1 / leaf.key_copies, 1.0)


def hashed(leaf: Leaf, shape: tuple[int, ...]) -> Array:
    """32 random bits for each element of this device's shard (the finaliser of MurmurHash3, Appleby 2011)."""
    x = _index(leaf, shape) * np.uint32(0x9E3779B1) ^ _seed(leaf, shape)
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return jnp.broadcast_to(x ^ (x >> 16), shape)


def _seed(leaf: Leaf, shape: tuple[int, ...]) -> Array:
    """One seed for each layer of a weight. Empty slots have any; their values are zero."""
    name = np.uint32(zlib.crc32(leaf.name.rpartition("/")[2].encode()))
    if not leaf.is_stacked:
        return jnp.uint32(name)
    return (_layer(leaf, shape).astype("uint32") + 1) * np.uint32(0x27D4EB2F) ^ name


def _layer(leaf: Leaf, shape: tuple[int, ...]) -> Array:
    """The layer of each element of a stacked weight; -1 in slots without one."""
    slot = _coordinate(leaf, shape, 0)
    return slot if leaf.slots is None else jnp.asarray(leaf.slots)[slot]


def _index(leaf: Leaf, shape: tuple[int, ...]) -> Array:
    """The index of each element within its layer of the model, modulo 2^32."""
    places = [_coordinate(leaf, shape, dim) for dim in range(len(shape))]
    if leaf.key_copies > 1:
        places[-2:] = _without_replicas(leaf, *places[-2:])
    first = 1 if leaf.is_stacked else 0
    sized = zip(leaf.shape[first:], places[first:], strict=True)
    index: Callable[..., Array] = lambda whole, each: whole * np.uint32(each[0]) + each[1].astype("uint32")  # noqa: E731
    return reduce(index, sized, jnp.uint32(0))


def _without_replicas(leaf: Leaf, row: Array, feature: Array) -> tuple[Array, Array]:
    """Row and feature of the model, of those where each KV head has replicas (core/key_copies.py)."""
    held_rows, rows, kv_rows = leaf.stored.shape[-2], leaf.shape[-2], KEYS[leaf.dims[-2]]
    copy, within = feature // leaf.head_dim, feature % leaf.head_dim
    query_row = copy % leaf.key_copies * (held_rows - kv_rows) + row
    row = jnp.where(row < held_rows - kv_rows, query_row, row + rows - held_rows)
    return row, copy // leaf.key_copies * leaf.head_dim + within


def _coordinate(leaf: Leaf, shape: tuple[int, ...], dim: int) -> Array:
    """Where each element of this device's shard is along a dim of the whole array; broadcasts over the others."""
    spec = (*leaf.stored.sharding.spec, *len(shape) * [None])[: len(shape)]
    axes = spec[dim] or ()
    start = lax.axis_index(axes) * shape[dim] if axes else 0
    along = [1] * len(shape)
    along[dim] = shape[dim]
    return (jnp.arange(shape[dim]) + start).reshape(along)
