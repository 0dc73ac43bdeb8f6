"""Mixtures of experts: gradients of experts and router, losses of the router, and its biases."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from strategies import expert
from strategies.core import shards
from strategies.core.plan import Plan
from strategies.step import Implementation
from tests.silent_bugs.changed_implementations import (
    Plant,
    changed_gradients,
    changed_hooks,
    patched,
    scaled_gradients,
    without_replica_sum,
)
from tests.silent_bugs.museum import FORCED, LEARNED, Bug

EXPERTS = r"blocks.experts.(gate|up|down)_.*"
GATHERED = {"dispatch": "all_gather"}


@jax.custom_vjp
def _gathered_without_sum(x: Any) -> Any:
    return shards.all_gather(x, "expert", 0)


def _own_slice(rows: int, dx: Any) -> tuple[Any]:
    return (lax.dynamic_slice_in_dim(dx, lax.axis_index("expert") * rows, rows),)


_gathered_without_sum.defvjp(lambda x: (_gathered_without_sum(x), len(x)), _own_slice)


def gathered_without_sum(joined_NX: Any, embed: int) -> Any:
    """All tokens of all devices. Gradients are this device's slice, to which the other devices do not add."""
    return _gathered_without_sum(joined_NX)


def exchanged_by(gather: Any) -> Plant:
    """Replace the gather of tokens and of their router's weights."""

    def plant(plan: Plan, sound: Implementation) -> Implementation:
        def exchange(routed: Any) -> Any:
            with patched(expert, "all_gather", lambda x, axis, dim: gather(x, plan.config.embed)):
                return sound.hooks.exchange(routed)

        return replace(sound, hooks=replace(sound.hooks, exchange=exchange))

    return plant


def weights_without_sum(joined_NX: Any, embed: int) -> Any:
    """Gather tokens soundly, and their router's weights without the sum of their gradients."""
    tokens, rest = joined_NX[:, :embed], joined_NX[:, embed:]
    return jnp.concatenate([shards.all_gather(tokens, "expert", 0), _gathered_without_sum(rest)], 1)


def detached(alike: Any) -> Any:
    """`Hooks.replicated_loss` whose losses have no gradient."""
    return lambda loss: lax.stop_gradient(alike(loss))


def weakened(alike: Any) -> Any:
    """`Hooks.replicated_loss` whose losses are as they should be, and whose gradients are half."""
    return lambda loss: 0.5 * alike(loss) + 0.5 * lax.stop_gradient(alike(loss))


def of_own_tokens(batch_sum: Any) -> Any:
    """`Hooks.batch_sum` of the tokens of this device."""
    return lambda x: x


def rounded_loads(plan: Plan, sound: Implementation) -> Implementation:
    """Round the counts of each device to an eighth of their mean, as bfloat16 does of many thousands to its spacing."""
    tokens = plan.train.batch_size * plan.config.sequence
    spacing = plan.tokens * plan.config.experts_per_token / plan.config.dim_sizes["experts"] / 8

    def rounded(load: Any) -> Any:
        return spacing * jnp.round(load * tokens / spacing) / tokens

    return changed_gradients(r"blocks.experts.router_bias_E", rounded)(plan, sound)


BUGS = [
    Bug(
        "experts-scaled-up",
        "https://github.com/NVIDIA/Megatron-LM/pull/5956",
        "Expert gradients hold the tokens of all expert ranks, and were divided by the data ranks of experts alone.",
        "gradients of experts: times the expert size",
        "blocks.experts",
        "expert",
        "expert=2",
        scaled_gradients(EXPERTS, 2.0),
        FORCED,
    ),
    Bug(
        "experts-of-own-replica",
        "https://github.com/facebookresearch/fairseq/issues/4220",
        "Asked, and not answered: the all-reduce of gradients skips experts, of which several ranks have copies.",
        "gradients of experts: one replica's tokens instead of all",
        "blocks.experts.* along `data`",
        "expert",
        "data=2,expert=2",
        without_replica_sum(EXPERTS, "data"),
        FORCED,
    ),
    Bug(
        "tokens-gathered-without-sum",
        "https://github.com/NVIDIA-NeMo/Automodel/pull/1260",
        "The backward pass of the gather of tokens took a slice, and did not add what other ranks' experts gave.",
        "gradients before experts: one device's experts instead of all",
        "experts.router_DE",
        "expert",
        "expert=2",
        exchanged_by(gathered_without_sum),
        FORCED,
        GATHERED,
    ),
    Bug(
        "router-of-own-experts",
        "https://github.com/huggingface/transformers/issues/48687",
        "Under expert parallelism the router's gradient came from a rank's own experts; the loss was right.",
        "gradient of the router: one device's experts instead of all",
        "experts.router_DE",
        "expert",
        "expert=2",
        exchanged_by(weights_without_sum),
        FORCED,
        GATHERED,
    ),
    Bug(
        "balance-loss-of-own-tokens",
        "https://github.com/NVIDIA/Megatron-LM/issues/1652",
        "Losses of the router were scaled by a rank's own token count, where counts of all ranks were meant.",
        "balance loss and gradient of the router: shares of experts among one device's tokens",
        "gradient",
        "expert",
        "expert=4",
        changed_hooks(batch_sum=of_own_tokens),
        LEARNED,
    ),
    Bug(
        "router-losses-weakened",
        "https://github.com/NVIDIA/Megatron-LM/pull/5047",
        "The weight of the router's losses in gradients depended on the tensor size; the reported losses did not.",
        "gradient of the router: its losses count half",
        "experts.router_DE",
        "tensor",
        "tensor=2",
        changed_hooks(replicated_loss=weakened),
        FORCED,
    ),
    Bug(
        "router-losses-detached",
        "https://github.com/NVIDIA-NeMo/Automodel/issues/1408",
        "A wrapped tensor was thrown away, so that the balance loss was reported and had no gradient.",
        "gradient of the router: without its losses",
        "experts.router_DE",
        "expert",
        "expert=2",
        changed_hooks(replicated_loss=detached),
        FORCED,
    ),
    Bug(
        "router-bias-of-rounded-loads",
        "https://github.com/NVIDIA/Megatron-LM/pull/7081",
        "Token counts of experts were summed over ranks in bfloat16, and biases moved the other way.",
        "biases of the router: they follow rounded loads",
        "choices",
        "expert",
        "expert=2",
        rounded_loads,
        LEARNED,
    ),
    Bug(
        "router-bias-forgotten",
        "https://github.com/AI-Hypercomputer/maxtext/issues/2494",
        "Biases that balance the load were declared, and never updated.",
        "biases of the router: they stay as they are",
        "choices",
        "fsdp",
        "fsdp=2",
        scaled_gradients(r"blocks.experts.router_bias_E", 0.0),
        LEARNED,
    ),
]
