"""Forward and backward pass of one layer as separate functions, and buffers with a slot for each layer.

A loop that runs a layer forward now and backward later holds its residuals in between.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

Leaves = list[Array]
"""Weights of one layer or of stacked layers, as `jax.tree.leaves` lists them."""
Run = Callable[[Any, Array], Array]
"""(weights, x) -> y. The weights are a tree of arrays, as `Leaves`."""


def forward(run: Run, weights: Any, x_BTD: Array) -> tuple[Array, Any]:
    """Run one layer. Returns the output and its residuals, without the weights.

    JAX has no public way to take apart what `jax.vjp` returns: this function and `backward` use two of its fields.
    """
    pull: Any
    y_BTD, pull = jax.vjp(run, weights, x_BTD)
    return y_BTD, (pull.args_res[1], pull.opaque_residuals)  # residuals: the argument x, and what `run` computed


def backward(run: Run, known: tuple[Any, Any], dy_BTD: Array) -> tuple[Any, Array]:
    """(weights and residuals), gradient of the output -> gradients of the weights and of the input."""
    weights, (x_BTD, residuals) = known
    pull: Any = jax.eval_shape(lambda *inputs: jax.vjp(run, *inputs)[1], weights, dy_BTD)
    return dataclasses.replace(pull, args_res=[weights, x_BTD], opaque_residuals=residuals)(dy_BTD)


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
