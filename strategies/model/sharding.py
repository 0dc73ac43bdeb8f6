"""Explicit sharding in the model: what the types of arrays say where JAX does not decide (docs of JAX, "Explicit
sharding").

Under explicit sharding (explicit.py) an array's type says which mesh axes split its dims. Two tags belong to it: the
gradient of a `reduced` array stays a sum on each device, and an `unreduced` array is a partial sum on each device.
Without explicit mesh axes the functions below do what the plain operations do, with the same program.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float


def spec_of(x: Array) -> P:
    """The `PartitionSpec` in the type of an array. It is empty without explicit mesh axes."""
    return jax.typeof(x).sharding.spec


def resharded(x: Array, **tags: Collection[str]) -> Array:
    """x with other tags (`reduced`, `unreduced`), split as before. An axis that leaves `unreduced` is summed over."""
    return jax.reshard(x, P(*spec_of(x).partitions, **{name: frozenset(axes) for name, axes in tags.items()}))


def is_partial(x: Array) -> bool:
    """Whether an array is a partial sum on each device."""
    return bool(spec_of(x).unreduced)


def completed(tree: Any) -> Any:
    """Partial sums -> their sums over devices. Other arrays stay as they are."""
    return jax.tree.map(lambda x: resharded(x) if is_partial(x) else x, tree)


def partial_sum(x: Array) -> Float[Array, ""]:
    """The sum of all elements: a partial sum on each device over the mesh axes that split x."""
    axes = {axis for axes in spec_of(x).partitions for axis in (axes if isinstance(axes, tuple) else (axes,)) if axis}
    return lax.reduce_sum(x, range(x.ndim), out_sharding=P(unreduced=axes) if axes else None)


def zeros_like(x: Any, dtype: Any) -> Array:
    """Zeros of another dtype, of the shape and type of x."""
    if x.sharding is None or not x.sharding.spec.unreduced:
        return jnp.zeros_like(x, dtype)
    spec = x.sharding.spec
    return resharded(jnp.zeros(x.shape, dtype, out_sharding=P(*spec.partitions)), unreduced=spec.unreduced)


def reshape(x: Array, shape: Sequence[int]) -> Array:
    """Reshape an array of which at most the first and the last dim are split. Both stay split, and the last as it is.

    JAX 0.10 has no rule for the reshape of an array with tags.
    """
    spec = spec_of(x)
    if not (spec.reduced or spec.unreduced):
        return x.reshape(shape)
    shape = [x.size // -math.prod(shape) if size == -1 else size for size in shape]
    first, *_, last = (*spec.partitions, None) if x.ndim == 1 else spec.partitions
    split = [first, *[None] * (len(shape) - 2), last][: len(shape)]
    return lax.reshape(x, shape, out_sharding=P(*split, reduced=spec.reduced, unreduced=spec.unreduced))


def matmul(x_BTD: Array, w_DF: Array) -> Array:
    """Matmul over the last dim, as a two-dimensional matmul, which XLA's CPU backend runs about twice as fast.

    Where the summed dim is split, the result is `unreduced`.
    """
    x_ND, shape = reshape(x_BTD, (-1, x_BTD.shape[-1])), (*x_BTD.shape[:-1], w_DF.shape[-1])
    tokens, summed = spec_of(x_ND).partitions
    if not summed:
        return (x_ND @ w_DF).reshape(shape)
    features = spec_of(w_DF).partitions[1]
    return reshape(jnp.dot(x_ND, w_DF, out_sharding=P(tokens, features, unreduced={summed})), shape)


def spread(weight: Array, x: Array) -> Array:
    """A weight in the form in which it can be added to x or multiplied by it.

    A `reduced` weight cannot meet an array that is split over the same mesh axes. It is broadcast along the dims of x
    that these axes split, and the transpose sums there.
    """
    own, other = spec_of(weight), spec_of(x)
    if not own.reduced:
        return weight
    first = x.ndim - weight.ndim
    split = [not own.reduced.isdisjoint(axes if isinstance(axes, tuple) else (axes,)) for axes in other.partitions]
    shape = [x.shape[i] if split[i] else 1 if i < first else weight.shape[i - first] for i in range(x.ndim)]
    out = [other.partitions[i] if split[i] else None if i < first else own.partitions[i - first] for i in range(x.ndim)]
    return lax.broadcast_in_dim(weight, shape, range(first, x.ndim), out_sharding=P(*out))
