"""A stage's passes through its layers, forward and backward, layer by layer.

Between those of one microbatch others may come. What a layer's backward pass needs of its forward pass, or the second
half of it of the first (split_backward.py), are arrays: they wait in buffers [slots,L,...], in the slot of their
microbatch. A layer reads and writes its place there, and adds to its gradients in place. Autodiff of the loop over
layers would stack what all of them keep, and their gradients, and these would be copied.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

from strategies.pipelining.split_backward import Halves
from strategies.pipelining.timetable import Depths, Turn

Leaves = list[Array]
"""Weights of layers, as `jax.tree.leaves` lists them, stacked."""
Run = Callable[[Leaves, Array], Array]
"""Weights, x -> y."""


@dataclasses.dataclass(frozen=True)
class Passes:
    """The passes of one stage; they go through the layers of one chunk.

    Attributes:
        run: one layer, of weights [1,...].
        weights: of all layers, chunk after chunk.
        places: for layers, in each chunk.
        used_L: which places hold a layer; None for all.
        unroll: layers in one iteration of a loop.
    """

    run: Run
    weights: Leaves
    places: int
    used_L: Bool[Array, " L"] | None = None
    unroll: int = 1

    def slots(self, x_BTD: Array, depths: Depths) -> tuple[Any, Any]:
        """Room for what microbatches keep, and for what they put off."""
        weights, put_off = self._layer(0), []
        kept = jax.eval_shape(lambda *inputs: forward(self.run, *inputs)[1], weights, x_BTD)
        if depths.put_off:
            put_off = jax.eval_shape(lambda *inputs: self._halves(*inputs).first(*inputs)[1], (weights, kept), x_BTD)
        return room(kept, depths.kept, self.places), room(put_off, depths.put_off, self.places)

    def forward(self, turn: Turn, x_BTD: Array, kept: Any) -> tuple[Array, Any]:
        """The result, and the buffer of what is kept."""

        def work(x_BTD: Array, layer: Array, _: Array) -> tuple[Array, Any]:
            return forward(self.run, self._layer(layer), x_BTD)

        def keep(kept: Any, needed: Any, _: Array, place: Array) -> Any:
            return put(kept, needed, turn.kept, place)

        return self._each(turn, work, x_BTD, keep, kept)

    def backward(self, turn: Turn, dy_BTD: Array, kept: Any, dweights: Leaves) -> tuple[Array, Leaves]:
        """Gradient of the result -> that of the input, and the sums of those of the weights."""

        def work(dy_BTD: Array, layer: Array, place: Array) -> tuple[Array, Leaves]:
            dlayer, dx_BTD = backward(self.run, self._known(turn, kept, layer, place), dy_BTD)
            return dx_BTD, dlayer

        return self._each(turn, work, dy_BTD, add, dweights, reverse=True)

    def first(self, turn: Turn, dy_BTD: Array, kept: Any, put_off: Any) -> tuple[Array, Any]:
        """Gradient of the result -> that of the input, and the buffer of what is put off."""

        def work(dy_BTD: Array, layer: Array, place: Array) -> tuple[Array, Any]:
            known = self._known(turn, kept, layer, place)
            return self._halves(known, dy_BTD).first(known, dy_BTD)

        def keep(put_off: Any, later: Any, _: Array, place: Array) -> Any:
            return put(put_off, later, turn.put_off, place)

        return self._each(turn, work, dy_BTD, keep, put_off, reverse=True)

    def second(self, turn: Turn, like_BTD: Array, kept: Any, put_off: Any, dweights: Leaves) -> Leaves:
        """The sums of gradients of the weights, with what was put off; a gradient of the result is like the array."""

        def work(nothing: tuple[()], layer: Array, place: Array) -> tuple[tuple[()], Leaves]:
            known = self._known(turn, kept, layer, place)
            return nothing, self._halves(known, like_BTD).second(known, take(put_off, turn.put_off, place))

        return self._each(turn, work, (), add, dweights)[1]

    def _layer(self, layer: Any) -> Leaves:
        return [lax.dynamic_slice_in_dim(w, layer, 1) for w in self.weights]

    def _known(self, turn: Turn, kept: Any, layer: Array, place: Array) -> tuple[Leaves, Any]:
        return self._layer(layer), take(kept, turn.kept, place)

    def _halves(self, known: tuple[Leaves, Any], dy_BTD: Array) -> Halves:
        return Halves(partial(backward, self.run), known, dy_BTD)

    def _each(
        self,
        turn: Turn,
        work: Callable[[Any, Array, Array], tuple[Any, Any]],
        state: Any,
        keep: Callable[[Any, Any, Array, Array], Any],
        buffers: Any,
        *,
        reverse: bool = False,
    ) -> tuple[Any, Any]:
        """Layer after layer of the chunk. An empty place hands on what it is given, and keeps zeros.

        `work` makes of the state the next, and what is to be kept; `keep` puts that into the buffers. Both are told
        which layer of all it is, and in which place of the chunk.
        """

        def step(carried: tuple[Any, Any], place: Array) -> tuple[tuple[Any, Any], None]:
            state, buffers = carried
            layer = turn.chunk * self.places + place
            if self.used_L is None:
                state, made = work(state, layer, place)
            else:
                zeros = room(jax.eval_shape(work, state, layer, place)[1])
                state, made = lax.cond(self.used_L[layer], work, lambda state, *_: (state, zeros), state, layer, place)
            return (state, keep(buffers, made, layer, place)), None

        places = jnp.arange(self.places)
        return lax.scan(step, (state, buffers), places, reverse=reverse, unroll=self.unroll)[0]


def forward(run: Run, weights: Leaves, x_BTD: Array) -> tuple[Array, Any]:
    """The result, and what the backward pass needs besides the weights.

    JAX has no public way to take apart what `jax.vjp` returns: these two are fields of it, here and in `backward`.
    """
    pull: Any
    y_BTD, pull = jax.vjp(run, weights, x_BTD)
    return y_BTD, (pull.args_res[1], pull.opaque_residuals)  # what it keeps: of its arguments, and besides


def backward(run: Run, known: tuple[Leaves, Any], dy_BTD: Array) -> tuple[Leaves, Array]:
    """Weights and what was kept, and the gradient of the result -> gradients of weights and inputs."""
    weights, (x_BTD, residuals) = known
    pull: Any = jax.eval_shape(lambda *inputs: jax.vjp(run, *inputs)[1], weights, dy_BTD)
    return dataclasses.replace(pull, args_res=[weights, x_BTD], opaque_residuals=residuals)(dy_BTD)


def add(total: Leaves, more: Leaves, layer: Array, _: Array) -> Leaves:
    """Gradients [L,...] with those [1,...] of one layer added to them."""
    return put(total, [take(row, layer) + new[0] for row, new in zip(total, more, strict=True)], layer)


def room(shapes: Any, *counts: int) -> Any:
    """Zeros for as many, varying over the same axes as what goes there."""
    return jax.tree.map(lambda like: jnp.zeros_like(like, shape=(*counts, *like.shape)), shapes)


def put(buffers: Any, values: Any, *at: Any) -> Any:
    """Buffers with values at an index."""

    def replaced(buffer: Array, value: Array) -> Array:
        start = [*at, *[0] * value.ndim]
        return lax.dynamic_update_slice(buffer, value[(None,) * len(at)], start)

    return jax.tree.map(replaced, buffers, values)


def take(buffers: Any, *at: Any) -> Any:
    """What is there."""
    return jax.tree.map(lambda buffer: buffer[at], buffers)
