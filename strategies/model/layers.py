"""The loop over the layers of a device, and what every such loop is made of: passes through a layer, slots, scans.

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
Pipeline stages run `forward` and `backward` of a layer in a loop of their own (pipelining/layer_backward.py).

XLA replaces a loop of one iteration by its body, and then merges operations that the forward and backward pass share,
such as gathers and recomputed matmuls. The step would hold more and send less than its strategy says, and virtual CPU
devices could deadlock. So loops stay loops in the compiled program, however few layers or chunks there are. Layers
without collectives need no loop (`Plan.needs_loop`): XLA's GPU backend would copy their residuals into stacks.
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

from strategies.backends.backend import private

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
    result, pull = jax.vjp(run, weights, x_BTD)
    # Residuals: the argument x, and what `run` computed.
    return result, (private(pull, "args_res")[1], private(pull, "opaque_residuals"))


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


def scan_layers(
    step: Step, carry: Any, xs: Any, *, unroll: int, reverse: bool = False, loops: bool = True
) -> tuple[Any, Any]:
    """`lax.scan` with `layers_at_once` layers in an iteration, in a loop that stays one; without `loops` no loop.

    No layer runs outside of it: XLA would merge its gathers in the forward loop with those in the backward loop.
    """
    layers = jax.tree.leaves(xs)[0].shape[0]
    if not loops:
        return _unrolled(step, carry, xs)
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


def after(earlier: Array, later: Any) -> Any:
    """Make a tree's floating-point arrays depend on `earlier`. Their values do not change if it is finite.

    `lax.optimization_barrier` is not enough: XLA's CPU backend of JAX 0.10 removes it before it merges equal
    computations. XLA cannot remove a product with 0, which may be NaN.
    """
    zero = 0 * earlier.reshape(-1)[0]
    return jax.tree.map(lambda x: x + zero.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.inexact) else x, later)


def _unrolled(step: Step, carry: Any, xs: Any) -> tuple[Any, Any]:
    stacks, structure = jax.tree.flatten(xs)
    ys = []
    for leaves in zip(*map(unstacked, stacks), strict=True):
        carry, y = step(carry, jax.tree.unflatten(structure, leaves))
        ys.append(y)
    return carry, jax.tree.map(lambda *each: jnp.stack(each), *ys)


@jax.custom_vjp
def unstacked(stack: Array) -> tuple[Array, ...]:
    """The arrays of a stack. Their gradients are stacked; autodiff would add up padded arrays, one per layer."""
    return tuple(stack)


unstacked.defvjp(lambda stack: (tuple(stack), None), lambda _, grads: (jnp.stack(grads),))


@dataclasses.dataclass(frozen=True)
class Layers:
    """Runs all layers in order: (weights of all layers, stacked [L,...]; input of the first) -> result of the last.

    Attributes:
        gather: one layer's stored weights -> its gathered weights. Its transpose sums gradients over devices.
        gathers_ahead: needs two layers.
        sums_late: needs three layers.
        ordered: with `gathers_ahead`, whether the gathers outside the two loops wait for the result before them.
        loops: whether the layers are a loop, as `is_loop` returns it.
    """

    gather: Callable[[Any], Any]
    run: Run
    policy: Callable[..., Any]
    unroll: int
    gathers_ahead: bool = False
    sums_late: bool = False
    ordered: bool = False
    loops: bool = True

    def __call__(self, stored: Any, x_BTD: Array) -> Result:
        """The residual stream after the last layer, and the sum of all layers' extras."""
        if not (self.gathers_ahead or self.sums_late):
            return self.differentiated(stored, x_BTD)
        function = jax.custom_vjp(lambda stored, x_BTD: self._forward(stored, x_BTD)[0])
        function.defvjp(self._forward, self._backward)
        return function(stored, x_BTD)

    def differentiated(self, stored: Any, x_BTD: Array, *, in_loop: bool = False) -> Result:
        """`__call__` as a loop that autodiff differentiates. With `in_loop` a single layer, inside another loop."""
        y_BTD, extras = self.forward(stored, x_BTD, in_loop=in_loop)
        return y_BTD, _summed(extras)

    def forward(self, stored: Any, x_BTD: Array, *, in_loop: bool = False) -> tuple[Array, Any]:
        """The residual stream after the last layer, and what `run` returns with it, stacked by layer."""

        gather = self.gather
        if not (self.loops or in_loop):
            # Cast the weights of all layers once, outside `jax.checkpoint`. Inside, a layer's residuals would be its
            # weights in float32, copied. Their gradients are stacked in the dtype of the cast.
            stored, gather = jax.vmap(gather)(stored), lambda weights: weights

        def layer(x_BTD: Array, stored: Any) -> tuple[Array, Any]:
            return self.run(gather(stored), x_BTD)

        # XLA merges no common subexpressions across loops, so recomputation in a loop needs no barrier (`prevent_cse`).
        layer = jax.checkpoint(layer, policy=self.policy, prevent_cse=in_loop or not self.loops)
        if in_loop:
            return lax.scan(layer, x_BTD, stored)
        return scan_layers(layer, x_BTD, stored, unroll=self.unroll, loops=self.loops)

    def _forward(self, stored: Any, x_BTD: Array) -> tuple[Result, Any]:
        """The result, and the residuals that the backward loop takes."""
        run = jax.checkpoint(self.run, policy=self.policy)

        def ahead(carried: tuple[Array, Any], layer: Array) -> tuple[tuple[Array, Any], Any]:
            x_BTD, weights = carried
            following = self.gather(read_slot(stored, layer + 1))
            (y_BTD, extras), kept = forward(run, weights, x_BTD)
            return (y_BTD, following), (kept, extras)

        def here(x_BTD: Array, layer: Any) -> tuple[Array, Any]:
            (y_BTD, extras), kept = forward(run, self.gather(layer), x_BTD)
            return y_BTD, (kept, extras)

        if not self.gathers_ahead:
            y_BTD, (kept, extras) = scan_layers(here, x_BTD, stored, unroll=self.unroll)
            return (y_BTD, _summed(extras)), (stored, kept, None)
        first = self._gather_after(x_BTD, read_slot(stored, 0))
        layers = jnp.arange(_count(stored) - 1)
        (x_BTD, last), (kept, extras) = scan_layers(ahead, (x_BTD, first), layers, unroll=self.unroll)
        (y_BTD, extras_last), kept_last = forward(run, last, x_BTD)
        extras = jax.tree.map(jnp.add, _summed(extras), extras_last)
        return (y_BTD, extras), (stored, kept, (last, kept_last))

    def _backward(self, known: Any, dresult: Result) -> tuple[Any, Array]:
        (stored, kept, last), (dy_BTD, dextras) = known, dresult
        final, ahead, run = _count(stored) - 1, self.gathers_ahead, jax.checkpoint(self.run, policy=self.policy)

        def summed(grads: Any, dweights: Any, layer: Any) -> Any:
            transpose = jax.vjp(self.gather, read_slot(stored, layer))[1]
            return write_slot(grads, transpose(dweights)[0], layer)

        def step(carried: tuple[Array, Any, Any, Any], layer: Array) -> tuple[Any, None]:
            dx_BTD, weights, later, grads = carried
            preceding = self.gather(read_slot(stored, layer - 1)) if ahead else None
            grads = summed(grads, later, layer + 1)
            weights = weights if ahead else self.gather(read_slot(stored, layer))
            dweights, dx_BTD = backward(run, (weights, read_slot(kept, layer)), dx_BTD, dextras)
            return (dx_BTD, preceding, dweights, grads), None

        # Outside a loop a compiler could recompute a layer long before its gradient arrives: merged with the last
        # layer's forward pass, during the head, or during the loop that runs before the first layer's backward pass.
        weights, kept_last = last if ahead else (None, read_slot(kept, final))
        kept_last = after(dy_BTD, kept_last)
        preceding = self._gather_after(dy_BTD, read_slot(stored, final - 1)) if ahead else None
        weights = weights if ahead else self.gather(read_slot(stored, final))
        dweights, dx_BTD = backward(run, (weights, kept_last), dy_BTD, dextras)
        carried, layers = (dx_BTD, preceding, dweights, jax.tree.map(jnp.zeros_like, stored)), jnp.arange(ahead, final)
        carried, _ = scan_layers(step, carried, layers, reverse=True, unroll=self.unroll)
        dx_BTD, weights, later, grads = carried
        if ahead:
            grads, kept_first = summed(grads, later, 1), after(dx_BTD, read_slot(kept, 0))
            later, dx_BTD = backward(run, (weights, kept_first), dx_BTD, dextras)
        return summed(grads, later, 0), dx_BTD

    def _gather_after(self, earlier: Array, stored: Any) -> Any:
        return self.gather(after(earlier, stored) if self.ordered else stored)


def _count(stored: Any) -> int:
    return jax.tree.leaves(stored)[0].shape[0]


def _summed(extras: Any) -> Any:
    return jax.tree.map(lambda each: each.sum(0), extras)
