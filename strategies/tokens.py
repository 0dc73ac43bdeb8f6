"""Conversion and checks of token ids."""

import reprlib
from typing import Any
from weakref import WeakValueDictionary

import jax
import numpy as np


def as_array(tokens: Any) -> np.ndarray:
    """Convert nested lists of token ids to an array."""
    try:
        array = np.asarray(tokens)
    except ValueError:  # lists of different lengths
        array = np.empty(0, object)
    if array.dtype.kind not in "iu":
        raise ValueError(f"the tokens are {reprlib.repr(tokens)}; pass an array of integers, or lists of equal lengths")
    return array


def as_tokens(part: Any, vocab: int) -> np.ndarray:
    """Convert token ids, of any shape, to int32."""
    ids = np.asarray(part)
    if ids.dtype.kind not in "iu":
        raise ValueError(f"tokens of dtype {ids.dtype}; pass integers")
    low, high = (ids.min(), ids.max()) if ids.size else (0, 0)
    if low < 0 or high >= vocab:
        raise ValueError(f"token ids from {low} to {high}; with vocab={vocab} they can be 0 to {vocab - 1}")
    return ids.astype(np.int32, copy=False)


class CheckedBatches:
    """Checks batches on a mesh for ids outside the vocabulary, each array once.

    An array never changes, so it is read once. Only the first batch is waited for. A later one's values may still be
    computed; it is then read at a later call, so that training never waits for its batches.
    """

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self._checked: WeakValueDictionary[int, jax.Array] = WeakValueDictionary()
        self._waiting: list[jax.Array] = []
        self._waits = True

    def add(self, batch: jax.Array) -> jax.Array:
        """Return a batch whose ids are all known to be in the vocabulary."""
        self._checked[id(batch)] = batch
        return batch

    def require(self, batch: jax.Array) -> None:
        """Check a batch, and earlier ones whose values were not available yet. Each process reads its own shards."""
        if self._checked.get(id(batch)) is not batch:
            self._waiting.append(batch)
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if each.is_deleted():
                continue
            if self._waits or each.is_ready():  # pyright: ignore[reportAttributeAccessIssue] (of every array)
                self._waits = False
                shards = {str(shard.index): shard.data for shard in each.addressable_shards}
                for shard in shards.values():
                    as_tokens(shard, self._vocab)
                self.add(each)
            else:
                self._waiting.append(each)
