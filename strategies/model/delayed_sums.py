"""The loop over layers that sums gradients over devices one layer late (`TrainConfig.reduce="layer"`).

If an iteration of the backward loop sums the gradients of its own layer, the sums of what it computes last have nothing
left to overlap with, and compilers move no wait for a collective into the next iteration. Here the sums of layer l+1
run beside the whole backward pass of layer l. So the gradients of two layers exist at a time, those of the following
layer in the compute dtype. Weights that are gathered in the loop are `prefetch`'s (prefetch.py), which delays sums as
well.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from strategies.model.layer_loop import scan_layers
from strategies.model.layer_passes import Run, backward, forward, read_slot, write_slot
from strategies.model.order import after

Tree = Any
"""Weights of one layer, or of all layers stacked, as a tree of arrays."""


@dataclass(frozen=True)
class DelayedSums:
    """Runs all layers in order: (weights of all layers, stacked [L,...], with L > 2; input of the first) -> output.

    Attributes:
        ready: stored weights of one layer -> its weights as it uses them; the transpose sums gradients over devices.
        run: one layer with such weights. What it recomputes is up to its `jax.checkpoint`.
        unroll: layers in one iteration of a loop.
    """

    ready: Callable[[Tree], Tree]
    run: Run
    unroll: int

    def __call__(self, stored: Tree, x_BTD: Array) -> Array:
        """Output of the last layer [B,T,D]."""
        function = jax.custom_vjp(lambda stored, x_BTD: self._forward(stored, x_BTD)[0])
        function.defvjp(self._forward, self._backward)
        return function(stored, x_BTD)

    def _forward(self, stored: Tree, x_BTD: Array) -> tuple[Array, Any]:
        """Output of the last layer, and what the backward loop takes."""

        def step(x_BTD: Array, layer: Tree) -> tuple[Array, Any]:
            return forward(self.run, self.ready(layer), x_BTD)

        y_BTD, kept = scan_layers(step, x_BTD, stored, unroll=self.unroll)
        return y_BTD, (stored, kept)

    def _backward(self, known: Any, dy_BTD: Array) -> tuple[Tree, Array]:
        """Gradients of the stored weights, and of the input."""
        stored, kept = known
        final = jax.tree.leaves(stored)[0].shape[0] - 1

        def summed(grads: Tree, dweights: Tree, layer: Any) -> Tree:
            """Sum the gradients of one layer over devices, and store them."""
            transpose = jax.vjp(self.ready, read_slot(stored, layer))[1]
            return write_slot(grads, transpose(dweights)[0], layer)

        def step(carried: tuple[Array, Tree, Tree], layer: Array) -> tuple[Any, None]:
            dx_BTD, later, grads = carried
            grads = summed(grads, later, layer + 1)
            dweights, dx_BTD = backward(
                self.run, (self.ready(read_slot(stored, layer)), read_slot(kept, layer)), dx_BTD
            )
            return (dx_BTD, dweights, grads), None

        # Outside of a loop a compiler could recompute the layer before its gradient arrives, beside the head.
        kept_last = after(dy_BTD, read_slot(kept, final))
        dweights, dx_BTD = backward(self.run, (self.ready(read_slot(stored, final)), kept_last), dy_BTD)
        carried = dx_BTD, dweights, jax.tree.map(jnp.zeros_like, stored)
        (dx_BTD, dweights, grads), _ = scan_layers(step, carried, jnp.arange(final), reverse=True, unroll=self.unroll)
        return summed(grads, dweights, 0), dx_BTD
