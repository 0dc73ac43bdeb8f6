"""Gradients sent in fewer bits, with what is lost in one step added in the next (error feedback). Not exact by design.

An all-reduce of compressed numbers cannot add them on their way: sums of codes are no codes. So each device adds up one
chunk of the numbers (Tang et al. 2021, "1-bit Adam", algorithm 1, with a server on each device):

    g[P] + e[P] in codes q[n,P/n] -all_to_all(data)-> q[n,P/n], every device's codes of this device's chunk
    their sum s[P/n] + f[P/n] in codes q[P/n] -all_gather(data)-> q[n,P/n], the sums of all chunks
    e[P] and f[P/n] are kept: what the codes are short of

For P numbers on n devices, padded to a multiple of 256 n, a device sends 2 P (n-1)/n codes, and 4 bytes for each 256
of them. A code is a byte with `int8`, against 4 bytes of float32: gradients. With `onebit` it is one bit: momentum. Its
program has the steps of the warm-up too, which send the most: what is read from it are their bytes.
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
from strategies.model.weights import Weights
from strategies.step import Optimizer

BLOCK = 256
"""Numbers that share a scale."""
Codes = tuple[Array, Array]
"""Codes of numbers in blocks, and the scale of each block."""


class Codec(NamedTuple):
    """How blocks of float32 numbers, in the last dim, become fewer bytes, and numbers again."""

    encode: Callable[[Array], Codes]
    decode: Callable[[Codes], Array]


def _to_int8(x: Array) -> Codes:
    scale = jnp.abs(x).max(-1, keepdims=True) / 127
    return jnp.round(x / jnp.where(scale > 0, scale, 1)).astype(jnp.int8), scale


def _to_signs(x: Array) -> Codes:
    """Of all scales the mean magnitude is the one that loses least (Karimireddy et al. 2019, "Error Feedback")."""
    return jnp.packbits(x >= 0, axis=-1), jnp.abs(x).mean(-1, keepdims=True)


INT8 = Codec(_to_int8, lambda codes: codes[0] * codes[1])
SIGNS = Codec(_to_signs, lambda codes: (2.0 * jnp.unpackbits(codes[0], axis=-1) - 1) * codes[1])


class Errors(NamedTuple):
    """What a device's codes were short of, when it sent its numbers and when it sent the sums of its chunk."""

    shares: Any
    sums: Any


def padded(size: int, devices: int) -> int:
    """Numbers with the padding that makes of them as many blocks on each device."""
    return -(-size // (BLOCK * devices)) * BLOCK * devices


def all_reduce(x_P: Float[Array, " P"], errors: Errors, codec: Codec) -> tuple[Float[Array, " P"], Errors]:
    """The sum over devices, as far as codes can tell."""
    devices = lax.axis_size("data")
    filled = jnp.pad(x_P, (0, padded(x_P.size, devices) - x_P.size)) + errors.shares
    mine = filled.reshape(devices, -1, BLOCK)
    codes = codec.encode(mine)
    received = jax.tree.map(lambda code: lax.all_to_all(code, "data", 0, 0), codes)
    chunk = codec.decode(received).sum(0) + errors.sums.reshape(-1, BLOCK)
    sums = codec.encode(chunk)
    gathered = jax.tree.map(lambda code: lax.all_gather(code, "data", to="invarying"), sums)
    left = Errors((mine - codec.decode(codes)).reshape(-1), (chunk - codec.decode(sums)).reshape(-1))
    return codec.decode(gathered).reshape(-1)[: x_P.size], left


class Kept(NamedTuple):
    """The state of an optimizer that takes compressed gradients."""

    optimizer: Any
    errors: Errors


def compressed(optimizer: Optimizer, train: TrainConfig, devices: int) -> Optimizer:
    """The same optimizer, which takes each device's share of the gradients, and sums them itself."""
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
    """AdamW for the first steps; then its second moments stay as they are, and its momentum is what is summed.

    Algorithm 1 of Tang et al. 2021. No device has the sum of the gradients any more: they are clipped by the root mean
    square of the devices' own norms, which is no less than its norm. A sign is never zero: what has had no gradient so
    far is given no momentum.
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

        def change(m: Array, v: Array, weight: Array) -> Array:
            direction = m / scale1 / (jnp.sqrt(v / scale2) + train.epsilon)
            return -train.learning_rate * (direction + train.weight_decay * weight)

        updates: Any = jax.tree.map(change, mu, adam.nu, weights)
        return updates, Kept((adam._replace(count=count, mu=mu), *others), errors), norm

    return lax.cond(adam.count < train.compression_warmup, warm, onebit)
