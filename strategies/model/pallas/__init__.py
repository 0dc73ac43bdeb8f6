"""Pallas kernels of matmuls, and how to call kernels in `jax.shard_map`. They know nothing about the model."""
