"""Runs a pipeline schedule, tick by tick: this device is a stage, and does what the table says.

All devices go through the same loop. In each tick the stages embed a microbatch together if the first one needs it,
then each takes its turn, forward or backward or idle, then they compute together the loss of a microbatch that has left
the last one; at the end each sends to its neighbours. Differentiated by hand, a stage at a time: no gradient is taken
of the loop.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from strategies.data import diverge
from strategies.gpt import Weights
from strategies.put_off import Halves
from strategies.schedules import Schedule
from strategies.ticks import KINDS, Shared, Ticks, Turn

Leaves = list[Array]
"""Weights of a stage, as `jax.tree.leaves` lists them, stacked over its layers."""
Changed = tuple[Array, Array, Any, Any, Leaves]
"""What a turn sends forward and backward, what is to be kept and what is put off of it, and `dblocks` of the flow."""


class Parts(NamedTuple):
    """A model taken apart, as functions of its weights.

    Attributes:
        embed: weights of both ends, tokens [b,S] -> x [b,T,D], alike on all stages.
        run: weights of a chunk, x, which of its layers there are -> y: the layers of one chunk. It may use collectives
            over other axes, for the devices of one stage take the same branch.
        lose: weights of both ends, y, tokens -> share of the loss.
    """

    embed: Callable[[Weights, Array], Array]
    run: Callable[[Leaves, Array, Any], Array]
    lose: Callable[[Weights, Array, Array], Array]


class Flow(NamedTuple):
    """What a stage hands on from tick to tick.

    Attributes:
        x, dy: what has arrived and waits, by slot [slots,b,T,D].
        kept: what the backward pass of each microbatch in flight needs besides the weights, by slot.
        put_off: what the gradients of its weights take besides, by slot.
        loss, dblocks, dends: sums so far.
    """

    x: Array
    dy: Array
    kept: Any
    put_off: Any
    loss: Array
    dblocks: Leaves
    dends: Weights


@dataclasses.dataclass
class Executor:
    """A schedule with what it is run on.

    Attributes:
        parts: the model's functions.
        blocks: weights of this stage's layers, chunk after chunk.
        ends: weights of embedding and head.
        tokens_MbS: this device's sequences, by microbatch.
        used_L: which of this stage's places hold a layer; None for all.
    """

    schedule: Schedule
    ticks: Ticks
    parts: Parts
    blocks: Leaves
    ends: Weights
    tokens_MbS: Int[Array, "M b S"]
    used_L: Bool[Array, " L"] | None = None

    def __call__(self) -> tuple[Float[Array, ""], Leaves, Weights]:
        """This device's share of the loss, and the gradients of the blocks and of both ends."""
        self.stage, stages = lax.axis_index("pipeline"), self.schedule.stages
        self.right = [(s, (s + 1) % stages) for s in range(stages if self.schedule.chunks > 1 else stages - 1)]
        self.left = [(there, here) for here, there in self.right]
        self.nothing_bTD = own(jnp.zeros_like(jax.eval_shape(self.parts.embed, self.ends, self.tokens_MbS[0])))
        chunk, depths = self._chunk(0), self.ticks.depths
        kept = jax.eval_shape(lambda x_bTD: self._forward(0, x_bTD)[1], self.nothing_bTD)
        put_off = []
        if self.schedule.splits_backward:
            put_off = jax.eval_shape(
                lambda *known: self._halves(*known).first(*known)[1], (chunk, kept), self.nothing_bTD
            )
        self.nobody = jax.tree.map(jnp.zeros_like, (kept, put_off))
        flow = Flow(
            x=_slots(self.nothing_bTD, depths.x + 1),
            dy=_slots(self.nothing_bTD, depths.dy + 1),
            kept=_slots(kept, depths.kept + 1),
            put_off=_slots(put_off, depths.put_off + 1),
            loss=jnp.zeros_like(self.tokens_MbS[0, 0, 0], jnp.float32),
            dblocks=jax.tree.map(jnp.zeros_like, self.blocks),
            dends=jax.tree.map(jnp.zeros_like, self.ends),
        )
        turns = Turn(*(jnp.asarray(column)[:, self.stage] for column in self.ticks.turns))
        flow, _ = lax.scan(self._tick, flow, (turns, Shared(*map(jnp.asarray, self.ticks.shared))))
        return flow.loss, flow.dblocks, flow.dends

    def _tick(self, flow: Flow, row: tuple[Turn, Shared]) -> tuple[Flow, None]:
        turn, shared = row
        counts = self.ticks.counts
        entered_bTD = self._if(
            counts.enters,
            shared.enters >= 0,
            lambda: own(self.parts.embed(self.ends, self.tokens_MbS[shared.enters])),
            lambda: self.nothing_bTD,
        )
        x_bTD = jnp.where(turn.first, entered_bTD, flow.x[turn.x])
        y_bTD, dx_bTD, flow = self._take_turn(flow, turn, x_bTD)
        flow, dloss_bTD = self._if(
            counts.leaves,
            shared.leaves >= 0,
            lambda: self._leave(flow, y_bTD, shared.leaves),
            lambda: (flow, self.nothing_bTD),
        )
        dends = self._if(
            counts.returns,
            shared.returns >= 0,
            lambda: self._return(flow.dends, dx_bTD, shared.returns),
            lambda: flow.dends,
        )

        def sent(x_bTD: Array, count: int, taken: Any, ways: list[tuple[int, int]]) -> Array:
            return self._if(count, taken, lambda: lax.ppermute(x_bTD, "pipeline", ways), lambda: self.nothing_bTD)

        x = _put(flow.x, sent(y_bTD, counts.sends_x, shared.sends_x, self.right), turn.got_x)
        dy = _put(flow.dy, sent(dx_bTD, counts.sends_dy, shared.sends_dy, self.left), turn.got_dy)
        return flow._replace(x=x, dy=_put(dy, dloss_bTD, turn.got_loss), dends=dends), None

    def _take_turn(self, flow: Flow, turn: Turn, x_bTD: Array) -> tuple[Array, Array, Flow]:
        """What this stage sends forward and backward, of which one or both are nothing, and what it hands on."""

        # Buffers are read in the branches and written behind them: XLA copies what a conditional takes and gives back.
        nothing = self.nothing_bTD, self.nothing_bTD, *self.nobody

        def idle(dblocks: Leaves) -> Changed:
            return *nothing, dblocks

        def forward(dblocks: Leaves) -> Changed:
            y_bTD, needed = self._forward(turn.chunk, x_bTD)
            return y_bTD, self.nothing_bTD, needed, self.nobody[1], dblocks

        def backward(dblocks: Leaves) -> Changed:
            known, dy_bTD = (self._chunk(turn.chunk), _take(flow.kept, turn.kept)), flow.dy[turn.dy]
            if self.schedule.splits_backward:
                dx_bTD, between = self._halves(known, dy_bTD).first(known, dy_bTD)
                return self.nothing_bTD, dx_bTD, self.nobody[0], between, dblocks
            dchunk, dx_bTD = self._backward(known, dy_bTD)
            return self.nothing_bTD, dx_bTD, *self.nobody, self._add(dblocks, dchunk, turn.chunk)

        def weights(dblocks: Leaves) -> Changed:
            known = self._chunk(turn.chunk), _take(flow.kept, turn.kept)
            dchunk = self._halves(known, self.nothing_bTD).second(known, _take(flow.put_off, turn.put_off))
            return *nothing, self._add(dblocks, dchunk, turn.chunk)

        branches = (idle, forward, backward, weights)[: 4 if self.schedule.splits_backward else 3]
        work = self.schedule.microbatches * self.schedule.chunks
        with _taken(self.schedule.ticks - (len(branches) - 1) * work, *[work] * (len(branches) - 1)):
            y_bTD, dx_bTD, needed, between, dblocks = lax.switch(turn.kind, branches, flow.dblocks)
        depths, is_forward, is_backward = (
            self.ticks.depths,
            turn.kind == KINDS.index("F"),
            turn.kind == KINDS.index("B"),
        )
        kept = _put(flow.kept, needed, jnp.where(is_forward, turn.kept, depths.kept))
        put_off = _put(flow.put_off, between, jnp.where(is_backward, turn.put_off, depths.put_off))
        return y_bTD, dx_bTD, flow._replace(kept=kept, put_off=put_off, dblocks=dblocks)

    def _leave(self, flow: Flow, y_bTD: Array, m: Array) -> tuple[Flow, Array]:
        """The loss of a microbatch that has left the last stage, and the gradient that goes back there."""

        def lose(ends: Weights, y_bTD: Array) -> Array:
            return self.parts.lose(ends, own(y_bTD), self.tokens_MbS[m])

        y_bTD = lax.psum(jnp.where(self.stage == self.schedule.stages - 1, y_bTD, 0), "pipeline")
        loss, (dends, dy_bTD) = jax.value_and_grad(lose, (0, 1))(self.ends, y_bTD)
        return flow._replace(loss=flow.loss + loss, dends=jax.tree.map(jnp.add, flow.dends, dends)), own(dy_bTD)

    def _return(self, dends: Weights, dx_bTD: Array, m: Array) -> Weights:
        """The gradient of the embedding of a microbatch that has come back to the first stage."""
        _, pull = jax.vjp(lambda ends: own(self.parts.embed(ends, self.tokens_MbS[m])), self.ends)
        return jax.tree.map(jnp.add, dends, *pull(jnp.where(self.stage == 0, dx_bTD, 0)))

    def _forward(self, chunk: Any, x_bTD: Array) -> tuple[Array, Any]:
        """The result, and what the backward pass needs besides the weights."""
        pull: Any
        y_bTD, pull = jax.vjp(self._run(chunk), self._chunk(chunk), x_bTD)
        return y_bTD, (pull.args_res[1], pull.opaque_residuals)  # what it keeps: of its arguments, and besides

    def _backward(self, known: tuple[Leaves, Any], dy_bTD: Array) -> tuple[Leaves, Array]:
        """Weights and what was kept, and the gradient of the result -> gradients of weights and inputs."""
        chunk, (x_bTD, residuals) = known
        pull: Any = jax.eval_shape(lambda *inputs: jax.vjp(self._run(0), *inputs)[1], chunk, dy_bTD)
        return dataclasses.replace(pull, args_res=[chunk, x_bTD], opaque_residuals=residuals)(dy_bTD)

    def _halves(self, known: tuple[Leaves, Any], dy_bTD: Array) -> Halves:
        return Halves(self._backward, known, dy_bTD)

    def _run(self, chunk: Any) -> Callable[[Leaves, Array], Array]:
        used = None if self.used_L is None else self._places(self.used_L, chunk)
        return lambda weights, x_bTD: self.parts.run(weights, x_bTD, used)

    def _chunk(self, number: Any) -> Leaves:
        return [self._places(w, number) for w in self.blocks]

    def _places(self, w: Array, chunk: Any) -> Array:
        """Those of one chunk."""
        places = len(w) // self.schedule.chunks
        return w if self.schedule.chunks == 1 else lax.dynamic_slice_in_dim(w, chunk * places, places)

    def _add(self, dblocks: Leaves, dchunk: Leaves, number: Array) -> Leaves:
        """Add the gradients of a chunk to those of all."""
        if self.schedule.chunks == 1:
            return jax.tree.map(jnp.add, dblocks, dchunk)

        def add(total: Array, more: Array) -> Array:
            sum_of_both = self._places(total, number) + more
            return lax.dynamic_update_slice_in_dim(total, sum_of_both, number * len(more), 0)

        return jax.tree.map(add, dblocks, dchunk)

    def _if(self, count: int, taken: Any, work: Callable[[], Any], leave: Callable[[], Any]) -> Any:
        """A conditional that all devices take alike, in so many ticks."""
        with _taken(self.schedule.ticks - count, count):
            return lax.cond(taken, work, leave)


def own(tree: Any) -> Any:
    """As it is, but each stage has its own."""
    return diverge(tree, ("pipeline",))


def _taken(*counts: int) -> Any:
    """How often each branch of a conditional is taken in the loop around it, in its name, for who reads the program."""
    return jax.named_scope("taken_" + "_".join(map(str, counts)))


def _slots(shapes: Any, count: int) -> Any:
    """Room for as many, varying over the same axes as what goes there."""
    return jax.tree.map(lambda like: jnp.zeros_like(like, shape=(count, *like.shape)), shapes)


def _put(slots: Any, values: Any, slot: Any) -> Any:
    return jax.tree.map(lambda old, new: lax.dynamic_update_index_in_dim(old, new, slot, 0), slots, values)


def _take(slots: Any, slot: Any) -> Any:
    return jax.tree.map(lambda values: values[slot], slots)
