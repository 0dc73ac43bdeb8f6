"""Averages and sums: gradients that are averaged where they are summed, summed twice, or added up wrongly."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from strategies.backends.device_mesh import mark_missing
from strategies.core.plan import Plan
from strategies.model import layers
from strategies.step import Implementation
from tests.silent_bugs.changed_implementations import (
    Plant,
    accumulated_as,
    changed_gradients,
    changed_parts,
    chosen,
    patched_differentiation,
    reduced,
    scaled_gradients,
)
from tests.silent_bugs.museum import QWEN3, Bug

HALVES, QUARTERS = {"microbatches": 2}, {"microbatches": 4}


def weighed(factor: Any) -> Plant:
    """Multiply this device's part of loss and gradients by a factor of its own."""

    def change(loss: Any, grads: Any) -> tuple[Any, Any]:
        return jax.tree.map(lambda x: x * factor(), (loss, grads))

    return changed_parts(change)


def mean_of_means(axis: str) -> Plant:
    """Divide each device's losses by its own count of tokens that are no padding, and average the means.

    Three tokens of four count as padding. With equal counts nothing would be wrong.
    """

    def plant(plan: Plan, sound: Implementation) -> Implementation:
        def differentiate(build: Any, weights: Any, tokens_BS: Any, divisor: Any) -> Any:
            shard = sound.hooks.own_context(tokens_BS[:, 1:], 1)
            count = mark_missing((shard % 4 == 0).sum().astype(jnp.float32), (axis,))
            weight = lax.pmean(count, axis) / count
            return jax.tree.map(lambda x: x * weight, sound.differentiate(build, weights, tokens_BS, divisor))

        return replace(sound, differentiate=differentiate)

    return plant


def summed_again(plan: Plan, sound: Implementation) -> Implementation:
    """Sum gradients over replicas, and multiply by their number, as the transpose of another sum does."""

    def reduce(loss: Any, grads: Any) -> Any:
        loss, grads = reduced(sound, plan)(loss, grads)
        return loss, jax.tree.map(lambda dw: dw * plan.size("data"), grads)

    return replace(sound, reduce=reduce)


def last_only(total: Any, grads: Any, _: Any) -> Any:
    """Forget the gradients of earlier microbatches."""
    return jax.tree.map(lambda sum, dw: 0 * sum + dw, total, grads)


def rescaled(total: Any, grads: Any, _: Any) -> Any:
    """Divide the sum so far with each microbatch, not once."""
    return jax.tree.map(lambda sum, dw: (sum + dw) / 2, total, grads)


def rounded(total: Any, grads: Any, _: Any) -> Any:
    """Add in bfloat16."""
    return jax.tree.map(lambda sum, dw: lax.reduce_precision(sum + dw, 8, 7), total, grads)


def table_twice(total: Any, grads: Any, index: Any) -> Any:
    """Count the rows of the token table that an earlier microbatch looked up once more."""
    sums = jax.tree.map(jnp.add, total, grads)
    again = total["embedding"]["token_VD"]
    return chosen(r"embedding.token_VD", sums, lambda dw, _: dw + again)


def unwritten(dw: Any) -> Any:
    """What the second device sends of a bucket before its gradients are written: the zeros from before."""
    return dw * (lax.axis_index("data") == 0)


def looked_up_by_the_compiler(plan: Plan, sound: Implementation) -> Implementation:
    """Look up tokens in a split table whose gradient is a partial sum on each device, and split the result by token."""

    def look_up(table_VD: Any, row_BT: Any) -> Any:
        return table_VD.at[row_BT].get(out_sharding=P("data", "tensor"))

    return replace(sound, hooks=replace(sound.hooks, look_up=look_up, embed_sum=lambda x_BTD: x_BTD))


def without_loop(plan: Plan, sound: Implementation) -> Implementation:
    """Run the layers one after another, so that partial sums of their gradients are stacked."""
    scan_layers = layers.scan_layers

    def unrolled(*inputs: Any, **options: Any) -> Any:
        return scan_layers(*inputs, **{**options, "loops": False})

    return patched_differentiation(sound, layers, "scan_layers", unrolled)


BUGS = [
    Bug(
        "context-means-of-means",
        "https://github.com/NVIDIA/Megatron-LM/issues/7452",
        "Context ranks divided their losses by their own token counts, and unequal ranks were averaged as equal ones.",
        "gradients of all weights: tokens of a shard with more padding count more",
        "loss",
        "context",
        "context=2",
        mean_of_means("context"),
    ),
    Bug(
        "data-means-of-means",
        "https://github.com/meta-pytorch/torchtune/pull/2172",
        "Data parallelism averages what was to be a sum over all tokens, divided by their global count.",
        "gradients of all weights: tokens of a device with more padding count more",
        "loss",
        "fsdp",
        "fsdp=2",
        mean_of_means("fsdp"),
    ),
    Bug(
        "context-scaled",
        "https://github.com/NVIDIA/Megatron-LM/issues/906",
        "The loss was multiplied by the context size, and gradients were no longer divided by it.",
        "gradients of all weights: times the context size",
        "gradient|change",
        "context",
        "context=2",
        scaled_gradients(r".*", 2.0),
    ),
    Bug(
        "sum-of-sums",
        "https://github.com/jax-ml/jax/issues/3970",
        "The gradient of a `psum` inside a mapped function is multiplied by the number of devices.",
        "gradients of all weights: times the number of replicas",
        "gradient|change",
        "data",
        "data=2",
        summed_again,
    ),
    Bug(
        "tensor-scaled",
        "https://github.com/meta-pytorch/torchtune/issues/2641",
        "With tensor parallelism gradients were rescaled by another number of ranks than had averaged them.",
        "gradients of all weights: half",
        "gradient|change",
        "tensor",
        "tensor=2",
        scaled_gradients(r".*", 0.5),
    ),
    Bug(
        "microbatches-dropped",
        "https://github.com/NVIDIA-NeMo/Automodel/pull/3530",
        "Stages were initialised again between microbatches, which cleared their gradients; losses were all there.",
        "gradients of all weights: the last microbatch's alone",
        "gradient|change",
        "fsdp",
        "fsdp=2",
        accumulated_as(last_only),
        train=HALVES,
    ),
    Bug(
        "microbatches-rescaled",
        "https://github.com/pytorch/torchtitan/issues/1733",
        "Pipeline schedules divided all accumulated gradients with each microbatch, not once.",
        "gradients of all weights: early microbatches count less",
        "gradient|change",
        "fsdp",
        "fsdp=2",
        accumulated_as(rescaled),
        train=HALVES,
    ),
    Bug(
        "microbatches-in-bfloat16",
        "https://github.com/deepspeedai/DeepSpeed/issues/2768",
        "Gradients of microbatches were accumulated in bfloat16, and some runs diverged.",
        "gradients of all weights: rounded to 8 bits with each microbatch",
        "blocks",
        "fsdp",
        "fsdp=2",
        accumulated_as(rounded),
        train=QUARTERS,
    ),
    Bug(
        "table-in-loop",
        "https://github.com/openxla/xla/issues/49143",
        "A compiler pass moved the all-reduce of a table's gradient out of the loop over microbatches, wrongly.",
        "gradient of the token table: early microbatches count twice",
        "token_VD",
        "data",
        "data=2",
        accumulated_as(table_twice),
        QWEN3,
        HALVES,
    ),
    Bug(
        "bucket-sent-early",
        "https://github.com/deepspeedai/DeepSpeed/issues/5545",
        "A bucket of gradients was reduced while another stream still wrote it.",
        "gradient of the MLP: one device's part is missing",
        "mlp.down_FD",
        "data",
        "data=2",
        changed_gradients(r"blocks.mlp.down_FD", unwritten),
    ),
    Bug(
        "loss-scale-by-device",
        "https://github.com/facebookresearch/fairseq2/pull/1374",
        "In float16 each tensor rank kept a loss scale of its own, and they were not synchronised.",
        "gradients of one device: divided by another scale",
        "gradient|change",
        "fsdp",
        "fsdp=2",
        changed_gradients(r".*", lambda dw: dw * (1 + lax.axis_index("fsdp"))),
    ),
    Bug(
        "slice-before-all-reduce",
        "https://github.com/openxla/xla/issues/42481",
        "The compiler took each device's slice of a table's gradient before the all-reduce, not after it.",
        "gradient of the token table: rows of all shards that have the same place are added up",
        "token_VD",
        "explicit",
        "data=2,tensor=2",
        looked_up_by_the_compiler,
    ),
    Bug(
        "sum-of-stacked-sums",
        "../experiments/2026-11-28-stacked-partial-sums.md",
        "Under explicit sharding, gradients of layers without a loop were summed, stacked, and summed again.",
        "gradients of layers: twice as large",
        "gradient of blocks",
        "explicit",
        "data=2",
        without_loop,
        train={"unroll": 2},
    ),
]
