"""Error feedback in checkpoints: the quantisation errors of compressed gradients (core/compression.py).

They belong to devices, not to the model. On the same number of devices each device gets its own errors back. Otherwise
each gets an equal part of their sum, because error feedback depends only on the sum over devices.
"""

import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

from strategies.checkpoints import zarr_arrays
from strategies.checkpoints.canonical import Leaf, full
from strategies.checkpoints.info import CheckpointInfo
from strategies.step import Step

SHARES = "errors/shares"
"""The devices' errors, concatenated."""


def kept(info: CheckpointInfo, step: Step) -> bool:
    """Whether a step takes over a checkpoint's errors: if compression and padding are the same. Warns if it
    drops them.
    """
    saved, now = (
        {"compression": train, "vocab_multiple": config.vocab_multiple}
        for train, config in ((info.compression, info.config), (step.train.compression, step.config))
    )
    if differs := [f"{name}={now[name]}" for name in now if saved[name] != now[name]]:
        if info.compression != "none":
            problem = f"the checkpoint's quantisation errors of compression={info.compression} are dropped"
            warnings.warn(f"{problem}: this step has {' and '.join(differs)}", RuntimeWarning, stacklevel=3)
        return False
    return True


def read(folder: Path, leaf: Leaf, devices: int, info: CheckpointInfo) -> jax.Array:
    """Read errors that another number of devices wrote."""
    store = zarr_arrays.open_array(folder, leaf.name, info.chunk_checksums)

    def shard(index: Any) -> np.ndarray:
        (part,) = full(index, leaf.stored.shape)
        values = np.zeros(part.stop - part.start, leaf.stored.dtype)
        if leaf.name == SHARES:
            size = store.shape[0] // info.devices
            width = min(size, len(values))
            for start in range(0, store.shape[0], size):
                values[:width] += store[start : start + width].read().result()
            return values / devices
        width = max(0, min(part.stop, store.shape[0]) - part.start)
        if width:
            values[:width] = store[part.start : part.start + width].read().result()
        return values

    return jax.make_array_from_callback(leaf.stored.shape, leaf.stored.sharding, shard)
