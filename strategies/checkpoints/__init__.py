"""Checkpoints: what one strategy saves, any other restores, on any mesh and any number of processes.

Start at `checkpoint.save`.
"""
