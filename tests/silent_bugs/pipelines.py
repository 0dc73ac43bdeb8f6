"""Pipelines and the vocabulary: uses of a tied table, layers in their slots, and rows that are padding."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from strategies.core.plan import Plan
from strategies.pipelining.executor import Executor
from strategies.pipelining.layer_backward import Passes
from strategies.pipelining.timetable import KINDS, is_local
from strategies.step import Implementation
from tests.silent_bugs.changed_implementations import changed_model, patched_differentiation, scaled_gradients
from tests.silent_bugs.museum import Bug

STAGES = {"microbatches": 4}
THREE_LAYERS = {"layers": 3}
"""Two on the first of two stages, and one on the last."""


def embedded_apart(model: Any, build: Any, weights: Any, plan: Plan) -> None:
    """Embed by a copy of the table, whose gradient goes nowhere."""
    table = {**weights["embedding"], "token_VD": lax.stop_gradient(weights["embedding"]["token_VD"])}
    copy = build({**weights, "embedding": table})
    object.__setattr__(model, "embed", lambda tokens: copy.embed(tokens))


def head_of_all_rows(model: Any, build: Any, weights: Any, plan: Plan) -> None:
    """Count the rows that pad the vocabulary."""
    model.head.vocab = plan.padded_vocab


def swapped(plan: Plan, sound: Implementation) -> Implementation:
    """Say that the two layers of the first stage are in each other's slot."""
    first, second, *others = plan.slots
    vars(plan)["slots"] = (second, first, *others)
    return sound


def without_rest(plan: Plan, sound: Implementation) -> Implementation:
    """Run as many layers on each stage as all stages have, and not those that are left over."""
    made = Passes.__init__

    def changed(self: Passes, run: Any, weights: Any, layers: int, used_L: Any, unroll: int = 1) -> None:
        made(self, run, weights, layers, used_L & (jnp.arange(len(used_L)) < len(used_L) - 1), unroll)

    return patched_differentiation(sound, Passes, "__init__", changed)


def turned_twice(plan: Plan, sound: Implementation) -> Implementation:
    """Hand twice the gradient over at the turn of a V, as if it had also been received."""
    send = Executor._send

    def changed(self: Executor, exchange: int, edges: Any, carry: Any, turn: Any, shared: Any) -> Any:
        times = jnp.where(is_local(edges) & (turn.kind == KINDS.index("B")), 2, 1)
        doubled = carry._replace(made=tuple(times * made_bTD for made_bTD in carry.made))
        return send(self, exchange, edges, doubled, turn, shared)._replace(made=carry.made)

    return patched_differentiation(sound, Executor, "_send", changed)


def stored_only(plan: Plan, sound: Implementation) -> Implementation:
    """Keep what weight gradients need, and never compute those that need matmuls."""

    def unchanged(self: Passes, turn: Any, like_BTD: Any, slots: Any, dweights: Any) -> Any:
        return dweights

    return patched_differentiation(sound, Passes, "second", unchanged)


BUGS = [
    Bug(
        "table-of-two-stages",
        "https://github.com/uw-syfi/piper/issues/13",
        "The first and the last stage had a copy each of a tied table, and their gradients were not added.",
        "gradient of the token table: of its use in the head alone",
        "token_VD",
        "pipeline",
        "pipeline=2",
        changed_model(embedded_apart),
        train=STAGES,
    ),
    Bug(
        "padding-in-softmax",
        "https://github.com/unslothai/unsloth/pull/10616",
        "Logits that pad the vocabulary were masked before they were capped, and so had probability mass.",
        "loss, and gradients of the head: padded rows of the table count",
        "loss",
        "tensor",
        "tensor=2",
        changed_model(head_of_all_rows),
        {"vocab": 257},
    ),
    Bug(
        "halves-count-twice",
        "https://github.com/pytorch/pytorch/pull/181365",
        "Both halves of a split backward pass added the gradients of shared weights.",
        "gradient of the token table: twice",
        "gradient norm",
        "pipeline",
        "pipeline=2",
        scaled_gradients(r"embedding.token_VD", 2.0),
        train={**STAGES, "schedule": "zb-h1"},
    ),
    Bug(
        "layers-left-over",
        "https://github.com/pytorch/torchtitan/pull/963",
        "Stages had as many layers as the quotient, and layers that were left over were not run.",
        "gradients of a layer: zero, since it is not run",
        "loss",
        "pipeline",
        "pipeline=2",
        without_rest,
        THREE_LAYERS,
        STAGES,
    ),
    Bug(
        "layers-of-other-stage",
        "https://github.com/NVIDIA/Megatron-LM/issues/7452",
        "Stages named their layers from 0, and a checkpoint loaded with other stages gave layers to wrong places.",
        "weights of two layers: each has the other's",
        "loss",
        "pipeline",
        "pipeline=2",
        swapped,
        THREE_LAYERS,
        STAGES,
    ),
    Bug(
        "weight-gradients-stored-only",
        "https://github.com/deepspeedai/Megatron-DeepSpeed/issues/442",
        "Gradients of weights were stored for later, and only one schedule came back to them.",
        "gradients of matrices: zero, since the second half of the backward pass does not run",
        "out_AD",
        "pipeline",
        "pipeline=2",
        stored_only,
        train={**STAGES, "schedule": "eager-zb"},
    ),
    Bug(
        "turn-of-a-v-twice",
        "../experiments/2026-11-29-fused-pairs.md",
        "The turn of a V hands an array over within a stage; if the stage also receives it, it counts twice.",
        "gradients of the layers before the turn: twice",
        "in layer [01]",
        "pipeline",
        "pipeline=2",
        turned_twice,
        {"layers": 4},
        {**STAGES, "schedule": "zb-v"},
    ),
]
