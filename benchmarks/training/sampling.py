"""Text written by a trained model, one token after another, on one device.

Dims: B batch, T tokens, V vocabulary.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from strategies import GPTConfig, TrainConfig
from strategies.model.gpt import GPT
from strategies.model.weights import Weights


def sampled(
    config: GPTConfig,
    train: TrainConfig,
    weights: Weights,
    prompt: Sequence[int],
    count: int,
    temperature: float,
    seed: int,
    vocab: int,
) -> list[int]:
    """Continue a prompt of one token or more by `count` tokens, each drawn from the model's prediction.

    Args:
        weights: of the model as `single` holds them.
        temperature: divides the logits; 0 takes the most likely token.
        vocab: tokens that a text can have; the model may know more, whose logits are left out.
    """

    @jax.jit
    def next_token(weights: Weights, window_1T: Int[Array, "1 T"], last: Int[Array, ""], key: Array) -> Int[Array, ""]:
        model = GPT.of_weights(config, train, weights)
        logits_V = model.logits(model.run(model.embed(window_1T))[0])[0, last, :vocab]
        return jax.random.categorical(key, logits_V / temperature) if temperature else jnp.argmax(logits_V)

    tokens = list(prompt)
    for index in range(count):
        # Always a whole sequence, so that one program suffices: no token sees the padding after it.
        known = tokens[-config.sequence :]
        window_1T = np.array([[*known, *[0] * (config.sequence - len(known))]], np.int32)
        key = jax.random.fold_in(jax.random.key(seed), index)
        tokens.append(int(next_token(weights, window_1T, len(known) - 1, key)))
    return tokens[len(prompt) :]
