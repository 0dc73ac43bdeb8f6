"""The loop over the layers of a device, forward and backward.

XLA does not move collectives across loop iterations. A gather issued in the iteration that needs it is exposed, and so
is the last reduction. Two options avoid that:

    gathers_ahead (`TrainConfig.prefetch`): an iteration runs one layer and gathers the weights of the next one, as
        PyTorch's FSDP does (Zhao et al. 2023, "PyTorch FSDP", section 3.3.2). The whole weights of two layers exist at
        a time. The last layer's are kept from the forward to the backward loop, and are not gathered again.
        It also sums late.
    sums_late (`TrainConfig.reduce="layer"`): during the backward pass of layer l the backward loop sums the gradients
        of layer l+1 over devices, by the transpose of `gather`. So the gradients of two layers exist at a time, those
        of the following layer in the compute dtype.

With either option both loops are written here: autodiff would keep all layers' gathered weights, because the loop
carries them, and would reduce a layer's gradients in its own iteration. Without them autodiff differentiates the loop.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from strategies.config import TrainConfig
from strategies.model.order import after
from strategies.model.passes import Extras, Result, Run, added, backward, forward, read_slot, scan_layers, write_slot

Tree = Any
"""Weights of one layer, or of all layers stacked, as a tree of arrays."""


def is_ordered(train: TrainConfig, layers: int) -> bool:
    """Whether the gathers outside the two loops wait for the result before them.

    Unordered, they overlap with the embedding and the head. But a compiler would move them out of a loop over
    microbatches, and with few layers, whose loops it unrolls, it would merge the gathers of both loops. Either way two
    layers' weights would stay in memory.
    """
    return train.microbatches > 1 or layers <= train.layers_in_loop + 2


@jax.custom_vjp
def unstacked(stack: Array) -> tuple[Array, ...]:
    """The arrays of a stack. Their gradients are stacked; autodiff would add up padded arrays, one per layer."""
    return tuple(stack)


unstacked.defvjp(lambda stack: (tuple(stack), None), lambda _, grads: (jnp.stack(grads),))


@dataclass(frozen=True)
class Layers:
    """Runs all layers in order: (weights of all layers, stacked [L,...]; input of the first) -> result of the last.

    Attributes:
        gather: one layer's stored weights -> its gathered weights. Its transpose sums gradients over devices.
        gathers_ahead: needs two layers.
        sums_late: needs three layers.
        ordered: with `gathers_ahead`, as `is_ordered` returns it.
        loops: whether the layers are a loop, as `is_loop` returns it.
    """

    gather: Callable[[Tree], Tree]
    run: Run
    policy: Callable[..., Any]
    unroll: int
    gathers_ahead: bool = False
    sums_late: bool = False
    ordered: bool = False
    loops: bool = True

    def __call__(self, stored: Tree, x_BTD: Array) -> Result:
        """The residual stream after the last layer, and the sum of all layers' extras."""
        if not (self.gathers_ahead or self.sums_late):
            return self.differentiated(stored, x_BTD, in_loop=False)
        function = jax.custom_vjp(lambda stored, x_BTD: self._forward(stored, x_BTD)[0])
        function.defvjp(self._forward, self._backward)
        return function(stored, x_BTD)

    def differentiated(self, stored: Tree, x_BTD: Array, *, in_loop: bool = True) -> Result:
        """`__call__` as a `lax.scan` that autodiff differentiates. It may run inside another loop."""

        def layer(x_BTD: Array, stored: Tree) -> Result:
            return self.run(self.gather(stored), x_BTD)

        # XLA merges no common subexpressions across loops, so recomputation in a loop needs no barrier (`prevent_cse`).
        layer = jax.checkpoint(layer, policy=self.policy, prevent_cse=in_loop or not self.loops)
        if not self.loops:
            extras: Extras = {}
            stacks, structure = jax.tree.flatten(stored)
            for leaves in zip(*map(unstacked, stacks), strict=True):
                x_BTD, more = layer(x_BTD, jax.tree.unflatten(structure, leaves))
                extras = added(extras, more)
            return x_BTD, extras
        y_BTD, extras = (lax.scan if in_loop else scan_layers)(layer, x_BTD, stored, unroll=self.unroll)
        return y_BTD, _summed(extras)

    @property
    def _run(self) -> Run:
        return jax.checkpoint(self.run, policy=self.policy)

    def _forward(self, stored: Tree, x_BTD: Array) -> tuple[Result, Any]:
        """The result, and the residuals that the backward loop takes."""

        def ahead(carried: tuple[Array, Tree], layer: Array) -> tuple[tuple[Array, Tree], Any]:
            x_BTD, weights = carried
            following = self.gather(read_slot(stored, layer + 1))
            (y_BTD, extras), kept = forward(self._run, weights, x_BTD)
            return (y_BTD, following), (kept, extras)

        def here(x_BTD: Array, layer: Tree) -> tuple[Array, Any]:
            (y_BTD, extras), kept = forward(self._run, self.gather(layer), x_BTD)
            return y_BTD, (kept, extras)

        if not self.gathers_ahead:
            y_BTD, (kept, extras) = scan_layers(here, x_BTD, stored, unroll=self.unroll)
            return (y_BTD, _summed(extras)), (stored, kept, None)
        first = self._gather_after(x_BTD, read_slot(stored, 0))
        layers = jnp.arange(_count(stored) - 1)
        (x_BTD, last), (kept, extras) = scan_layers(ahead, (x_BTD, first), layers, unroll=self.unroll)
        (y_BTD, extras_last), kept_last = forward(self._run, last, x_BTD)
        extras = jax.tree.map(jnp.add, _summed(extras), extras_last)
        return (y_BTD, extras), (stored, kept, (last, kept_last))

    def _backward(self, known: Any, dresult: Result) -> tuple[Tree, Array]:
        (stored, kept, last), (dy_BTD, dextras) = known, dresult
        final, ahead = _count(stored) - 1, self.gathers_ahead

        def summed(grads: Tree, dweights: Tree, layer: Any) -> Tree:
            transpose = jax.vjp(self.gather, read_slot(stored, layer))[1]
            return write_slot(grads, transpose(dweights)[0], layer)

        def step(carried: tuple[Array, Tree, Tree, Tree], layer: Array) -> tuple[Any, None]:
            dx_BTD, weights, later, grads = carried
            preceding = self.gather(read_slot(stored, layer - 1)) if ahead else None
            grads = summed(grads, later, layer + 1)
            weights = weights if ahead else self.gather(read_slot(stored, layer))
            dweights, dx_BTD = backward(self._run, (weights, read_slot(kept, layer)), dx_BTD, dextras)
            return (dx_BTD, preceding, dweights, grads), None

        # Outside a loop a compiler could recompute a layer long before its gradient arrives: merged with the last
        # layer's forward pass, during the head, or during the loop that runs before the first layer's backward pass.
        weights, kept_last = last if ahead else (None, read_slot(kept, final))
        kept_last = after(dy_BTD, kept_last)
        preceding = self._gather_after(dy_BTD, read_slot(stored, final - 1)) if ahead else None
        weights = weights if ahead else self.gather(read_slot(stored, final))
        dweights, dx_BTD = backward(self._run, (weights, kept_last), dy_BTD, dextras)
        carried, layers = (dx_BTD, preceding, dweights, jax.tree.map(jnp.zeros_like, stored)), jnp.arange(ahead, final)
        carried, _ = scan_layers(step, carried, layers, reverse=True, unroll=self.unroll)
        dx_BTD, weights, later, grads = carried
        if ahead:
            grads, kept_first = summed(grads, later, 1), after(dx_BTD, read_slot(kept, 0))
            later, dx_BTD = backward(self._run, (weights, kept_first), dx_BTD, dextras)
        return summed(grads, later, 0), dx_BTD

    def _gather_after(self, earlier: Array, stored: Tree) -> Tree:
        return self.gather(after(earlier, stored) if self.ordered else stored)


def _count(stored: Tree) -> int:
    return jax.tree.leaves(stored)[0].shape[0]


def _summed(extras: Any) -> Any:
    return jax.tree.map(lambda each: each.sum(0), extras)
