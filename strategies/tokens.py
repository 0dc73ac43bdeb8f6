"""Token ids as steps take them."""

from typing import Any

import numpy as np


def as_tokens(part: Any, vocab: int) -> np.ndarray:
    """Convert token ids, of any shape, to int32.

    Raises:
        ValueError: they are not integers, or an id is outside the vocabulary.
    """
    ids = np.asarray(part)
    if ids.dtype.kind not in "iu":
        raise ValueError(f"tokens of dtype {ids.dtype}; give integers")
    low, high = (ids.min(), ids.max()) if ids.size else (0, 0)
    if low < 0 or high >= vocab:
        raise ValueError(f"token ids from {low} to {high}; with vocab={vocab} they can be 0 to {vocab - 1}")
    return ids.astype(np.int32, copy=False)
