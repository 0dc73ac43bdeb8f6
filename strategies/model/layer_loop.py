"""Loops that are loops in the compiled program, too, however few layers or chunks there are.

XLA replaces a loop of one iteration by its body. Then it merges what the forward and the backward pass have in common,
such as gathers, hops around a ring and recomputed matmuls, and keeps the results in between. The step would hold more
and send less than its strategy says, and the order of its collectives could deadlock on virtual CPU devices. Layers
without collectives need no loop (`Plan.needs_loop`): XLA's GPU backend would copy what they keep into stacks.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata

Step = Callable[[Any, Any], tuple[Any, Any]]
"""(carry, x) -> (carry, y), as `lax.scan` takes it."""
KEEPS_LOOP = "skip-simplify-while-loops_trip-count-one"
"""The attribute of a loop that stops XLA's WhileLoopSimplifier from replacing it by its only iteration."""


def is_loop(layers: int, unroll: int, *, needed: bool) -> bool:
    """Whether the layers are a loop in the program: unless none is needed, and one iteration has all of several layers.

    >>> is_loop(4, 4, needed=False), is_loop(4, 2, needed=False), is_loop(1, 1, needed=False)
    (False, True, True)
    """
    return needed or not 1 < layers <= unroll


def layers_at_once(layers: int, unroll: int) -> int:
    """The most layers that one iteration may have, so that all iterations have as many.

    >>> layers_at_once(12, 4), layers_at_once(9, 4), layers_at_once(2, 4)
    (4, 3, 2)
    """
    return max(count for count in range(1, min(layers, unroll) + 1) if layers % count == 0)


def layers_in_iteration(layers: int, unroll: int) -> int:
    """Layers in one iteration of `scan_layers`: at most `unroll`, in two iterations at least where layers are more.

    >>> layers_in_iteration(8, 4), layers_in_iteration(7, 4), layers_in_iteration(3, 4)
    (4, 3, 3)
    """
    return layers if layers <= unroll else min(unroll, layers // 2)


def scan_layers(step: Step, carry: Any, xs: Any, *, unroll: int, reverse: bool = False) -> tuple[Any, Any]:
    """`lax.scan` with up to `unroll` layers in an iteration, in a loop that stays one.

    What is left over of layers that `unroll` does not divide runs beside the loop. A loop over all but one of the
    layers (layers.py) often has such a rest.
    """
    layers = jax.tree.leaves(xs)[0].shape[0]
    if layers > unroll:
        return lax.scan(step, carry, xs, reverse=reverse, unroll=layers_in_iteration(layers, unroll))
    if layers < 2:
        return scan_kept(step, carry, xs)

    def all_layers(carry: Any, xs: Any) -> tuple[Any, Any]:
        return lax.scan(step, carry, xs, reverse=reverse, unroll=layers)

    carry, ys = scan_kept(all_layers, carry, jax.tree.map(lambda x: x[None], xs))
    return carry, jax.tree.map(lambda y: y[0], ys)


def scan_kept(step: Step, carry: Any, xs: Any) -> tuple[Any, Any]:
    """`lax.scan` that stays a loop when it is compiled, even one of a single iteration."""
    if jax.tree.leaves(xs)[0].shape[0] != 1:
        return lax.scan(step, carry, xs)

    def inner(*inputs: Any) -> tuple[Any, Any]:
        with set_xla_metadata(**{KEEPS_LOOP: None}):
            return step(*inputs)

    with set_xla_metadata(**{KEEPS_LOOP: "true"}):
        return lax.scan(inner, carry, xs)
