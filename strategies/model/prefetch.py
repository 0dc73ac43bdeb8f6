"""The loop over layers that gathers weights one layer ahead (`TrainConfig.prefetch`).

If an iteration gathers the weights of its own layer, it waits for them: compilers move no collective into the iteration
before. Here an iteration runs one layer, and meanwhile gathers the weights of the next, as PyTorch's FSDP does (Zhao et
al. 2023, "PyTorch FSDP", section 3.3.2). The backward loop, beside the backward pass of layer l,

    gathers the weights of layer l-1, and
    sums the gradients of layer l+1 over devices, by the transpose of their gather

So the whole weights of two layers exist at a time, and backward the whole gradients of two. The weights of the last
layer are kept from the forward to the backward loop, and are not gathered again.

Autodiff would keep the gathered weights of all layers, because the loop carries them. So both loops are written here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from strategies.config import TrainConfig
from strategies.model.layer_loop import scan_layers
from strategies.model.layer_passes import Run, backward, forward, read_slot, write_slot
from strategies.model.order import after

Tree = Any
"""Weights of one layer, or of all layers stacked, as a tree of arrays."""
Gather = Callable[[Tree], Tree]
"""Stored weights of one layer -> its weights as it uses them."""


def is_ordered(train: TrainConfig, layers: int) -> bool:
    """Whether the gathers outside of the two loops wait for the result that comes before them.

    Without an order they run beside the embedding and the head. But a compiler would move them out of a loop over
    microbatches. And of few layers, whose loops it unrolls, it would merge the gathers of both loops. Either way it
    would keep two layers' weights.
    """
    return train.microbatches > 1 or layers <= train.layers_in_loop + 2


@dataclass(frozen=True)
class PrefetchedLayers:
    """Runs all layers in order: (weights of all layers, stacked [L,...], with L > 1; input of the first) -> output.

    Attributes:
        gather: collective; its transpose sums gradients over devices.
        run: one layer with gathered weights. What it recomputes is up to its `jax.checkpoint`.
        unroll: layers in one iteration of a loop.
        ordered: as `is_ordered` says.
    """

    gather: Gather
    run: Run
    unroll: int
    ordered: bool

    def __call__(self, stored: Tree, x_BTD: Array) -> Array:
        """Output of the last layer [B,T,D]."""
        function = jax.custom_vjp(lambda stored, x_BTD: self._forward(stored, x_BTD)[0])
        function.defvjp(self._forward, self._backward)
        return function(stored, x_BTD)

    def _forward(self, stored: Tree, x_BTD: Array) -> tuple[Array, Any]:
        """Output of the last layer, and what the backward loop takes."""

        def step(carried: tuple[Array, Tree], layer: Array) -> tuple[tuple[Array, Tree], Any]:
            x_BTD, weights = carried
            following = self.gather(read_slot(stored, layer + 1))
            y_BTD, kept = forward(self.run, weights, x_BTD)
            return (y_BTD, following), kept

        first = self._gather_after(x_BTD, read_slot(stored, 0))
        (x_BTD, last), kept = scan_layers(step, (x_BTD, first), jnp.arange(_count(stored) - 1), unroll=self.unroll)
        y_BTD, kept_last = forward(self.run, last, x_BTD)
        return y_BTD, (stored, kept, last, kept_last)

    def _backward(self, known: Any, dy_BTD: Array) -> tuple[Tree, Array]:
        """Gradients of the stored weights, and of the input."""
        stored, kept, last, kept_last = known
        final = _count(stored) - 1

        def summed(grads: Tree, dweights: Tree, layer: Any) -> Tree:
            """Sum the gradients of one layer over devices, and store them."""
            transpose = jax.vjp(self.gather, read_slot(stored, layer))[1]
            return write_slot(grads, transpose(dweights)[0], layer)

        def step(carried: tuple[Array, Tree, Tree, Tree], layer: Array) -> tuple[Any, None]:
            dx_BTD, weights, later, grads = carried
            preceding = self.gather(read_slot(stored, layer - 1))
            grads = summed(grads, later, layer + 1)
            dweights, dx_BTD = backward(self.run, (weights, read_slot(kept, layer)), dx_BTD)
            return (dx_BTD, preceding, dweights, grads), None

        # Outside of a loop a compiler could recompute a layer long before its gradient arrives: merged with the forward
        # pass of the last layer, and beside the loop that the first layer comes after.
        kept_last = after(dy_BTD, kept_last)
        preceding = self._gather_after(dy_BTD, read_slot(stored, final - 1))
        dweights, dx_BTD = backward(self.run, (last, kept_last), dy_BTD)
        carried = dx_BTD, preceding, dweights, jax.tree.map(jnp.zeros_like, stored)
        carried, _ = scan_layers(step, carried, jnp.arange(1, final), reverse=True, unroll=self.unroll)
        dx_BTD, weights, later, grads = carried
        grads = summed(grads, later, 1)
        dweights, dx_BTD = backward(self.run, (weights, after(dx_BTD, read_slot(kept, 0))), dx_BTD)
        return summed(grads, dweights, 0), dx_BTD

    def _gather_after(self, earlier: Array, stored: Tree) -> Tree:
        return self.gather(after(earlier, stored) if self.ordered else stored)


def _count(stored: Tree) -> int:
    return jax.tree.leaves(stored)[0].shape[0]
