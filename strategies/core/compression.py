"""Gradient compression with error feedback: the quantisation error of one step is added in the next. Inexact by design.

An all-reduce cannot add quantised numbers on their way, because the sum of two codes is not a code. So each device sums
one chunk of the numbers (Tang et al. 2021, "1-bit Adam", algorithm 1, with a server on each device):

    g[P] + e[P] quantised to codes q[n,P/n] -all_to_all(data)-> q[n,P/n], every device's codes of this device's chunk
    their sum s[P/n] + f[P/n] quantised to codes q[P/n] -all_gather(data)-> q[n,P/n], the sums of all chunks
    e[P] and f[P/n] are kept for the next step: the errors of the first and of the second quantisation

For P numbers on n devices, padded to a multiple of 256 n, a device sends 2 P (n-1)/n codes and a 4-byte scale for every
256 codes. `int8` quantises gradients to one byte each, instead of 4 bytes in float32. `onebit` quantises momentum to
one bit each. The compiled program of `onebit` also contains the uncompressed warm-up steps, which send the most. Bytes
read from the program are therefore the warm-up's.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from strategies.config import TrainConfig
from strategies.core.rules import learning_rate_at
from strategies.model.weights import Weights
from strategies.step import Optimizer

BLOCK = 256
"""Block size: this many numbers share a scale."""
Codes = tuple[Array, Array]
"""Quantised numbers in blocks, and the scale of each block."""


class Codec(NamedTuple):
    """Quantisation (`encode`) and dequantisation (`decode`) of float32 numbers in blocks, the last dim."""

    encode: Callable[[Array], Codes]
    decode: Callable[[Codes], Array]


def _to_int8(x: Array) -> Codes:
    scale = jnp.abs(x).max(-1, keepdims=True) / 127
    return jnp.round(x / jnp.where(scale > 0, scale, 1)).astype(jnp.int8), scale


def _to_signs(x: Array) -> Codes:
    """Signs, scaled by the mean magnitude, which minimises the error (Karimireddy et al. 2019, "Error Feedback")."""
    return jnp.packbits(x >= 0, axis=-1), jnp.abs(x).mean(-1, keepdims=True)


INT8 = Codec(_to_int8, lambda codes: codes[0] * codes[1])
SIGNS = Codec(_to_signs, lambda codes: (2.0 * jnp.unpackbits(codes[0], axis=-1) - 1) * codes[1])


class Errors(NamedTuple):
    """Quantisation errors that a device adds in the next step: e[P] and f[P/n] in the module's docstring."""

    shares: Any
    sums: Any


def padded(size: int, devices: int) -> int:
    """Round `size` up to a multiple of `BLOCK * devices`, so each device has the same number of whole blocks."""
    return -(-size // (BLOCK * devices)) * BLOCK * devices


def all_reduce(x_P: Float[Array, " P"], errors: Errors, codec: Codec) -> tuple[Float[Array, " P"], Errors]:
    """Approximate sum of quantised numbers over the mesh axis `data`, and the new quantisation errors."""
    devices = lax.axis_size("data")
    corrected = jnp.pad(x_P, (0, padded(x_P.size, devices) - x_P.size)) + errors.shares
    chunks = corrected.reshape(devices, -1, BLOCK)
    codes = codec.encode(chunks)
    received = jax.tree.map(lambda code: lax.all_to_all(code, "data", 0, 0), codes)
    chunk = codec.decode(received).sum(0) + errors.sums.reshape(-1, BLOCK)
    sums = codec.encode(chunk)
    gathered = jax.tree.map(lambda code: lax.all_gather(code, "data", to="invarying"), sums)
    new_errors = Errors((chunks - codec.decode(codes)).reshape(-1), (chunk - codec.decode(sums)).reshape(-1))
    return codec.decode(gathered).reshape(-1)[: x_P.size], new_errors


class Kept(NamedTuple):
    """State of an optimizer with gradient compression: the wrapped optimizer's state, and the quantisation errors."""

    optimizer: Any
    errors: Errors


def compressed(optimizer: Optimizer, train: TrainConfig, devices: int) -> Optimizer:
    """Wrap an optimizer: it takes each device's share of the gradients and sums them itself, compressed."""
    update = {"int8": _int8_update, "onebit": _onebit_update}[train.compression]

    def takes(weights: Weights) -> tuple[Any, Any]:
        shapes = jax.tree.map(lambda w: jax.ShapeDtypeStruct((devices, *w.shape), w.dtype), weights)
        return shapes, jax.tree.map(lambda w: P("data"), weights)

    def init(weights: Weights) -> Kept:
        size = padded(sum(weight.size for weight in jax.tree.leaves(weights)), devices)
        return Kept(optimizer.init(weights), Errors(jnp.zeros(devices * size), jnp.zeros(size)))

    def specs(kept: Kept) -> Kept:
        return Kept(optimizer.specs(kept.optimizer), Errors(P("data"), P("data")))

    return Optimizer(takes, init, specs, partial(update, optimizer, train))


def _int8_update(
    optimizer: Optimizer, train: TrainConfig, shares: Weights, kept: Kept, weights: Weights
) -> tuple[Weights, Kept, Array]:
    flat, unflatten = ravel_pytree(jax.tree.map(lambda share: share[0], shares))
    summed, errors = all_reduce(flat, kept.errors, INT8)
    updates, state, norm = optimizer.update(unflatten(summed), kept.optimizer, weights)
    return updates, Kept(state, errors), norm


def _onebit_update(
    optimizer: Optimizer, train: TrainConfig, shares: Weights, kept: Kept, weights: Weights
) -> tuple[Weights, Kept, Array]:
    """1-bit Adam: AdamW in the warm-up steps, then frozen second moments and compressed momentum.

    This is algorithm 1 of Tang et al. 2021. After the warm-up no device has the summed gradients, so their norm is
    unknown. Gradients are clipped by an upper bound of it, the root mean square of the devices' own gradient norms. A
    sign is never zero, so the momentum is set to zero where the second moment is zero: that weight has had no gradient
    so far.
    """
    shares = jax.tree.map(lambda share: share[0], shares)
    adam, *others = kept.optimizer

    def warm() -> tuple[Weights, Kept, Array]:
        updates, state, norm = optimizer.update(lax.psum(shares, "data"), kept.optimizer, weights)
        return updates, Kept(state, kept.errors), norm

    def onebit() -> tuple[Weights, Kept, Array]:
        devices = lax.axis_size("data")
        flat, unflatten = ravel_pytree(shares)
        norm = jnp.sqrt(devices * lax.psum(jnp.vdot(flat, flat), "data"))
        clip = 1 / jnp.maximum(norm / train.clip_norm, 1)
        before, _ = ravel_pytree(adam.mu)
        after, errors = all_reduce(train.beta1 * before / devices + (1 - train.beta1) * clip * flat, kept.errors, SIGNS)
        mu = jax.tree.map(lambda m, v: jnp.where(v > 0, m, 0), unflatten(after), adam.nu)
        count = adam.count + 1
        scale1, scale2 = 1 - train.beta1**count, 1 - train.beta2**train.compression_warmup

        learning_rate = learning_rate_at(train, adam.count)

        def change(m: Array, v: Array, weight: Array) -> Array:
            direction = m / scale1 / (jnp.sqrt(v / scale2) + train.epsilon)
            return -learning_rate * (direction + train.weight_decay * weight)

        updates: Any = jax.tree.map(change, mu, adam.nu, weights)
        return updates, Kept((adam._replace(count=count, mu=mu), *others), errors), norm

    with jax.named_scope("heaviest"):  # FLOP and byte counts of the program use the warm-up step
        return lax.cond(adam.count < train.compression_warmup, warm, onebit)
