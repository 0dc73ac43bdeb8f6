"""Forward and backward passes of one pipeline stage, layer by layer, with residuals in buffers.

A stage runs other microbatches between a microbatch's forward and backward pass. So a layer's residuals wait in buffers
[slots,L,...], in their microbatch's slot. What the second half of a split backward pass needs (split_backward.py) waits
in the same slot, in memory of residuals that the first half has consumed. A layer reads and writes its part of a buffer
in place, and adds to its gradients in place. Autodiff of a loop over the layers would stack all layers' residuals and
gradients, and XLA would copy them.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

from strategies.backends.backend import row_major
from strategies.backends.device_mesh import barrier, mark_missing
from strategies.model.layers import (
    Extras,
    Leaves,
    Run,
    added,
    backward,
    forward,
    read_slot,
    scan_layers,
    write_slot,
    zeros_buffer,
)
from strategies.pipelining.split_backward import SplitBackward, reuse
from strategies.pipelining.timetable import Pass, Turn

LayerStep = Callable[[Any, Any, Array], tuple[Any, Any]]
"""(state, buffers, position in the chunk) -> (next state, buffers)."""


class ResidualBuffers(NamedTuple):
    """Buffers [slots,L,...] of what backward passes need: residuals, and `more` for the second half of a split pass.

    The first half of a split backward pass overwrites residuals that it has consumed.
    """

    kept: Any
    more: list[Any]


@dataclasses.dataclass(frozen=True)
class Passes:
    """The passes of one stage. Each goes through the layers of one chunk.

    Attributes:
        run: one layer, with weights [1,...].
        weights: of all layers of the stage, chunk by chunk.
        layers_per_chunk: layer slots per chunk.
        used_L: which slots hold a layer; None for all.
    """

    run: Run
    weights: Leaves
    layers_per_chunk: int
    used_L: Bool[Array, " L"] | None = None
    unroll: int = 1

    def slots(self, x_BTD: Array, count: int, *, splits_backward: bool) -> ResidualBuffers:
        """Zero-initialised buffers of `count` slots.

        They vary over every mesh axis over which x varies, as the slot of a microbatch does (`Executor._run_if`).
        Residuals themselves may vary over fewer axes: a mean over devices, a kernel's table, an empty array.
        """
        axes = sorted(jax.typeof(x_BTD).manual_axis_type.varying)

        def buffers(shapes: Any) -> Any:
            zeros = zeros_buffer(shapes, count, self.layers_per_chunk)
            return jax.tree.map(lambda each: mark_missing(each, axes), zeros)

        def waiting(kept: Any) -> list[Any]:
            return self._first_of_layer((self._layer(0), read_slot(kept, 0, 0)), x_BTD)[1][1]

        kept = buffers(jax.eval_shape(lambda x_BTD: forward(self.run, self._layer(0), x_BTD)[1], x_BTD))
        return ResidualBuffers(kept, buffers(jax.eval_shape(waiting, kept)) if splits_backward else [])

    def extras(self, x_BTD: Array) -> Extras:
        """Zero-initialised extras."""
        return zeros_buffer(jax.eval_shape(lambda x_BTD: self.run(self._layer(0), x_BTD)[1], x_BTD))

    def forward(
        self, turn: Pass, x_BTD: Array, slots: ResidualBuffers, extras: Extras
    ) -> tuple[Array, tuple[ResidualBuffers, Extras]]:
        """Run the layers forward. Returns the output, the buffers with its residuals, and the sum of the extras."""
        return self._scan_layers(self._forward_step(turn), x_BTD, (slots, extras))

    def backward(self, turn: Pass, dy_BTD: Array, slots: ResidualBuffers, dweights: Leaves) -> tuple[Array, Leaves]:
        """Output gradient -> input gradient, and the weight gradients plus this microbatch's."""
        step = self._backward_step(turn, lambda position: read_slot(slots.kept, turn.residual_slot, position))
        return self._scan_layers(step, dy_BTD, dweights, reverse=True)

    def pair(
        self, turn: Turn, x_BTD: Array, dy_BTD: Array, slots: ResidualBuffers, extras: Extras, dweights: Leaves
    ) -> tuple[tuple[Array, Array], tuple[ResidualBuffers, Extras, Leaves]]:
        """Run one microbatch forward and another backward. Returns the output, the input gradient, and the buffers.

        An iteration runs a layer of each, so that the compiler can run compute of one alongside collectives of the
        other. With empty slots each has a loop of its own: nothing runs alongside a conditional.
        """
        if self.used_L is not None:
            y_BTD, (slots, extras) = self.forward(turn.forward, x_BTD, slots, extras)
            dx_BTD, dweights = self.backward(turn.backward, dy_BTD, slots, dweights)
            return (y_BTD, dx_BTD), (slots, extras, dweights)

        def step(state: tuple[Any, Any], buffers: Any, position: Array) -> tuple[Any, Any]:
            (x_BTD, dy_BTD), (slots, extras, dweights) = state, buffers
            back = self.layers_per_chunk - 1 - position
            kept = read_slot(slots.kept, turn.backward.residual_slot, back)
            kept, slots = barrier((kept, slots))  # read before the forward pass writes, without a copy
            dx_BTD, dweights = self._backward_step(turn.backward, lambda _: kept)(dy_BTD, dweights, back)
            y_BTD, (slots, extras) = self._forward_step(turn.forward)(x_BTD, (slots, extras), position)
            return (y_BTD, dx_BTD), (slots, extras, dweights)

        return self._scan_layers(step, (x_BTD, dy_BTD), (slots, extras, dweights))

    def _forward_step(self, turn: Pass) -> LayerStep:
        def work(x_BTD: Array, _: Any, layer: Array, __: Array) -> tuple[Array, Any]:
            (y_BTD, more), kept = forward(self.run, self._layer(layer), x_BTD)
            return y_BTD, (kept, more)

        def keep(
            buffers: tuple[ResidualBuffers, Extras], made: Any, _: Array, position: Array
        ) -> tuple[ResidualBuffers, Extras]:
            (slots, extras), (kept, more) = buffers, made
            return slots._replace(kept=write_slot(slots.kept, kept, turn.residual_slot, position)), added(extras, more)

        return self._layer_step(turn, work, keep)

    def _backward_step(self, turn: Pass, read: Callable[[Array], Any]) -> LayerStep:
        """`read` returns the residuals of the layer at a position."""

        def work(dy_BTD: Array, _: Any, layer: Array, position: Array) -> tuple[Array, Leaves]:
            known = self._layer(layer), jax.tree.map(row_major, read(position))
            dlayer, dx_BTD = backward(self.run, known, dy_BTD)
            return dx_BTD, dlayer

        return self._layer_step(turn, work, add)

    def first(
        self, turn: Pass, dy_BTD: Array, slots: ResidualBuffers, dweights: Leaves
    ) -> tuple[Array, tuple[ResidualBuffers, Leaves]]:
        """First half: output gradient -> input gradient, slots for the second half, weight gradients without
        matmuls.
        """

        def read(buffers: tuple[ResidualBuffers, Leaves], position: Array) -> Any:
            return read_slot(buffers[0].kept, turn.residual_slot, position)

        def work(dy_BTD: Array, kept: Any, layer: Array, _: Array) -> tuple[Array, Any]:
            return self._first_of_layer((self._layer(layer), kept), dy_BTD)

        def keep(
            buffers: tuple[ResidualBuffers, Leaves], made: Any, layer: Array, position: Array
        ) -> tuple[ResidualBuffers, Leaves]:
            (slots, dweights), (used_up, more, dlayer) = buffers, made
            leaves, structure = jax.tree.flatten(slots.kept)
            for place, value in used_up.items():
                leaves[place] = write_slot(leaves[place], value, turn.residual_slot, position)
            more = write_slot(slots.more, more, turn.residual_slot, position)
            return ResidualBuffers(jax.tree.unflatten(structure, leaves), more), add(dweights, dlayer, layer, position)

        return self._scan_layers(self._layer_step(turn, work, keep, read), dy_BTD, (slots, dweights), reverse=True)

    def second(self, turn: Pass, like_BTD: Array, slots: ResidualBuffers, dweights: Leaves) -> Leaves:
        """Second half: the weight gradients plus this microbatch's. `like_BTD` has the shape of an output."""

        def work(nothing: tuple[()], _: Any, layer: Array, position: Array) -> tuple[tuple[()], Leaves]:
            kept, more = read_slot(slots, turn.residual_slot, position)
            known, leaves, rest = (self._layer(layer), kept), jax.tree.leaves(kept), iter(more)
            split = self._split(known, like_BTD)
            held = (next(rest) if place is None else leaves[place] for place in _places(split, kept))
            between = [a.reshape(v.shape).astype(v.dtype) for a, v in zip(held, split.between, strict=True)]
            return nothing, split.second(known, between)

        return self._scan_layers(self._layer_step(turn, work, add), (), dweights)[1]

    def _layer(self, layer: Any) -> Leaves:
        return [lax.dynamic_slice_in_dim(w, layer, 1) for w in self.weights]

    def _first_of_layer(self, known: tuple[Leaves, Any], dy_BTD: Array) -> tuple[Array, Any]:
        """The input gradient; by index the values that reuse memory of residuals, the other values, and gradients."""
        split, leaves = self._split(known, dy_BTD), jax.tree.leaves(known[1])
        dx_BTD, dlayer, between = split.first(known, dy_BTD)
        held = list(zip(between, _places(split, known[1]), strict=True))
        used_up = {
            place: value.astype(leaves[place].dtype).reshape(leaves[place].shape)
            for value, place in held
            if place is not None
        }
        return dx_BTD, (used_up, [value for value, place in held if place is None], dlayer)

    def _split(self, known: tuple[Leaves, Any], dy_BTD: Array) -> SplitBackward:
        return SplitBackward(partial(backward, self.run), known, dy_BTD)

    def _layer_step(
        self,
        turn: Pass,
        work: Callable[[Any, Any, Array, Array], tuple[Any, Any]],
        keep: Callable[[Any, Any, Array, Array], Any],
        read: Callable[[Any, Array], Any] = lambda buffers, position: (),
    ) -> LayerStep:
        """The step of one layer of the chunk. An empty slot passes its state on and keeps zeros.

        Args:
            work: (state, what `read` returned, layer, position) -> (next state, values to keep). `layer` counts the
                layers of the stage, `position` those of the chunk.
            keep: (buffers, values to keep, layer, position) -> buffers.
            read: (buffers, position) -> what `work` needs of them.
        """

        def step(state: Any, buffers: Any, position: Array) -> tuple[Any, Any]:
            layer = turn.chunk * self.layers_per_chunk + position
            inputs = state, read(buffers, position), layer, position
            if self.used_L is None:
                state, made = work(*inputs)
            else:
                zeros = zeros_buffer(jax.eval_shape(work, *inputs)[1])
                with jax.named_scope("heaviest"):  # FLOP counts use the stages without empty slots
                    state, made = lax.cond(self.used_L[layer], work, lambda state, *_: (state, zeros), *inputs)
            return state, keep(buffers, made, layer, position)

        return step

    def _scan_layers(self, step: LayerStep, state: Any, buffers: Any, *, reverse: bool = False) -> tuple[Any, Any]:
        """Scan over the layers of the chunk."""

        def scanned(carried: tuple[Any, Any], position: Array) -> tuple[tuple[Any, Any], None]:
            return step(*carried, position), None

        positions = jnp.arange(self.layers_per_chunk)
        if self.layers_per_chunk == 1:  # not a loop, so its weights are read in place
            return lax.scan(scanned, (state, buffers), positions)[0]
        # Branches of two layers in one iteration could run concurrently on CPUs, each with its own collectives.
        unroll = self.unroll if self.used_L is None else 1
        return scan_layers(scanned, (state, buffers), positions, reverse=reverse, unroll=unroll)[0]


def _places(split: SplitBackward, kept: Any) -> list[int | None]:
    """For each value between the halves, the index of the consumed residual whose memory it reuses; None for none.

    Gathered values reuse none: XLA writes them before it has read the residual, and copies the buffer.
    """
    leaves = jax.tree.leaves(kept)
    used_up = {i: leaf for i, leaf in enumerate(leaves) if not split.reread[i - len(leaves)]}
    values = [None if gathered else v for v, gathered in zip(split.between, split.gathered, strict=True)]
    return reuse({i: jax.typeof(leaf) for i, leaf in used_up.items()}, values)


def add(total: Leaves, more: list[Array | None], layer: Array, _: Array) -> Leaves:
    """Add one layer's gradients [1,...] to all layers' [L,...], in place. None: not computed here."""
    return [
        row if new is None else write_slot(row, read_slot(row, layer) + new[0], layer)
        for row, new in zip(total, more, strict=True)
    ]
