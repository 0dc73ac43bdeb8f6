"""Forward and backward passes of one pipeline stage, layer by layer, with residuals in buffers.

A stage runs other microbatches between the forward and the backward pass of one. So the residuals of a layer wait in
buffers [slots,L,...], in the slot of their microbatch; and so does what the second half of a split backward pass takes
(split_backward.py). A layer reads and writes its part of a buffer in place, and adds to its gradients in place.
Autodiff of a loop over the layers would stack the residuals and gradients of all layers, and XLA would copy them.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

from strategies.model.layer_passes import Leaves, Run, backward, forward, read_slot, write_slot, zeros_buffer
from strategies.pipelining.split_backward import SplitBackward
from strategies.pipelining.timetable import Depths, Turn


@dataclasses.dataclass(frozen=True)
class Passes:
    """The passes of one stage. Each goes through the layers of one chunk.

    Attributes:
        run: one layer, with weights [1,...].
        weights: of all layers of the stage, chunk by chunk.
        layers_per_chunk: slots for layers in each chunk.
        used_L: which slots hold a layer; None for all.
        unroll: layers in one iteration of a loop.
    """

    run: Run
    weights: Leaves
    layers_per_chunk: int
    used_L: Bool[Array, " L"] | None = None
    unroll: int = 1

    def slots(self, x_BTD: Array, depths: Depths) -> tuple[Any, ...]:
        """Zero-initialised buffers for residuals, and for what split backward passes defer."""
        weights, deferred = self._layer(0), []
        kept = jax.eval_shape(lambda *inputs: forward(self.run, *inputs)[1], weights, x_BTD)
        if depths.deferred:
            deferred = jax.eval_shape(lambda *inputs: self._split(*inputs).first(*inputs)[1], (weights, kept), x_BTD)
        counted = (kept, depths.kept), (deferred, depths.deferred)
        buffers = (zeros_buffer(shapes, count, self.layers_per_chunk) for shapes, count in counted)
        # Tables of a kernel vary over no axis, until they are written to the slot of a microbatch.
        return jax.tree.map(lambda x: jnp.zeros_like(x_BTD, x.dtype, x.shape) if _is_table(x) else x, tuple(buffers))

    def forward(self, turn: Turn, x_BTD: Array, kept: Any) -> tuple[Array, Any]:
        """Run the layers forward. Returns the output and the buffer of residuals."""

        def work(x_BTD: Array, layer: Array, _: Array) -> tuple[Array, Any]:
            return forward(self.run, self._layer(layer), x_BTD)

        def keep(kept: Any, needed: Any, _: Array, position: Array) -> Any:
            return write_slot(kept, needed, turn.kept, position)

        return self._scan_layers(turn, work, x_BTD, keep, kept)

    def backward(self, turn: Turn, dy_BTD: Array, kept: Any, dweights: Leaves) -> tuple[Array, Leaves]:
        """Gradient of the output -> gradient of the input, and the weight gradients with this microbatch added."""

        def work(dy_BTD: Array, layer: Array, position: Array) -> tuple[Array, Leaves]:
            dlayer, dx_BTD = backward(self.run, self._known(turn, kept, layer, position), dy_BTD)
            return dx_BTD, dlayer

        return self._scan_layers(turn, work, dy_BTD, add, dweights, reverse=True)

    def first(self, turn: Turn, dy_BTD: Array, kept: Any, deferred: Any) -> tuple[Array, Any]:
        """First half: gradient of the output -> gradient of the input, and the buffer of deferred values."""

        def work(dy_BTD: Array, layer: Array, position: Array) -> tuple[Array, Any]:
            known = self._known(turn, kept, layer, position)
            return self._split(known, dy_BTD).first(known, dy_BTD)

        def keep(deferred: Any, later: Any, _: Array, position: Array) -> Any:
            return write_slot(deferred, later, turn.deferred, position)

        return self._scan_layers(turn, work, dy_BTD, keep, deferred, reverse=True)

    def second(self, turn: Turn, like_BTD: Array, kept: Any, deferred: Any, dweights: Leaves) -> Leaves:
        """Second half: the weight gradients with this microbatch added; `like_BTD` has the shape of an output."""

        def work(nothing: tuple[()], layer: Array, position: Array) -> tuple[tuple[()], Leaves]:
            known = self._known(turn, kept, layer, position)
            return nothing, self._split(known, like_BTD).second(known, read_slot(deferred, turn.deferred, position))

        return self._scan_layers(turn, work, (), add, dweights)[1]

    def _layer(self, layer: Any) -> Leaves:
        return [lax.dynamic_slice_in_dim(w, layer, 1) for w in self.weights]

    def _known(self, turn: Turn, kept: Any, layer: Array, position: Array) -> tuple[Leaves, Any]:
        return self._layer(layer), read_slot(kept, turn.kept, position)

    def _split(self, known: tuple[Leaves, Any], dy_BTD: Array) -> SplitBackward:
        return SplitBackward(partial(backward, self.run), known, dy_BTD)

    def _scan_layers(
        self,
        turn: Turn,
        work: Callable[[Any, Array, Array], tuple[Any, Any]],
        state: Any,
        keep: Callable[[Any, Any, Array, Array], Any],
        buffers: Any,
        *,
        reverse: bool = False,
    ) -> tuple[Any, Any]:
        """Scan over the layers of the chunk. An empty slot passes its state on and keeps zeros.

        Args:
            turn: what the stage does in this tick.
            work: (state, layer, position) -> (next state, what is to be kept). `layer` counts the layers of the stage,
                `position` those of the chunk.
            state: before the first layer.
            keep: (buffers, what is to be kept, layer, position) -> buffers.
            buffers: before the first layer.
            reverse: from the last layer to the first.
        """

        def step(carried: tuple[Any, Any], position: Array) -> tuple[tuple[Any, Any], None]:
            state, buffers = carried
            layer = turn.chunk * self.layers_per_chunk + position
            if self.used_L is None:
                state, made = work(state, layer, position)
            else:
                zeros = zeros_buffer(jax.eval_shape(work, state, layer, position)[1])
                state, made = lax.cond(
                    self.used_L[layer], work, lambda state, *_: (state, zeros), state, layer, position
                )
            return (state, keep(buffers, made, layer, position)), None

        positions = jnp.arange(self.layers_per_chunk)
        return lax.scan(step, (state, buffers), positions, reverse=reverse, unroll=self.unroll)[0]


def _is_table(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.integer)


def add(total: Leaves, more: Leaves, layer: Array, _: Array) -> Leaves:
    """Add the gradients [1,...] of one layer to those of all layers [L,...], in place."""
    return write_slot(total, [read_slot(row, layer) + new[0] for row, new in zip(total, more, strict=True)], layer)
