"""Executor of a pipeline schedule: one loop over ticks, which every stage runs.

In each tick a stage runs forward, backward, both for two microbatches, or idles, as the timetable says. Then all stages
together embed the microbatch that the first stage needs next, compute the loss of one that has left the last part of
the model, and backpropagate into the embedding with one that has returned to the first. At the end of a tick the stages
send to their neighbours. The backward pass is written by hand, layer by layer (layer_backward.py), because JAX cannot
differentiate this loop.
"""

import dataclasses
from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from strategies.backends.device_mesh import mark_varying
from strategies.model.layers import Extras, Leaves, Run, after, write_slot, zeros_buffer
from strategies.model.weights import Weights
from strategies.pipelining.layer_backward import Passes, ResidualBuffers
from strategies.pipelining.schedules import Schedule
from strategies.pipelining.timetable import KINDS, Edges, Ends, Shared, Ticks, Turn, is_local
from strategies.step import LossTerms

Row = tuple[Turn, Shared]
"""The entries of one tick."""


class StageFunctions(NamedTuple):
    """The model as functions of its weights.

    Attributes:
        embed: (weights of both ends, tokens [b,S]) -> x [b,T,D], the same on all stages.
        run: (weights of a layer, x) -> y and this device's share of the extras. It may use collectives over other axes:
            all devices of a stage take the same branch.
        loss: (weights of both ends, y, tokens) -> this device's share of the loss, term by term.
    """

    embed: Callable[[Weights, Array], Array]
    run: Run
    loss: Callable[[Weights, Array, Array], LossTerms]


class Carry(NamedTuple):
    """The loop carry of a stage.

    Attributes:
        arrived: inputs and output gradients that have arrived, by slot [slots,b,T,D].
        made: results of the latest turn, to be sent: an output, or the gradient of an input [b,T,D]. With pairs both.
        slots: what the backward passes of microbatches in flight need, by slot and layer.
        loss, extras, dblocks, dends: sums so far.
    """

    arrived: Array
    made: tuple[Array, ...]
    slots: ResidualBuffers
    loss: LossTerms
    extras: Extras
    dblocks: Leaves
    dends: Weights


Work = Callable[[Carry, Turn, Shared], Carry]


@dataclasses.dataclass
class Executor:
    """A schedule, the model, and the data that it runs on.

    Attributes:
        blocks: weights of this stage's layers, chunk after chunk.
        ends: weights of embedding and head.
        tokens_MbS: this device's sequences, by microbatch.
        used_L: which of this stage's slots hold a layer; None for all.
        unroll: layers per loop iteration.
    """

    schedule: Schedule
    ticks: Ticks
    parts: StageFunctions
    blocks: Leaves
    ends: Weights
    tokens_MbS: Int[Array, "M b S"]
    used_L: Bool[Array, " L"] | None = None
    unroll: int = 1

    def __call__(self) -> tuple[LossTerms, Extras, Leaves, Weights]:
        """This device's share of the head's loss and of the layers' extras, and the gradients of the blocks and of both
        ends.
        """
        self.stage = lax.axis_index("pipeline")
        entered_bTD = mark_varying(self.parts.embed(self.ends, self.tokens_MbS[0]), "pipeline")
        layers_per_chunk = len(self.blocks[0]) // self.schedule.chunks
        self.passes = Passes(self.parts.run, self.blocks, layers_per_chunk, self.used_L, self.unroll)
        _, loss = jax.eval_shape(lambda y_bTD: self._loss_of(self.ends, self._broadcast_from(0, y_bTD), 0), entered_bTD)
        carry = Carry(
            # One extra slot, for arrivals that no stage reads.
            arrived=write_slot(zeros_buffer(entered_bTD, self.ticks.depths.arrived + 1), entered_bTD, 0),
            made=(jnp.zeros_like(entered_bTD),) * (1 + self.schedule.pairs),
            slots=self.passes.slots(entered_bTD, self.ticks.depths.kept, splits_backward=self.schedule.splits_backward),
            loss=jax.tree.map(jnp.zeros_like, loss),
            extras=self.passes.extras(entered_bTD),
            dblocks=jax.tree.map(_float32_zeros, self.blocks),
            dends=jax.tree.map(_float32_zeros, self.ends),
        )
        turns = self.ticks.turns
        turns = turns if self.schedule.pairs else turns._replace(backward=None)  # each array once in the loop
        turns = jax.tree.map(lambda column: jnp.asarray(column)[:, self.stage], turns)
        carry, _ = lax.scan(self._tick, carry, (turns, Shared(*map(jnp.asarray, self.ticks.shared))))
        return carry.loss, lax.psum(carry.extras, "pipeline"), carry.dblocks, carry.dends

    def _tick(self, carry: Carry, row: Row) -> tuple[Carry, None]:
        turn, shared = row
        turn = turn if turn.backward else turn._replace(backward=turn.forward)
        row = turn, shared
        turns = {"F": self._turn_forward, "B": self._turn_backward, "FB": self._turn_pair, "W": self._turn_weights}
        for kind, work in turns.items():
            of_kind = self.ticks.turns.kind == KINDS.index(kind)
            if of_kind.any():
                # Replays follow the first stage, which has the fewest pairs, so that overlap is not overstated.
                carry = self._run_if(turn.kind == KINDS.index(kind), of_kind[:, 0].sum(), work, carry, row)
        of_all = self.ticks.shared
        for ends, taken in self._ends:
            carry = self._run_if(taken(shared), taken(of_all).sum(), partial(self._run_model_ends, ends), carry, row)
        for exchange, different in enumerate(self.ticks.edges):
            for index, edges in enumerate(different):
                times = (of_all.edges[:, exchange] == index).sum()
                carry = self._run_if(
                    shared.edges[exchange] == index, times, partial(self._send, exchange, edges), carry, row
                )
        return carry, None

    @property
    def _ends(self) -> list[tuple[Ends, Callable[[Shared], Any]]]:
        """Work on the embedding and the head, and the ticks in which it runs.

        All of a tick's work runs together, unless it contains loops over leading dense layers or the MTP block. No
        other collectives may run concurrently with theirs, or virtual devices deadlock (program/deadlock.py).
        """
        if not {"lead", "mtp"} & {*self.ends}:
            return [(ends, lambda shared, i=i: shared.ends == i) for i, ends in enumerate(self.ticks.ends)]
        return [
            ((True, False, False), lambda shared: shared.enters >= 0),
            ((False, True, False), lambda shared: shared.leaves >= 0),
            ((False, False, True), lambda shared: shared.returns >= 0),
        ]

    def _run_if(
        self, taken: Array, times: int, work: Callable[[Carry, Turn, Shared], Carry], carry: Carry, row: Row
    ) -> Carry:
        """Run `work` in this tick if `taken`; `times` is the number of ticks in which it runs.

        It is a while loop that runs zero or one times: XLA updates a loop's carry in place but copies the operands of a
        conditional. A barrier makes the work's operands depend on the carry; otherwise XLA could hoist them out of the
        loop and compute them in every tick. On GPUs, too, the copies cost more than the loops' predicates
        (docs/experiments/2026-11-25-defaults-of-backends.md).
        """

        def once(state: tuple[Array, Carry]) -> tuple[Array, Carry]:
            taken, carry = state
            _, made, (turn, shared) = lax.optimization_barrier((taken, carry.made, row))
            return jnp.zeros_like(taken), work(carry._replace(made=made), turn, shared)

        # FLOP counts of the program read from the name in how many ticks the work is skipped, and in how many it runs.
        with jax.named_scope(f"taken_{self.schedule.ticks - times}_{times}"):
            return lax.while_loop(lambda state: state[0], once, (taken, carry))[1]

    def _turn_forward(self, carry: Carry, turn: Turn, shared: Shared) -> Carry:
        x_bTD = carry.arrived[turn.forward.operand_slot]
        y_bTD, (slots, extras) = self.passes.forward(turn.forward, x_bTD, carry.slots, carry.extras)
        return carry._replace(made=(y_bTD, *carry.made[1:]), slots=slots, extras=extras)

    def _turn_backward(self, carry: Carry, turn: Turn, shared: Shared) -> Carry:
        dy_bTD, slots = carry.arrived[turn.backward.operand_slot], carry.slots
        if self.schedule.splits_backward:
            dx_bTD, (slots, dblocks) = self.passes.first(turn.backward, dy_bTD, slots, carry.dblocks)
        else:
            dx_bTD, dblocks = self.passes.backward(turn.backward, dy_bTD, slots, carry.dblocks)
        return carry._replace(made=(*carry.made[:-1], dx_bTD), slots=slots, dblocks=dblocks)

    def _turn_pair(self, carry: Carry, turn: Turn, shared: Shared) -> Carry:
        operands = carry.arrived[turn.forward.operand_slot], carry.arrived[turn.backward.operand_slot]
        made, (slots, extras, dblocks) = self.passes.pair(turn, *operands, carry.slots, carry.extras, carry.dblocks)
        return carry._replace(made=made, slots=slots, extras=extras, dblocks=dblocks)

    def _turn_weights(self, carry: Carry, turn: Turn, shared: Shared) -> Carry:
        return carry._replace(dblocks=self.passes.second(turn.backward, carry.made[0], carry.slots, carry.dblocks))

    def _run_model_ends(self, ends: Ends, carry: Carry, turn: Turn, shared: Shared) -> Carry:
        """Embed, compute the loss, backpropagate into the embedding: each stage for its shard of the vocabulary."""
        enters, leaves, returns = ends
        arrived, loss, dends = carry.arrived, carry.loss, carry.dends
        if enters:
            entered_bTD = mark_varying(self.parts.embed(self.ends, self.tokens_MbS[shared.enters]), "pipeline")
            arrived = write_slot(arrived, entered_bTD, turn.embed_dst)
        if leaves:
            y_bTD = self._broadcast_from(self.schedule.last_stage, carry.made[0])
            differentiate = jax.value_and_grad(self._loss_of, (0, 1), has_aux=True)
            (_, more), (dleaving, dy_bTD) = differentiate(self.ends, y_bTD, shared.leaves)
            loss, dends = jax.tree.map(jnp.add, (loss, dends), (more, dleaving))
            arrived = write_slot(arrived, mark_varying(dy_bTD, "pipeline"), turn.loss_grad_dst)
        if returns:
            x_bTD, pull = jax.vjp(lambda ends: self.parts.embed(ends, self.tokens_MbS[shared.returns]), self.ends)
            made_bTD = after(x_bTD, carry.made[-1]) if "lead" in self.ends else carry.made[-1]
            dends = jax.tree.map(jnp.add, dends, *pull(self._broadcast_from(0, made_bTD)))
        return carry._replace(arrived=arrived, loss=loss, dends=dends)

    def _loss_of(self, ends: Weights, y_bTD: Array, m: Any) -> tuple[Array, LossTerms]:
        terms = self.parts.loss(ends, mark_varying(y_bTD, "pipeline"), self.tokens_MbS[m])
        return reduce(jnp.add, terms.values()), terms

    def _broadcast_from(self, stage: int, made_bTD: Array) -> Array:
        return lax.psum(jnp.where(self.stage == stage, made_bTD, 0), "pipeline")

    def _send(self, exchange: int, edges: Edges, carry: Carry, turn: Turn, shared: Shared) -> Carry:
        made_bTD = carry.made[self.ticks.sent[exchange]]
        sent_bTD = made_bTD if is_local(edges) else lax.ppermute(made_bTD, "pipeline", edges)
        return carry._replace(arrived=write_slot(carry.arrived, sent_bTD, turn.recv_dst[exchange]))


def _float32_zeros(weight: Array) -> Array:
    """Zero-initialised float32 accumulator for a weight's gradient."""
    return jnp.zeros_like(weight, jnp.float32)
