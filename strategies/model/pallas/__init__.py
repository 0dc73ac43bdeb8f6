"""Pallas kernels of matmuls, and how kernels are called in `jax.shard_map`. They know nothing of the model."""
