"""Building blocks of loops over layers: loops that stay loops, passes through one layer, and buffers with slots.

XLA replaces a loop of one iteration by its body. It then merges operations that the forward and backward pass share,
such as gathers, ring hops and recomputed matmuls, and keeps their results. The step would hold more and send less than
its strategy says, and the order of its collectives could deadlock on virtual CPU devices. So loops stay loops in the
compiled program, however few layers or chunks there are. Layers without collectives need no loop (`Plan.needs_loop`):
XLA's GPU backend would copy their residuals into stacks.

A loop that runs a layer forward now and backward later holds its residuals in between, in one slot per layer.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jaxtyping import Array

Leaves = list[Array]
"""Weights of one layer or of stacked layers, as `jax.tree.leaves` lists them."""
Sums = dict[str, Array]
"""Sums over a branch's tokens that it returns with the residual stream, by name."""
Extras = dict[str, Array]
"""Terms that layers add to the sum of the tokens' losses, such as a router's loss, by name. Each is a float32 [], a sum
over a branch's tokens: all of this device's sequences. GPT-2 has none."""
Result = tuple[Array, Extras]
"""The residual stream y[B,T,D] after one layer or all, and their extras."""
Run = Callable[[Any, Array], Result]
"""(weights, x) -> result. The weights are a tree of arrays, as `Leaves`."""


def forward(run: Run, weights: Any, x_BTD: Array) -> tuple[Result, Any]:
    """Run one layer. Returns its result and its residuals, without the weights.

    JAX has no public way to take apart the result of `jax.vjp`: this function and `backward` use two of its fields.
    """
    pull: Any
    result, pull = jax.vjp(run, weights, x_BTD)
    return result, (pull.args_res[1], pull.opaque_residuals)  # residuals: the argument x, and what `run` computed


def backward(run: Run, known: tuple[Any, Any], dy_BTD: Array, dextras: Extras | None = None) -> tuple[Any, Array]:
    """(weights and residuals), gradients of the result -> gradients of the weights and of the input.

    By default the gradient of each extra is one, because extras are added to the loss unscaled.
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


Step = Callable[[Any, Any], tuple[Any, Any]]
"""(carry, x) -> (carry, y), as `lax.scan` takes it."""
KEEPS_LOOP = "skip-simplify-while-loops_trip-count-one"
"""Loop attribute that stops XLA's WhileLoopSimplifier from replacing a loop by its only iteration."""


def is_loop(layers: int, unroll: int, *, needed: bool) -> bool:
    """Whether the layers are a loop in the program: if one is needed, or unless a single iteration runs several layers.

    >>> is_loop(4, 4, needed=False), is_loop(4, 2, needed=False), is_loop(1, 1, needed=False)
    (False, True, True)
    """
    return needed or not 1 < layers <= unroll


def layers_at_once(layers: int, unroll: int) -> int:
    """The largest divisor of the layer count up to `unroll`: the layers of a scan iteration.

    >>> layers_at_once(12, 4), layers_at_once(9, 4), layers_at_once(2, 4)
    (4, 3, 2)
    """
    return max(count for count in range(1, min(layers, unroll) + 1) if layers % count == 0)


def scan_layers(step: Step, carry: Any, xs: Any, *, unroll: int, reverse: bool = False) -> tuple[Any, Any]:
    """`lax.scan` with `layers_at_once` layers in an iteration, in a loop that stays one.

    No layer runs outside of it: XLA would merge its gathers in the forward loop with those in the backward loop.
    """
    layers = jax.tree.leaves(xs)[0].shape[0]
    if layers < 2:
        return scan_kept(step, carry, xs)
    if (at_once := layers_at_once(layers, unroll)) < layers:
        return lax.scan(step, carry, xs, reverse=reverse, unroll=at_once)

    def all_layers(carry: Any, xs: Any) -> tuple[Any, Any]:
        return lax.scan(step, carry, xs, reverse=reverse, unroll=layers)

    carry, ys = scan_kept(all_layers, carry, jax.tree.map(lambda x: x[None], xs))
    return carry, jax.tree.map(lambda y: y[0], ys)


def scan_kept(step: Step, carry: Any, xs: Any) -> tuple[Any, Any]:
    """`lax.scan` that stays a loop when it is compiled, even with a single iteration."""
    if jax.tree.leaves(xs)[0].shape[0] != 1:
        return lax.scan(step, carry, xs)

    def inner(*inputs: Any) -> tuple[Any, Any]:
        with set_xla_metadata(**{KEEPS_LOOP: None}):
            return step(*inputs)

    with set_xla_metadata(**{KEEPS_LOOP: "true"}):
        return lax.scan(inner, carry, xs)
