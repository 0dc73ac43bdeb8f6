"""cuDNN's attention kernels in plain JAX."""

import math

import jax
import jax.numpy as jnp


def plain_attended(q, k, v, causal):
    """Attention of a chunk and the log-sum-exp of its scores, as cuDNN's forward kernel gives them."""
    scores = q @ k.swapaxes(2, 3) / math.sqrt(q.shape[-1])
    scores = jnp.where(jnp.tri(q.shape[2], dtype=bool), scores, -jnp.inf) if causal else scores
    return jax.nn.softmax(scores) @ v, jax.nn.logsumexp(scores, axis=-1)


def plain_gradients(q, k, v, mixed, log_total, dmixed, causal):
    """Gradients of a chunk from the output and log-sum-exp of all keys, as cuDNN's backward kernel gives them."""
    scale = 1 / math.sqrt(q.shape[-1])
    weights = jnp.exp(q @ k.swapaxes(2, 3) * scale - log_total[..., None])
    weights = jnp.where(jnp.tri(q.shape[2], dtype=bool), weights, 0) if causal else weights
    dscores = weights * (dmixed @ v.swapaxes(2, 3) - (dmixed * mixed).sum(-1, keepdims=True)) * scale
    return dscores @ k, dscores.swapaxes(2, 3) @ q, weights.swapaxes(2, 3) @ dmixed
