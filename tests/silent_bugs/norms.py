"""The global norm: it clips gradients, and counts weights twice or those of one device alone."""

import math
from collections.abc import Callable
from itertools import chain
from typing import Any

import jax.numpy as jnp
from jax import lax

from strategies.core import rules as optimizers
from strategies.core.plan import Plan
from strategies.model.weights import by_name
from strategies.step import Optimizer
from tests.silent_bugs.changed_implementations import Plant, optimized_as, patched, unsummed
from tests.silent_bugs.museum import FORCED, Bug

Norm = Callable[[Plan, Any, Any], Any]
"""(plan, gradients, how they are sharded) -> a wrong norm of all of them."""
CLIPPED = {"clip_norm": 0.1}
"""Below the norm of the gradients, so that the norm matters."""


def clipped_by(norm: Norm) -> Plant:
    """Clip by another norm."""

    def change(plan: Plan, optimizer: Optimizer) -> Optimizer:
        def update(*inputs: Any) -> Any:
            with patched(optimizers, "global_norm", lambda grads, specs: norm(plan, grads, specs)):
                return optimizer.update(*inputs)

        return optimizer._replace(update=update)

    return optimized_as(change)


def squares(grads: Any, specs: Any) -> list[tuple[tuple[str, ...], Any]]:
    """Of each gradient the axes that split it, and the sum of squares on this device."""
    flat, sharded = by_name(grads), by_name(specs)
    return [(tuple(chain(*map(_axes, sharded[name]))), jnp.square(flat[name]).sum()) for name in flat]


def _axes(dim: Any) -> tuple[str, ...]:
    return dim if isinstance(dim, tuple) else (dim,) if dim else ()


def counted_per_device(plan: Plan, grads: Any, specs: Any) -> Any:
    """Sum the squares of all gradients over tensor devices, those of replicated weights too."""
    devices = plan.size("tensor")
    return jnp.sqrt(sum(lax.psum(x, axes) if axes else devices * x for axes, x in squares(grads, specs)))


def counted_per_replica(plan: Plan, grads: Any, specs: Any) -> Any:
    """Sum squares over replicas, which all have the same gradients."""
    return math.sqrt(plan.size("data")) * jnp.sqrt(sum(x for _, x in squares(grads, specs)))


def of_own_shards(plan: Plan, grads: Any, specs: Any) -> Any:
    """The norm of this device's shards."""
    local: Any = sum(x for _, x in squares(grads, specs))
    return unsummed(jnp.sqrt(local), "fsdp")


def without_other_experts(plan: Plan, grads: Any, specs: Any) -> Any:
    """The norm with this device's experts alone."""
    return jnp.sqrt(sum(unsummed(x, "expert") if axes else x for axes, x in squares(grads, specs)))


BUGS = [
    Bug(
        "norm-counts-replicated",
        "https://github.com/ROCm/TransformerEngine/pull/715",
        "Replicated weights were marked as split, and counted once for each tensor rank: norms grew to 1.5 times.",
        "norm of all gradients: replicated weights count twice",
        "gradient|change",
        "tensor",
        "tensor=2",
        clipped_by(counted_per_device),
        train=CLIPPED,
    ),
    Bug(
        "norm-counts-replicas",
        "https://github.com/pytorch/pytorch/pull/88955",
        "FSDP without sharding summed the squares of gradients over ranks that all had the same.",
        "norm of all gradients: times the root of the number of replicas",
        "gradient|change",
        "data",
        "data=2",
        clipped_by(counted_per_replica),
        train=CLIPPED,
    ),
    Bug(
        "norm-of-own-shards",
        "https://github.com/pytorch/pytorch/issues/170862",
        "Each rank clipped by the norm of its own shards, and the factors differed.",
        "norm of all gradients, and their clipping: one device's shards",
        "gradient|change",
        "fsdp",
        "fsdp=2",
        clipped_by(of_own_shards),
        train=CLIPPED,
    ),
    Bug(
        "norm-of-own-experts",
        "https://github.com/NVIDIA/Megatron-LM/pull/5916",
        "With expert and tensor parallelism the squares of some expert gradients were not in the global norm.",
        "norm of all gradients: one device's experts",
        "gradient norm",
        "expert",
        "expert=2",
        clipped_by(without_other_experts),
        FORCED,
    ),
]
