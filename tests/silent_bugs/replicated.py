"""Replicated weights: their gradients are sums of parts, of which some are missing or wrong."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from strategies.core import gradients
from strategies.core.plan import Plan
from strategies.model import self_attention
from strategies.model.parts import add_bias
from strategies.step import Implementation
from tests.silent_bugs.changed_implementations import (
    changed_hooks,
    chosen,
    patched,
    patched_differentiation,
    reduced,
    scaled_gradients,
    unsummed,
    without_replica_sum,
    without_sum,
)
from tests.silent_bugs.museum import GPT_OSS, QWEN3, Bug

WITHOUT_SP = {"sequence_parallel": False}


def averaged(pattern: str, axis: str) -> Any:
    """Divide summed gradients by the number of devices."""

    def plant(plan: Plan, sound: Implementation) -> Implementation:
        def reduce(loss: Any, grads: Any) -> Any:
            loss, grads = reduced(sound, plan)(loss, grads)
            return loss, chosen(pattern, grads, lambda dw, _: dw / plan.size(axis))

        return replace(sound, reduce=reduce)

    return plant


def without_copies(plan: Plan, sound: Implementation) -> Implementation:
    """Leave the gradients of copies of a head of keys as each device has them."""

    def reduce(loss: Any, grads: Any) -> Any:
        with patched(gradients, "sum_copies", lambda grads, plan: grads):
            return reduced(sound, plan)(loss, grads)

    return replace(sound, reduce=reduce)


def own_input_gradients(all_tokens: Any) -> Any:
    """`Hooks.all_tokens` without sequence parallelism, whose transpose does not sum gradients over devices."""

    @jax.custom_vjp
    def own(x: Any) -> Any:
        return all_tokens(x)

    own.defvjp(lambda x: (all_tokens(x), None), lambda _, dx: (unsummed(dx, "tensor"),))
    return own


def whole_bias(part: Any) -> Any:
    """`Hooks.per_device_share` that is the whole on each device."""
    return lambda x: part(x) * lax.axis_size("tensor")


def unscaled_bias(plan: Plan, sound: Implementation) -> Implementation:
    """Scale the product that queries come from, and not their bias. Gradients are of what was meant."""

    def add(qkv_BTCA: Any, bias_CA: Any) -> Any:
        factor_C1 = jnp.array([[plan.config.head_dim**0.5], [1], [1]])  # attention divides all of it by this
        meant, done = (add_bias(qkv_BTCA, bias) for bias in (bias_CA, factor_C1 * bias_CA[...]))
        return meant + lax.stop_gradient(done - meant)

    return patched_differentiation(sound, self_attention, "add_bias", add)


BUGS = [
    Bug(
        "last-norm-without-sum",
        "https://github.com/NVIDIA/Megatron-LM/issues/1446",
        "With tensor and sequence parallelism, gradients of the final layer norm differed between tensor ranks.",
        "gradient of the last norm: one device's tokens instead of all",
        "head.norm.scale_D",
        "tensor",
        "tensor=2",
        without_sum(r"head.norm.scale_D", "tensor"),
    ),
    Bug(
        "stages-norms-without-sum",
        "https://github.com/PaddlePaddle/PaddleNLP/pull/7610",
        "With pipeline stages, layer norms under sequence parallelism were not synchronised.",
        "gradients of the norms of blocks: one device's tokens instead of all",
        r"blocks.norm\d",
        "three_d",
        "pipeline=2,tensor=2",
        without_sum(r"blocks.norm..*", "tensor"),
    ),
    Bug(
        "head-norm-without-sum",
        "https://github.com/NVIDIA-NeMo/RL/issues/3716",
        "A split training step skipped the all-reduce of gradients of query and key norms over tensor ranks.",
        "gradients of query and key norms: one device's heads instead of all",
        "[qk]_norm_K",
        "tensor",
        "tensor=2",
        without_sum(r"blocks.attention.._norm_K", "tensor"),
        QWEN3,
        WITHOUT_SP,
    ),
    Bug(
        "norm-averaged",
        "https://github.com/EleutherAI/gpt-neox/pull/1259",
        "A hook averaged layer norm gradients over sequence shards, where they are to be summed.",
        "gradients of norms of blocks: half",
        r"blocks.norm\d.* a sum over `tensor` is missing",
        "tensor",
        "tensor=2",
        averaged(r"blocks.norm..*", "tensor"),
    ),
    Bug(
        "key-copies-without-sum",
        "https://github.com/bigcode-project/Megatron-LM/pull/39",
        "With multi-query attention, gradients of the shared key and value head were not reduced over tensor ranks.",
        "gradients of keys and values: one device's queries instead of all",
        "qkv_DCA",
        "tensor",
        "tensor=2",
        without_copies,
        QWEN3,
    ),
    Bug(
        "row-bias-divided",
        "https://github.com/pytorch/torchtitan/pull/4332",
        "Each rank adds its share of a row-parallel bias, and autodiff divided the gradient of the bias as well.",
        "gradient of the output bias: half",
        r"gradient of blocks.attention.out_bias_D in layer \d is 0.500",
        "tensor",
        "tensor=2",
        scaled_gradients(r"blocks.attention.out_bias_D", 0.5),
    ),
    Bug(
        "row-bias-twice",
        "https://github.com/awslabs/slapo/issues/10",
        "A bias of a row-parallel layer was part of the partial results, and so was summed once for each rank.",
        "output of the layer: its bias times the number of devices",
        "loss",
        "tensor",
        "tensor=2",
        changed_hooks(per_device_share=whole_bias),
        GPT_OSS,
    ),
    Bug(
        "bias-not-scaled",
        "https://github.com/openxla/xla/issues/46110",
        "The compiler folded a factor into a matmul whose epilogue adds a bias: a (x w + b) became a (x w) + b.",
        "scores of attention: the bias of queries is not scaled",
        "gradient of blocks.attention.qkv_DCA",
        "data",
        "data=2",
        unscaled_bias,
    ),
    Bug(
        "input-gradient-without-sum",
        "https://github.com/NovaSky-AI/SkyRL/pull/1886",
        "A copy before the column-parallel head lost the all-reduce of its input's gradient.",
        "gradients before a column-parallel layer: one device's outputs instead of all",
        "along `tensor`",
        "tensor",
        "tensor=2",
        changed_hooks(all_tokens=own_input_gradients),
        train=WITHOUT_SP,
    ),
    Bug(
        "replicas-without-sum",
        "https://github.com/NVIDIA-NeMo/Automodel/pull/3135",
        "The mesh of the shards lost its replica axis, and replicas were trained apart.",
        "gradients of all weights: one replica's sequences instead of all",
        "along `data`",
        "hsdp",
        "data=2,fsdp=2",
        without_replica_sum(r".*", "data"),
    ),
]
