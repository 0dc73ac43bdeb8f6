"""Muon: parts of matrices orthogonalised as if they were whole, or several matrices as one."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from strategies.core import matrices, rules
from strategies.core.matrices import Muon
from strategies.core.newton_schulz import Matrices, newton_schulz
from strategies.core.plan import Plan
from strategies.step import Optimizer
from tests.silent_bugs.changed_implementations import Plant, optimized_as, patched, without_replica_sum
from tests.silent_bugs.museum import Bug

MUON = {"optimizer": "muon"}


def updated_with(target: Any, **functions: Any) -> Plant:
    """Replace functions of `target` while the update is traced."""

    def change(plan: Plan, optimizer: Optimizer) -> Optimizer:
        def update(*inputs: Any, functions: dict[str, Any]) -> Any:
            if not functions:
                return optimizer.update(*inputs)
            (name, function), *others = functions.items()
            with patched(target, name, function):
                return update(*inputs, functions=dict(others))

        return optimizer._replace(update=partial(update, functions=functions))

    return optimized_as(change)


def as_whole(self: Matrices, g_MRC: Any) -> Any:
    """Orthogonalise this device's part of each matrix."""
    return newton_schulz(g_MRC)


def as_one(array: Any, dims: Any, head_dim: Any) -> list[Any]:
    """A weight's matrices, with queries, keys and values as one."""
    *_, rows, columns = array.shape if "qkv" not in dims else (*array.shape[:-2], array.shape[-2] * array.shape[-1])
    return [array.reshape(-1, rows, columns)]


def as_it_was(parts: Any, shape: Any, dims: Any, head_dim: Any) -> Any:
    """The inverse of `as_one`."""
    return parts[0].reshape(shape)


def with_gate_and_up_as_one(self: Muon, arrays: Any) -> dict[str, Any]:
    """The updates, with gate and up of a layer as one matrix."""
    gate, up = "blocks.mlp.gate_DF", "blocks.mlp.up_DF"
    fused_LDF = jnp.concatenate([arrays[gate], arrays[up]], -1)
    size = 0.2 * math.sqrt(max(fused_LDF.shape[1:]))
    both = jnp.split(size * newton_schulz(fused_LDF), 2, -1)
    return {**orthogonalised(self, arrays), gate: both[0], up: both[1]}


def by_microbatch(train: Any, grads: Any, mu: Any, share: float) -> Any:
    """The momentum after it has taken half of the gradients, and then the other half."""
    half = jax.tree.map(lambda grad: grad / 2, grads)
    return with_momentum(train, half, with_momentum(train, half, mu, share)[1], share)


orthogonalised, with_momentum = Muon.orthogonalised, rules.with_momentum


BUGS = [
    Bug(
        "muon-of-a-shard",
        "https://github.com/deepspeedai/DeepSpeed/issues/8437",
        "Each tensor rank orthogonalised its shard of a projection as if it were whole: updates were off by 39%.",
        "updates of matrices that tensor splits",
        "change of blocks",
        "tensor",
        "tensor=2",
        updated_with(Matrices, orthogonalised=as_whole),
        train={**MUON, "matrices": "gather"},
    ),
    Bug(
        "muon-of-own-gradients",
        "https://github.com/deepspeedai/DeepSpeed/issues/7807",
        "With ZeRO 1 and 2, a matrix that several ranks own was orthogonalised before all its gradients were summed.",
        "momentum and updates of some matrices: of one device's gradients",
        "gradient of blocks.attention.out_AD",
        "data",
        "data=2",
        without_replica_sum("blocks.attention.out_AD", "data"),
        train=MUON,
    ),
    Bug(
        "muon-by-microbatch",
        "https://github.com/deepspeedai/DeepSpeed/issues/8443",
        "With ZeRO 3 the momentum advanced with each microbatch, and orthogonalised partial gradients.",
        "momentum and updates of all matrices",
        "gradient|change",
        "fsdp",
        "fsdp=2",
        updated_with(rules, with_momentum=by_microbatch),
        train=MUON,
    ),
    Bug(
        "muon-of-queries-with-keys",
        "https://github.com/NVIDIA/Megatron-LM/pull/6326",
        "With more tensor ranks than groups of queries, queries, keys and values were orthogonalised as one matrix.",
        "updates of queries, keys and values",
        "change of blocks.attention.qkv_DCA",
        "data",
        "data=2",
        updated_with(matrices, matrices_of=as_one, joined=as_it_was),
        train=MUON,
    ),
    Bug(
        "muon-of-gate-with-up",
        "https://github.com/pytorch/torchtitan/pull/4531",
        "Gate and up, which one parameter held, were orthogonalised as one matrix.",
        "updates of gate and up",
        "change of blocks.mlp",
        "data",
        "data=2",
        updated_with(Muon, orthogonalised=with_gate_and_up_as_one),
        {"block": "llama", "tied": False},
        MUON,
    ),
]
