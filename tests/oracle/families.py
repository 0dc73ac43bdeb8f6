"""Tiny models of Hugging Face transformers, and their weights as this repository stores them. It needs no torch.

Dims: V vocabulary, D embed, J heads of keys, G heads of queries for each, H = G x J, K head dim, A = H x K, E = J x K.
"""

import dataclasses
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from strategies import GPTConfig, TrainConfig

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
FAMILIES: Mapping[str, GPTConfig] = {
    **DENSE,
    "mixtral": dataclasses.replace(PLAIN, experts=4, balance_loss=0.1),
    "qwen3-moe": dataclasses.replace(DENSE["qwen3"], experts=8, experts_per_token=3, expert_mlp=24, balance_loss=0.1),
    "olmoe": dataclasses.replace(PLAIN, block="olmoe", experts=8, router="softmax", balance_loss=0.1),
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


def tokens(step: int) -> np.ndarray:
    """The batch of a step, [B,T+1]."""
    shape = TRAIN.batch_size, LLAMA.sequence + 1
    return np.random.default_rng(step).integers(0, LLAMA.vocab, shape).astype(np.int32)


def drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The weights of a parameter of this name: norms around one, others around zero, large enough to matter."""
    normal = np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape)
    return 1 + 0.2 * normal if name.endswith("norm.weight") else 0.2 * normal


def stored(config: GPTConfig, params: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Parameters, or their gradients, by their names in transformers -> the tree of weights of `GPT`.

    torch stores matrices as [out, in], and gate and up of experts as one array. Queries, keys and values are one array
    here, by heads of keys.
    """
    key_heads, size = config.key_heads or config.heads, config.head_dim

    def grouped(features: np.ndarray) -> np.ndarray:
        """[A, ...] of queries, or [E, ...] of keys or values -> [G, E, ...]."""
        by_head = features.reshape(key_heads, -1, size, *features.shape[1:])
        return np.moveaxis(by_head, 1, 0).reshape(by_head.shape[1], key_heads * size, *features.shape[1:])

    def mlp(own: Mapping[str, np.ndarray]) -> dict[str, Any]:
        weights = {f"{name}_DF": own[f"mlp.{name}_proj.weight"].T for name in ("gate", "up")}
        return {"mlp": {**weights, "down_FD": own["mlp.down_proj.weight"].T}}

    def experts(own: Mapping[str, np.ndarray]) -> dict[str, Any]:
        gate, up = np.split(own["mlp.experts.gate_up_proj"], 2, axis=1)
        down = own["mlp.experts.down_proj"]
        matrices = {name: w.swapaxes(1, 2) for name, w in {"gate_EDF": gate, "up_EDF": up, "down_EFD": down}.items()}
        return {"experts": {"router_DE": own["mlp.gate.weight"].T, **matrices}}

    def layer(index: int) -> dict[str, Any]:
        prefix = f"model.layers.{index}."
        own = {name.removeprefix(prefix): w for name, w in params.items() if name.startswith(prefix)}
        qkv = {
            kind: np.concatenate([grouped(own[f"self_attn.{name}_proj.{kind}"]) for name in "qkv"])
            for kind in ("weight", "bias")
            if f"self_attn.q_proj.{kind}" in own
        }
        attention = {"qkv_DCA": np.moveaxis(qkv["weight"], -1, 0), "out_AD": own["self_attn.o_proj.weight"].T}
        attention |= {"qkv_bias_CA": qkv["bias"]} if "bias" in qkv else {}
        norms = {name: own[f"self_attn.{name}_norm.weight"] for name in "qk" if f"self_attn.{name}_norm.weight" in own}
        if config.block == "olmoe":
            attention["qk_norm_CA"] = np.concatenate([grouped(norm) for norm in norms.values()])
        else:
            attention |= {f"{name}_norm_K": norm for name, norm in norms.items()}
        return {
            "norm1": {"scale_D": own["input_layernorm.weight"]},
            "attention": attention,
            "norm2": {"scale_D": own["post_attention_layernorm.weight"]},
            **(experts(own) if config.experts else mlp(own)),
        }

    layers = [layer(index) for index in range(config.layers)]
    blocks = {
        part: {name: np.stack([each[part][name] for each in layers]) for name in weights}
        for part, weights in layers[0].items()
    }
    return {
        "embedding": {"token_VD": params["model.embed_tokens.weight"]},
        "blocks": blocks,
        "head": {"norm": {"scale_D": params["model.norm.weight"]}, "token_VD": params["lm_head.weight"]},
    }


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
    """By name of the array, the largest difference of two sketches relative to the norm."""
    assert one.keys() == other.keys()
    return {name: float(np.abs(np.subtract(one[name], other[name])).max()) / other[name][0] for name in other}
