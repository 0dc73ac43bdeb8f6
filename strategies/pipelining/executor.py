"""Runs a pipeline schedule, tick by tick: this device is a stage, and does what the table says.

All devices go through the same loop. In each tick a stage takes its turn, forward or backward or idle; then all stages
together embed the microbatch that the first one needs next, compute the loss of one that has left the last one, and go
back into the embedding with one that has returned to the first; at the end they send to their neighbours.
Differentiated by hand, a layer at a time (layer_backward.py): no gradient is taken of the loop.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from strategies.mesh import mark_varying
from strategies.model.gpt import Weights
from strategies.pipelining.layer_backward import Leaves, Passes, Run, put, room
from strategies.pipelining.schedules import Schedule
from strategies.pipelining.timetable import KINDS, Ends, Shared, Ticks, Turn, Ways

Row = tuple[Turn, Shared]
"""What a tick brings."""


class Parts(NamedTuple):
    """A model taken apart, as functions of its weights.

    Attributes:
        embed: weights of both ends, tokens [b,S] -> x [b,T,D], alike on all stages.
        run: weights of a layer, x -> y. It may use collectives over other axes, for the devices of one stage take the
            same branch.
        lose: weights of both ends, y, tokens -> share of the loss.
    """

    embed: Callable[[Weights, Array], Array]
    run: Run
    lose: Callable[[Weights, Array, Array], Array]


class Flow(NamedTuple):
    """What a stage hands on from tick to tick.

    Attributes:
        arrived: inputs, and gradients of outputs, that wait for their turn, by slot [slots,b,T,D].
        made: what the latest turn sends on: its output, or the gradient of its input [b,T,D].
        kept: what the backward pass of each microbatch in flight needs besides the weights, by slot and layer.
        put_off: what the gradients of its weights take besides, by slot and layer.
        loss, dblocks, dends: sums so far.
    """

    arrived: Array
    made: Array
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
        unroll: layers in one iteration of the loop over them.
    """

    schedule: Schedule
    ticks: Ticks
    parts: Parts
    blocks: Leaves
    ends: Weights
    tokens_MbS: Int[Array, "M b S"]
    used_L: Bool[Array, " L"] | None = None
    unroll: int = 1

    def __call__(self) -> tuple[Float[Array, ""], Leaves, Weights]:
        """This device's share of the loss, and the gradients of the blocks and of both ends."""
        self.stage = lax.axis_index("pipeline")
        entered_bTD = mark_varying(self.parts.embed(self.ends, self.tokens_MbS[0]), "pipeline")
        places = len(self.blocks[0]) // self.schedule.chunks
        self.passes = Passes(self.parts.run, self.blocks, places, self.used_L, self.unroll)
        kept, put_off = self.passes.slots(entered_bTD, self.ticks.depths)
        loss = jax.eval_shape(lambda y_bTD: self._lose(self.ends, self._of(0, y_bTD), 0), entered_bTD)
        flow = Flow(
            # One slot more, for what nobody will read.
            arrived=put(room(entered_bTD, self.ticks.depths.arrived + 1), entered_bTD, 0),
            made=jnp.zeros_like(entered_bTD),
            kept=kept,
            put_off=put_off,
            loss=jnp.zeros_like(loss),
            dblocks=jax.tree.map(_nothing, self.blocks),
            dends=jax.tree.map(_nothing, self.ends),
        )
        turns = Turn(*(jnp.asarray(column)[:, self.stage] for column in self.ticks.turns))
        flow, _ = lax.scan(self._tick, flow, (turns, Shared(*map(jnp.asarray, self.ticks.shared))))
        return flow.loss, flow.dblocks, flow.dends

    def _tick(self, flow: Flow, row: Row) -> tuple[Flow, None]:
        turn, shared = row
        turns = {"F": self._turn_forward, "B": self._turn_backward, "W": self._turn_weights}
        work = self.schedule.microbatches * self.schedule.chunks
        for kind in "FBW" if self.schedule.splits_backward else "FB":
            flow = self._if(turn.kind == KINDS.index(kind), work, turns[kind], flow, row)
        of_all = self.ticks.shared
        for index, ends in enumerate(self.ticks.ends):
            times = (of_all.ends == index).sum()
            flow = self._if(shared.ends == index, times, partial(self._meet, ends), flow, row)
        for exchange, different in enumerate(self.ticks.ways):
            for index, ways in enumerate(different):
                times = (of_all.ways[:, exchange] == index).sum()
                flow = self._if(shared.ways[exchange] == index, times, partial(self._send, exchange, ways), flow, row)
        return flow, None

    def _if(self, taken: Array, times: int, work: Callable[[Flow, Turn, Shared], Flow], flow: Flow, row: Row) -> Flow:
        """What some work makes of the flow, where it is taken, as it is in so many of the ticks.

        A loop that runs once or not at all: XLA changes in place what goes through a loop, and copies what goes through
        a conditional. What the work takes is hidden behind what the loop changes: else it would be the same each time
        around, and XLA might compute it ahead of the loop, in every tick. On an accelerator each of these loops reads
        its predicate, so that one switch may be faster there; this was not measured.
        """

        def once(state: tuple[Array, Flow]) -> tuple[Array, Flow]:
            taken, flow = state
            _, made, (turn, shared) = lax.optimization_barrier((taken, flow.made, row))
            return jnp.zeros_like(taken), work(flow._replace(made=made), turn, shared)

        # How often it runs in the loop around it stands in its name, for who reads the program.
        with jax.named_scope(f"taken_{self.schedule.ticks - times}_{times}"):
            return lax.while_loop(lambda state: state[0], once, (taken, flow))[1]

    def _turn_forward(self, flow: Flow, turn: Turn, shared: Shared) -> Flow:
        y_bTD, kept = self.passes.forward(turn, flow.arrived[turn.takes], flow.kept)
        return flow._replace(made=y_bTD, kept=kept)

    def _turn_backward(self, flow: Flow, turn: Turn, shared: Shared) -> Flow:
        dy_bTD = flow.arrived[turn.takes]
        if self.schedule.splits_backward:
            dx_bTD, put_off = self.passes.first(turn, dy_bTD, flow.kept, flow.put_off)
            return flow._replace(made=dx_bTD, put_off=put_off)
        dx_bTD, dblocks = self.passes.backward(turn, dy_bTD, flow.kept, flow.dblocks)
        return flow._replace(made=dx_bTD, dblocks=dblocks)

    def _turn_weights(self, flow: Flow, turn: Turn, shared: Shared) -> Flow:
        return flow._replace(dblocks=self.passes.second(turn, flow.made, flow.kept, flow.put_off, flow.dblocks))

    def _meet(self, ends: Ends, flow: Flow, turn: Turn, shared: Shared) -> Flow:
        """What is done at both ends of the model, in which all stages share."""
        enters, leaves, returns = ends
        arrived, loss, dends = flow.arrived, flow.loss, flow.dends
        if enters:
            entered_bTD = mark_varying(self.parts.embed(self.ends, self.tokens_MbS[shared.enters]), "pipeline")
            arrived = put(arrived, entered_bTD, turn.got_entered)
        if leaves:
            y_bTD = self._of(self.schedule.stages - 1, flow.made)
            more, (dleaving, dy_bTD) = jax.value_and_grad(self._lose, (0, 1))(self.ends, y_bTD, shared.leaves)
            loss, dends = loss + more, jax.tree.map(jnp.add, dends, dleaving)
            arrived = put(arrived, mark_varying(dy_bTD, "pipeline"), turn.got_loss)
        if returns:
            _, pull = jax.vjp(lambda ends: self.parts.embed(ends, self.tokens_MbS[shared.returns]), self.ends)
            dends = jax.tree.map(jnp.add, dends, *pull(self._of(0, flow.made)))
        return flow._replace(arrived=arrived, loss=loss, dends=dends)

    def _lose(self, ends: Weights, y_bTD: Array, m: Any) -> Array:
        return self.parts.lose(ends, mark_varying(y_bTD, "pipeline"), self.tokens_MbS[m])

    def _of(self, stage: int, made_bTD: Array) -> Array:
        """What one stage has made, on all of them."""
        return lax.psum(jnp.where(self.stage == stage, made_bTD, 0), "pipeline")

    def _send(self, exchange: int, ways: Ways, flow: Flow, turn: Turn, shared: Shared) -> Flow:
        sent_bTD = lax.ppermute(flow.made, "pipeline", ways)
        return flow._replace(arrived=put(flow.arrived, sent_bTD, turn.got_sent[exchange]))


def _nothing(weight: Array) -> Array:
    """Zeros, to which gradients of a weight are added up in float32, whatever it was cast to."""
    return jnp.zeros_like(weight, jnp.float32)
