"""Checkpoints: what one strategy saves, any other restores, on any mesh and any number of processes.

    folder/300/checkpoint.json                       `info.CheckpointInfo`
    folder/300/params/blocks.mlp.up_DF/zarr.json     a weight in float32, whole: layers in order, no padding
    folder/300/mu/..., folder/300/nu/...             AdamW's moments
    folder/300/errors/...                            quantisation errors of compressed gradients

Start at `save` and `restore`, two functions over a step. Several processes need a shared file system.
"""

from strategies.checkpoints.canonical import leaves
from strategies.checkpoints.info import CheckpointError, CheckpointInfo, positions
from strategies.checkpoints.info import read as read_info
from strategies.checkpoints.restoring import restore
from strategies.checkpoints.saving import Saving, save
from strategies.checkpoints.zarr_arrays import require_writable

__all__ = [
    "CheckpointError",
    "CheckpointInfo",
    "Saving",
    "leaves",
    "positions",
    "read_info",
    "require_writable",
    "restore",
    "save",
]
