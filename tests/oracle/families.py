"""Tiny models of Hugging Face transformers, and their weights as this repository stores them. It needs no torch."""

import dataclasses
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import unflatten_dict

from strategies import GPTConfig, TrainConfig
from strategies.huggingface import tensors
from strategies.huggingface.config_json import facts_of

LLAMA = GPTConfig(
    layers=2,
    embed=32,
    heads=4,
    key_heads=2,
    vocab=97,
    sequence=32,
    mlp=48,
    tied=False,
    vocab_multiple=1,
    block="llama",
    rope_theta=500_000.0,
    rope_factor=8.0,
)
DENSE: Mapping[str, GPTConfig] = {
    "llama": LLAMA,
    "qwen2": dataclasses.replace(LLAMA, block="qwen2", rope_theta=1e6, rope_factor=1.0, norm_epsilon=1e-6),
    "qwen3": dataclasses.replace(
        LLAMA, block="qwen3", head_size=16, rope_theta=1e6, rope_factor=1.0, norm_epsilon=1e-6
    ),
    "mistral": dataclasses.replace(LLAMA, rope_theta=1e4, rope_factor=1.0, attention_window=8),
}
PLAIN = dataclasses.replace(DENSE["mistral"], attention_window=None)
LATENTS = {"latent_rank": 20, "head_size": 18, "rotary_size": 8, "value_size": 7}
FAMILIES: Mapping[str, GPTConfig] = {
    **DENSE,
    "mixtral": dataclasses.replace(PLAIN, experts=4, balance_loss=0.1),
    "qwen3-moe": dataclasses.replace(DENSE["qwen3"], experts=8, experts_per_token=3, expert_mlp=24, balance_loss=0.1),
    "gpt2": GPTConfig(layers=2, embed=32, heads=4, vocab=97, sequence=32, mlp=48, vocab_multiple=1),
    "dots1": dataclasses.replace(
        DENSE["qwen3"],
        layers=3,
        dense_layers=1,
        experts=8,
        experts_per_token=3,
        expert_mlp=24,
        shared_mlp=48,
        router="sigmoid",
        routed_scale=2.5,
        router_bias_rate=0.0,
        router_groups=4,
        groups_per_token=2,
    ),
    "deepseek-v3": dataclasses.replace(
        PLAIN,
        layers=3,
        key_heads=None,
        mlp=52,
        norm_epsilon=1e-5,
        rope_factor=40.0,
        rope_mscale=0.7,
        **LATENTS,
        query_rank=26,
        experts=12,
        dense_layers=1,
        experts_per_token=3,
        expert_mlp=22,
        shared_mlp=44,
        router="sigmoid",
        routed_scale=2.5,
        router_bias_rate=0.0,
        router_groups=4,
        groups_per_token=2,
    ),
    "deepseek-v2": dataclasses.replace(
        PLAIN,
        layers=3,
        key_heads=None,
        norm_epsilon=1e-6,
        **LATENTS,
        experts=6,
        dense_layers=1,
        expert_mlp=22,
        shared_mlp=22,
        router="softmax",
    ),
    "olmoe": dataclasses.replace(PLAIN, block="olmoe", experts=8, router="softmax", balance_loss=0.1),
    "gpt-oss": dataclasses.replace(
        DENSE["mistral"],
        layers=4,
        full_attention_every=2,
        head_size=16,
        block="gpt_oss",
        rope_theta=150_000.0,
        rope_factor=32.0,
        experts=4,
        expert_mlp=24,
        balance_loss=0.1,
    ),
}
"""Sizes are small and differ from each other. The heads of Qwen3 together are wider than the residual stream. The
factor of the load-balancing loss is large, so that its gradient matters."""
TRAIN = TrainConfig(batch_size=2, learning_rate=1e-2, clip_norm=0.5, epsilon=1e-3)
"""AdamW's epsilon is about the size of a gradient's element. With 1e-8 rounding decides the sign of small updates."""
STEPS = 3
DIRECTIONS = 8
"""Projections that stand for an array."""
TOLERANCE = 1e-5
"""Relative to the norm of an array. transformers computes norms, rotary tables and softmax in float32 in any dtype."""
FOLDER = Path(__file__).parent


def batch_of(step: int) -> np.ndarray:
    """The batch of a step, [B,T+1]."""
    shape = TRAIN.batch_size, LLAMA.sequence + 1
    return np.random.default_rng(step).integers(0, LLAMA.vocab, shape).astype(np.int32)


def drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The weights of a parameter of this name: norms around one, others around zero, large enough to matter.

    Those of gates and ups of gpt-oss are so large that some are clamped.
    """
    normal = np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape)
    normal *= 0.4 if "gate_up_proj" in name else 0.2
    return 1 + normal if re.search(r"norm\.weight|ln_.\.weight", name) else normal


def layouts_of(config: GPTConfig) -> dict[str, tensors.Layout]:
    """Where a folder of transformers has the weights of a model."""
    return tensors.layouts(config, facts_of(config, "float32")[0])


def stored(config: GPTConfig, params: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Parameters, or their gradients, as a folder of transformers has them -> the tree of weights of `GPT`."""
    weights = {}
    for name, layout in layouts_of(config).items():
        weights[name] = np.zeros(layout.shape)
        layout.read(params, tuple(slice(0, size) for size in layout.shape), weights[name])
    return unflatten_dict(weights, sep=".")


def named(tree: Any, prefix: str = "") -> dict[str, np.ndarray]:
    """The arrays of a tree by their paths."""
    if not isinstance(tree, dict):
        return {prefix: np.asarray(tree, np.float64)}
    return {name: array for key in sorted(tree) for name, array in named(tree[key], f"{prefix}.{key}").items()}


def sketch(array: np.ndarray, name: str) -> list[float]:
    """The norm of an array, and its projections on random directions; each has about the size of the norm.

    An array that is off by some part of its norm is off by about that part in each projection.
    """
    directions = np.random.default_rng(zlib.crc32(name.encode())).normal(size=(DIRECTIONS, array.size))
    flat = np.asarray(array, np.float64).reshape(-1)
    return [float(np.linalg.norm(flat)), *(directions @ flat).tolist()]


def difference(one: Mapping[str, list[float]], other: Mapping[str, list[float]]) -> dict[str, float]:
    """By name of the array, the root mean square of the differences of two sketches, relative to the norm.

    The largest of nine differences would be twice as large, and vary with a processor's rounding.
    """
    assert one.keys() == other.keys()
    return {
        name: float(np.sqrt(np.square(np.subtract(one[name], other[name])).mean())) / other[name][0] for name in other
    }
