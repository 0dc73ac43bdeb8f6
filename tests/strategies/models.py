"""Small models of the tests, by what they are made to find."""

import dataclasses
import math

from strategies import PRESETS, GPTConfig
from strategies.model.gpt import weight_specs
from tests.strategies.equality import CONFIG

HALF_NANO = dataclasses.replace(PRESETS["nano"], embed=64, sequence=32)
SMALL = GPTConfig(layers=2, embed=32, heads=4, vocab=256, sequence=16)
PAIRED = dataclasses.replace(SMALL, key_heads=2)
SHALLOW = dataclasses.replace(SMALL, layers=1)
# Sizes of which none is another's multiple by chance, and a vocabulary that tensor and pipeline must pad.
ODD = GPTConfig(layers=6, embed=48, heads=4, vocab=257, sequence=24, mlp=80)
UNTIED = dataclasses.replace(ODD, tied=False)
EVEN = dataclasses.replace(ODD, layers=8)
# A sequence long enough that blocks are skipped.
LONG = GPTConfig(layers=2, embed=32, heads=4, vocab=256, sequence=64, attention_window=8)
WIDE = dataclasses.replace(LONG, attention_window=24)
WINDOW_60 = dataclasses.replace(LONG, attention_window=60)
STRIDED = dataclasses.replace(LONG, attention_window=None, attention_stride=8)
TURNS = dataclasses.replace(LONG, layers=8, full_attention_every=2)
FIXED = dataclasses.replace(STRIDED, attention_pattern="fixed", attention_summary=2)
# One block of a fused kernel's tokens.
SQUARE = GPTConfig(layers=2, embed=32, heads=4, vocab=256, sequence=128)
# Scores are most of what a layer holds, or gradients are most of what a device holds.
DENSE = GPTConfig(layers=2, embed=32, heads=4, vocab=128, sequence=512, mlp=64)
WINDOWED = dataclasses.replace(DENSE, attention_window=384)
# Query heads share KV heads; one KV head alone.
GROUPED = dataclasses.replace(DENSE, key_heads=2)
SHARED = dataclasses.replace(DENSE, key_heads=1)
# Heads whose features are not those of the residual stream, and do not divide it.
HEADED = GPTConfig(layers=2, embed=44, heads=8, head_size=6, vocab=257, sequence=32, mlp=80)
LLAMA = dataclasses.replace(ODD, block="llama", key_heads=2, head_size=8, tied=False)
QWEN3 = dataclasses.replace(LLAMA, block="qwen3")
# Norms of heads with fewer features than there are devices.
NARROW = dataclasses.replace(QWEN3, head_size=4)
# Experts that drop tokens.
EXPERTS = dataclasses.replace(ODD, experts=8, expert_mlp=24, capacity_factor=1.0, balance_loss=0.01)
TURNS_OF_EXPERTS = dataclasses.replace(TURNS, experts=8, expert_mlp=24, capacity_factor=1.0, balance_loss=0.01)
# Memory is mostly that of copies of KV heads, or of SwiGLU, where gradients of weights wait.
COPIED = GPTConfig(layers=4, embed=256, heads=8, key_heads=1, vocab=128, sequence=8, mlp=64)
GATED = GPTConfig(layers=4, embed=32, heads=4, vocab=128, sequence=64, mlp=256, block="llama", tied=False)
DEEP = GPTConfig(layers=8, embed=64, heads=4, vocab=128, sequence=32)
# Latent attention, with latents of queries and without; values are narrower than keys.
LATENT = dataclasses.replace(
    GATED, layers=2, embed=48, vocab=131, latent_rank=20, query_rank=28, head_size=14, rotary_size=4, value_size=6
)
DEEPSEEK = dataclasses.replace(
    LATENT,
    layers=3,
    dense_layers=1,
    experts=8,
    expert_mlp=24,
    shared_mlp=40,
    router="sigmoid",
    routed_scale=2.5,
    router_bias_rate=0.01,
    router_groups=4,
    groups_per_token=2,
    balance_loss=0.05,
    balance_over="sequence",
)
LATENT_KEYS = dataclasses.replace(LATENT, query_rank=None)
# Multi-token prediction: with a table of its own, and of a mixture like DeepSeek's.
MTP = dataclasses.replace(GATED, layers=2, embed=48, vocab=131, tied=False, mtp_loss=0.3)
DEEPSEEK_MTP = dataclasses.replace(DEEPSEEK, mtp_loss=0.3)
# Without what DEEPSEEK has under other strategies, because the programs of all stages are compiled.
SPARSE_MTP = dataclasses.replace(DEEPSEEK_MTP, layers=2, dense_layers=0, shared_mlp=None, query_rank=None)

# Mixtures of experts: some drop tokens, some have losses of the router, biases, groups, or choices that are forced.
DROPPING = dataclasses.replace(
    CONFIG, experts=8, expert_mlp=24, capacity_factor=1.0, expert_group=4, balance_loss=1e-2, router_z_loss=1e-3
)
ALL_KEPT = dataclasses.replace(DROPPING, capacity_factor=None, shared_mlp=40, router="sigmoid")
QWEN3_MOE = dataclasses.replace(DROPPING, block="qwen3", key_heads=4, tied=False)
FORCED = dataclasses.replace(DROPPING, routing="zipf=1.2")
BALANCED, ONE_EXPERT = (dataclasses.replace(ALL_KEPT, routing=routing) for routing in ("balanced", "one"))
UNBALANCED = dataclasses.replace(DROPPING, balance_loss=0.0, router="softmax")
BIASED = dataclasses.replace(
    UNBALANCED, router="sigmoid", routed_scale=2.5, router_bias_rate=0.01, router_groups=4, groups_per_token=2
)
# Of two devices one has all experts that are chosen.
CROWDED = dataclasses.replace(ALL_KEPT, experts=14, routing="one")
CROWDED_SHALLOW = dataclasses.replace(CROWDED, layers=2)
# Leading dense layers; `COPIED_LEAD` has one KV head, which all devices of a tensor axis copy.
LEAD = dataclasses.replace(ALL_KEPT, layers=4, dense_layers=1, mlp=64)
SHORT_LEAD = dataclasses.replace(DROPPING, layers=3, dense_layers=1, mlp=64)
DEEP_LEAD = dataclasses.replace(LEAD, layers=5)
TWO_LEAD = dataclasses.replace(BIASED, block="qwen3", key_heads=4, tied=False, layers=5, dense_layers=2, mlp=80)
COPIED_LEAD = dataclasses.replace(SHORT_LEAD, key_heads=1)
DEEP_COPIED_LEAD = dataclasses.replace(COPIED_LEAD, layers=5)
# gpt-oss: sinks, windows in turns, experts with biases, YaRN.
GPT_OSS = dataclasses.replace(
    CONFIG,
    block="gpt_oss",
    key_heads=4,
    attention_window=3,
    full_attention_every=2,
    experts=4,
    expert_mlp=24,
    rope_theta=150_000.0,
    rope_factor=32.0,
    tied=False,
)
# Small Llamas, and one whose heads are not the residual stream's features.
SMALL_LLAMA = dataclasses.replace(CONFIG, block="llama", key_heads=4)
HEADED_LLAMA = GPTConfig(
    layers=6, embed=48, heads=8, key_heads=4, head_size=8, vocab=257, sequence=24, mlp=80, block="llama"
)
# Mixtures on one device, with each router, and buffers or blocks.
MOE = GPTConfig(layers=4, embed=48, heads=4, vocab=257, sequence=24, experts=6, expert_mlp=20)
MOE_DROPPING = dataclasses.replace(MOE, capacity_factor=1.0, balance_loss=1e-2, router_z_loss=1e-3)
MOE_ROUTERS = (
    dataclasses.replace(MOE_DROPPING, router="softmax", expert_group=8, experts_per_token=3, shared_mlp=28),
    dataclasses.replace(MOE_DROPPING, router="sigmoid", routed_scale=2.5, experts_per_token=1),
    dataclasses.replace(MOE, router="softmax", shared_mlp=28, experts=3, experts_per_token=3, expert_group=4),
    dataclasses.replace(MOE, router="sigmoid", router_bias_rate=0.01, router_groups=3, groups_per_token=2),
)


def active_param_count(config: GPTConfig) -> int:
    """Number of parameters that one token uses: only `experts_per_token` experts per layer."""
    sizes = {**config.dim_sizes, "experts": config.experts_per_token}
    return sum(math.prod(sizes[dim] for dim in spec.dims) for spec in weight_specs(config).values())
