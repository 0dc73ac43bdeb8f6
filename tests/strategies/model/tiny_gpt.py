"""A model that takes no time, and tokens for it."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from strategies import GPTConfig, TrainConfig
from strategies.model.gpt import GPT

TINY = GPTConfig(layers=2, embed=16, heads=4, vocab=19, sequence=12)
TRAIN = TrainConfig(batch_size=3)


def build(config=TINY, train=TRAIN, **options):
    """A model with matrices large enough that every part of it matters to the loss."""
    graph, weights = nnx.split(GPT(config, train, nnx.Rngs(0), **options))
    return nnx.merge(graph, jax.tree.map(lambda w: 10 * w if w.std() > 0 else w + 0.1, weights))


def tokens(config=TINY, seed=0):
    """[3, sequence + 1] of them."""
    return jnp.array(np.random.default_rng(seed).integers(0, config.vocab, (3, config.sequence + 1)))
