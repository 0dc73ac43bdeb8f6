"""Forward and backward pass of one layer as separate functions, and buffers with a slot for each layer.

A loop that runs a layer forward now and backward later holds its residuals in between.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

Leaves = list[Array]
"""Weights of one layer or of stacked layers, as `jax.tree.leaves` lists them."""
Sums = dict[str, Array]
"""What a branch returns beside the residual stream, by name: sums over the tokens that it takes."""
Extras = dict[str, Array]
"""What layers add to the sum of the tokens' losses, such as a router's loss, by name. Each is a float32 [], a sum over
the tokens that a branch takes: all of this device's sequences. GPT-2 has none."""
Result = tuple[Array, Extras]
"""The residual stream y[B,T,D] after a layer or after all, and their extras."""
Run = Callable[[Any, Array], Result]
"""(weights, x) -> result. The weights are a tree of arrays, as `Leaves`."""


def forward(run: Run, weights: Any, x_BTD: Array) -> tuple[Result, Any]:
    """Run one layer. Returns its result and its residuals, without the weights.

    JAX has no public way to take apart what `jax.vjp` returns: this function and `backward` use two of its fields.
    """
    pull: Any
    result, pull = jax.vjp(run, weights, x_BTD)
    return result, (pull.args_res[1], pull.opaque_residuals)  # residuals: the argument x, and what `run` computed


def backward(run: Run, known: tuple[Any, Any], dy_BTD: Array, dextras: Extras | None = None) -> tuple[Any, Array]:
    """(weights and residuals), gradients of the result -> gradients of the weights and of the input.

    By default the gradient of each of the extras is one: the loss has them as they are.
    """
    weights, (x_BTD, residuals) = known
    pull: Any
    (_, extras), pull = jax.eval_shape(partial(jax.vjp, run), weights, dy_BTD)
    dextras = jax.tree.map(jnp.ones_like, extras) if dextras is None else dextras
    return dataclasses.replace(pull, args_res=[weights, x_BTD], opaque_residuals=residuals)((dy_BTD, dextras))


def added(extras: Extras, more: Extras) -> Extras:
    """The sums of extras by name."""
    return extras | {name: extras[name] + value if name in extras else value for name, value in more.items()}


def zeros_buffer(shapes: Any, *counts: int) -> Any:
    """Zeros [*counts, *shape] for each array, varying over the same mesh axes as the array."""
    return jax.tree.map(lambda like: jnp.zeros_like(like, shape=(*counts, *like.shape)), shapes)


def write_slot(buffers: Any, values: Any, *at: Any) -> Any:
    """Write values to an index of the buffers, in place."""

    def replaced(buffer: Array, value: Array) -> Array:
        start = [*at, *[0] * value.ndim]
        return lax.dynamic_update_slice(buffer, value[(None,) * len(at)], start)

    return jax.tree.map(replaced, buffers, values)


def read_slot(buffers: Any, *at: Any) -> Any:
    """Read an index of the buffers."""
    return jax.tree.map(lambda buffer: buffer[at], buffers)
