"""Checkpoints: what one strategy saves, any other restores, on any mesh and any number of processes.

    folder/300/checkpoint.json                       `info.CheckpointInfo`
    folder/300/params/blocks.mlp.up_DF/zarr.json     a weight in float32, whole: layers in order, no padding
    folder/300/mu/..., folder/300/nu/...             AdamW's moments
    folder/300/errors/...                            quantisation errors of compressed gradients

Start at `Step.save` and `Step.restore`, in strategies/step.py. Several processes need a file system that all of them
see.
"""
