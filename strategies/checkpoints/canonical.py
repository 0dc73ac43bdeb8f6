"""The arrays of a training state in a layout independent of strategies: a checkpoint's.

A strategy pads the vocabulary, puts layers into slots of pipeline stages, replicates KV heads, and shards every array.
A checkpoint has one array for each weight of the model and each of its moments, without padding and replicas, layers in
order. `Leaf.pieces` maps a shard of the state to ranges of the array on disk, so a process reads and writes only its
own shards.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from strategies.model.gpt import weight_specs
from strategies.model.weights import STACKS
from strategies.step import Step

Index = tuple[slice, ...]
"""A range of an array, one slice with start and stop for each dim."""
MOST_CHUNK_BYTES = 2**24
"""The largest chunk of an array on disk. A process that reads a shard also holds one chunk in memory."""


@dataclass(frozen=True)
class Leaf:
    """An array of the state, and its place in a checkpoint.

    Attributes:
        name: in the checkpoint, such as "params/blocks.mlp.up_DF", "mu/blocks.mlp.up_DF", "count" or "errors/sums".
        dims: names of the dims, for a weight and its moments only.
        slots: the layer in each slot of its first dim, -1 for none; None without such a dim, or if layers are in order.
        stored: shape, dtype and sharding in the state.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    slots: tuple[int, ...] | None
    head_dim: int
    stored: Any

    @property
    def is_scalar(self) -> bool:
        """Whether it is a single number, such as a count of steps."""
        return not self.stored.shape

    @property
    def is_weight(self) -> bool:
        """Whether it is a weight, as used by the forward pass or as a master."""
        return self.name.startswith("params/")

    @property
    def is_stacked(self) -> bool:
        """Whether its first dim is layers."""
        return bool(self.dims) and self.dims[0] in STACKS

    @property
    def is_error_feedback(self) -> bool:
        """Whether it belongs to devices instead of the model, as the quantisation errors of compression do."""
        return not self.is_scalar and not self.dims

    @property
    def chunks(self) -> tuple[int, ...]:
        """Shape of its chunks: one layer each and a divisor of a shard, so two processes never write the same chunk."""
        shard = self.stored.sharding.shard_shape(self.stored.shape)
        single = (*STACKS, *self.dims[-2:-1]) if self.key_copies > 1 else STACKS
        chunk = [1 if dim in single else size for size, dim in zip(shard, self.dims or [""], strict=True)]
        for i, size in enumerate(chunk):
            most = MOST_CHUNK_BYTES // (self.stored.dtype.itemsize * math.prod(chunk[i + 1 :]))
            chunk[i] = max(part for part in range(1, max(1, min(size, most)) + 1) if size % part == 0)
        return tuple(chunk)

    @property
    def key_copies(self) -> int:
        """How many replicas it has of each KV head (core/gradients.py)."""
        return self.stored.shape[-1] // self.shape[-1] if self.dims[-1:] == ("key_features",) else 1

    def pieces(self, index: Index, *, every_copy: bool = True) -> Iterator[tuple[Index, Index]]:
        """The parts of a shard that a checkpoint holds: (range in the checkpoint, range within the shard).

        Padding of the vocabulary and empty layer slots are in no piece. Without `every_copy` only the first replica of
        a KV head is.
        """
        for layers, own in self._layer_ranges(index):
            for there, here in self._rest(index, every_copy):
                if all(part.start < part.stop for part in there):
                    yield (*layers, *there), (*own, *here)

    def _rest(self, index: Index, every_copy: bool) -> Iterator[tuple[Index, Index]]:
        """Ranges of the dims after the slots, in the checkpoint and in the shard."""
        first = 1 if self.slots else 0
        there = [_clipped(part, size) for part, size in zip(index[first:], self.shape[first:], strict=True)]
        here = [slice(0, part.stop - part.start) for part in there]
        if self.key_copies == 1:
            yield tuple(there), tuple(here)
            return
        for (rows, features), (own_rows, own_features) in self._heads(index[-1], every_copy):
            yield (*there[:-2], rows, features), (*here[:-2], own_rows, own_features)

    def _heads(self, part: slice, every_copy: bool) -> Iterator[tuple[Index, Index]]:
        """Ranges of the last two dims of each KV head in a shard: its queries, then key and value."""
        copies, size, keys = self.key_copies, self.head_dim, 2 if self.dims[-2] == "qkv" else 1
        rows, own_queries = self.shape[-2], self.stored.shape[-2] - keys
        for copy in range(part.start // size, -(-part.stop // size)):
            start, stop = max(part.start, copy * size), min(part.stop, (copy + 1) * size)
            head, which = divmod(copy, copies)
            shift = (head - copy) * size
            features, own_features = slice(start + shift, stop + shift), slice(start - part.start, stop - part.start)
            queries = slice(which * own_queries, (which + 1) * own_queries)
            yield (queries, features), (slice(0, own_queries), own_features)
            if every_copy or which == 0:
                yield (slice(rows - keys, rows), features), (slice(own_queries, own_queries + keys), own_features)

    def _layer_ranges(self, index: Index) -> Iterator[tuple[Index, Index]]:
        """Ranges of a shard's layers, in the checkpoint and in the shard; one empty pair without slots."""
        if self.slots is None:
            yield (), ()
            return
        for own, layer in enumerate(self.slots[index[0]]):
            if layer >= 0:
                yield (slice(layer, layer + 1),), (slice(own, own + 1),)


def _clipped(part: slice, size: int) -> slice:
    return slice(part.start, min(part.stop, size))


def full(index: Index, shape: Sequence[int]) -> Index:
    """A shard's index with explicit starts and stops."""
    return tuple(slice(*part.indices(size)[:2]) for part, size in zip(index, shape, strict=True))


def leaves(step: Step) -> list[Leaf]:
    """All arrays of a step's state, in the order of `jax.tree.leaves`.

    With master weights params has each name twice: the weight as the forward pass uses it, then its master. A
    checkpoint has only the master, and both are read from it.
    """
    weights, sizes = weight_specs(step.config), step.config.dim_sizes
    found = []
    for path, stored in jax.tree.leaves_with_path(step.state):
        group = "/".join(key.name for key in path if hasattr(key, "name") and key.name != "optimizer")
        group = "params" if group == "master" else group
        weight = ".".join(key.key for key in path if isinstance(key, jax.tree_util.DictKey))
        dims = weights[weight].dims if weight else ()
        slots = step.layer_slots if dims[:1] == ("layers",) else None
        shape = tuple(sizes[dim] for dim in dims) if dims else stored.shape
        name = f"{group}/{weight}" if weight else group
        found.append(Leaf(name, dims, shape, slots, step.config.head_dim, stored))
    return found


def assembled(leaf: Leaf, fill: Callable[[np.ndarray, Iterator[tuple[Index, Index]]], None]) -> jax.Array:
    """An array of the state, from values read elsewhere. Padding is zero. Equal shards are read once.

    `fill` takes a shard of zeros and its `Leaf.pieces`, and writes the values into the shard.
    """
    shards: dict[Any, np.ndarray] = {}

    def shard(index: Any) -> np.ndarray:
        index = full(index, leaf.stored.shape)
        key = tuple((part.start, part.stop) for part in index)
        if key not in shards:
            shards[key] = np.zeros([part.stop - part.start for part in index], leaf.stored.dtype)
            fill(shards[key], leaf.pieces(index))
        return shards[key]

    return jax.make_array_from_callback(leaf.stored.shape, leaf.stored.sharding, shard)


def host_shards(array: jax.Array) -> Iterator[tuple[Index, np.ndarray]]:
    """This process's shards of an array, copied to the host: one per replica set."""
    own = [shard for shard in array.addressable_shards if shard.replica_id == 0]
    for shard in own:
        shard.data.copy_to_host_async()
    for shard in own:
        yield full(shard.index, array.shape), np.array(shard.data, copy=True)  # on CPUs this would otherwise be a view
