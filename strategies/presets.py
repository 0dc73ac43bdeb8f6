"""Presets: published sizes of models, and five small ones for CPUs."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from strategies.gpt_config import GPTConfig
from strategies.names import Named

_GPT2 = GPTConfig(layers=12, embed=768, heads=12)
_GPT3 = dataclasses.replace(_GPT2, sequence=2048)
_LLAMA2 = GPTConfig(layers=32, embed=4096, heads=32, vocab=32_000, sequence=4096, mlp=11_008, tied=False, block="llama")
_LLAMA3 = dataclasses.replace(_LLAMA2, key_heads=8, vocab=128_256, sequence=8192, mlp=14_336, rope_theta=500_000.0)
_NANO_LLAMA = GPTConfig(
    layers=8, embed=128, heads=8, key_heads=4, vocab=256, sequence=64, mlp=352, tied=False, block="llama"
)
_MIXTRAL = dataclasses.replace(
    _LLAMA2, key_heads=8, sequence=32_768, rope_theta=1_000_000.0, experts=8, expert_mlp=14_336
)
_QWEN3 = dataclasses.replace(
    _LLAMA2,
    block="qwen3",
    key_heads=8,
    head_size=128,
    vocab=151_936,
    norm_epsilon=1e-6,
    rope_theta=1_000_000.0,
)
_QWEN3_MOE = dataclasses.replace(_QWEN3, key_heads=4, experts=128, experts_per_token=8)
_DEEPSEEK_LITE = dataclasses.replace(
    _LLAMA2,
    layers=27,
    embed=2048,
    heads=16,
    vocab=102_400,
    mlp=10_944,
    norm_epsilon=1e-6,
    latent_rank=512,
    head_size=192,
    rotary_size=64,
    value_size=128,
    experts=64,
    dense_layers=1,
    experts_per_token=6,
    expert_mlp=1408,
    shared_mlp=2 * 1408,
    router="softmax",
)
_DEEPSEEK_V3 = dataclasses.replace(
    _DEEPSEEK_LITE,
    layers=61,
    embed=7168,
    heads=128,
    vocab=129_280,
    mlp=18_432,
    query_rank=1536,
    experts=256,
    dense_layers=3,
    experts_per_token=8,
    expert_mlp=2048,
    shared_mlp=2048,
    router="sigmoid",
    routed_scale=2.5,
    router_bias_rate=0.001,
    router_groups=8,
    groups_per_token=4,
)

PRESETS: Mapping[str, GPTConfig] = MappingProxyType(
    Named(
        "preset",
        {
            "nano": GPTConfig(layers=8, embed=128, heads=8, vocab=256, sequence=64),
            "nano-llama": _NANO_LLAMA,
            "nano-moe": dataclasses.replace(
                _NANO_LLAMA,
                experts=8,
                expert_mlp=176,
                capacity_factor=1.25,
                balance_loss=0.01,
                router_z_loss=0.001,
            ),
            "nano-mla": dataclasses.replace(
                _NANO_LLAMA,
                layers=9,
                key_heads=None,
                latent_rank=32,
                query_rank=64,
                head_size=24,
                rotary_size=8,
                value_size=16,
                experts=8,
                dense_layers=1,
                expert_mlp=88,
                shared_mlp=88,
                router="sigmoid",
                routed_scale=2.5,
                router_bias_rate=0.001,
                capacity_factor=1.25,
                balance_loss=0.0001,
                balance_over="sequence",
            ),
            "micro": GPTConfig(layers=8, embed=256, heads=8, vocab=2048, sequence=128, tied=False),
            # Radford et al. 2019, table 2, as released.
            "gpt2": _GPT2,
            "gpt2-medium": dataclasses.replace(_GPT2, layers=24, embed=1024, heads=16),
            "gpt2-large": dataclasses.replace(_GPT2, layers=36, embed=1280, heads=20),
            "gpt2-xl": dataclasses.replace(_GPT2, layers=48, embed=1600, heads=25),
            # Brown et al. 2020, table 2.1. It prints a width of 5140 for 13b, which 40 heads do not divide, and 24
            # heads of 128 for 1.3b, which exceed its width.
            "gpt3-125m": _GPT3,
            "gpt3-350m": dataclasses.replace(_GPT3, layers=24, embed=1024, heads=16),
            "gpt3-760m": dataclasses.replace(_GPT3, layers=24, embed=1536, heads=16),
            "gpt3-1.3b": dataclasses.replace(_GPT3, layers=24, embed=2048, heads=16),
            "gpt3-2.7b": dataclasses.replace(_GPT3, layers=32, embed=2560, heads=32),
            "gpt3-6.7b": dataclasses.replace(_GPT3, layers=32, embed=4096, heads=32),
            "gpt3-13b": dataclasses.replace(_GPT3, layers=40, embed=5120, heads=40),
            "gpt3-175b": dataclasses.replace(_GPT3, layers=96, embed=12288, heads=96),
            # Touvron et al. 2023, "Llama 2", table 1, and the released configurations.
            "llama2-7b": _LLAMA2,
            "llama2-13b": dataclasses.replace(_LLAMA2, layers=40, embed=5120, heads=40, mlp=13_824),
            "llama2-70b": dataclasses.replace(_LLAMA2, layers=80, embed=8192, heads=64, key_heads=8, mlp=28_672),
            # Grattafiori et al. 2024, "The Llama 3 Herd of Models", table 3; 405b as released with Llama 3.1. Sequences
            # as in pre-training, before the stages with longer ones.
            "llama3-8b": _LLAMA3,
            "llama3-70b": dataclasses.replace(_LLAMA3, layers=80, embed=8192, heads=64, mlp=28_672),
            "llama3-405b": dataclasses.replace(
                _LLAMA3, layers=126, embed=16_384, heads=128, mlp=53_248, rope_factor=8.0
            ),
            "llama3.2-1b": dataclasses.replace(
                _LLAMA3, layers=16, embed=2048, heads=32, mlp=8192, tied=True, rope_factor=32.0
            ),
            # Jiang et al. 2023, "Mistral 7B", table 1.
            "mistral-7b": dataclasses.replace(_LLAMA2, key_heads=8, sequence=8192, mlp=14_336, attention_window=4096),
            # Yang et al. 2025, "Qwen3 Technical Report", table 1; sequences of the first stage of pre-training.
            "qwen3-0.6b": dataclasses.replace(_QWEN3, layers=28, embed=1024, heads=16, mlp=3072, tied=True),
            "qwen3-8b": dataclasses.replace(_QWEN3, layers=36, embed=4096, heads=32, mlp=12_288),
            "qwen3-32b": dataclasses.replace(_QWEN3, layers=64, embed=5120, heads=64, mlp=25_600),
            # Jiang et al. 2024, "Mixtral of Experts", table 1, and 8x22b as released. No token is dropped.
            "mixtral-8x7b": _MIXTRAL,
            "mixtral-8x22b": dataclasses.replace(
                _MIXTRAL, layers=56, embed=6144, heads=48, sequence=65_536, expert_mlp=16_384
            ),
            # Yang et al. 2025, table 2.
            "qwen3-30b-a3b": dataclasses.replace(_QWEN3_MOE, layers=48, embed=2048, heads=32, expert_mlp=768),
            "qwen3-235b-a22b": dataclasses.replace(_QWEN3_MOE, layers=94, embed=4096, heads=64, expert_mlp=1536),
            # Muennighoff et al. 2024, "OLMoE", as released. No token is dropped.
            "olmoe-1b-7b": dataclasses.replace(
                _LLAMA2,
                block="olmoe",
                layers=16,
                embed=2048,
                heads=16,
                vocab=50_304,
                experts=64,
                experts_per_token=8,
                expert_mlp=1024,
                router="softmax",
            ),
            # Huo et al. 2025, "dots.llm1 Technical Report", with the rate of DeepSeek-V3's biases. The base of rotary
            # positions, the epsilon of norms and the scale of weights are from a published conversion of dots.llm1.inst
            # (lablup/mlxcel, src/models/dots1_tests.rs).
            "dots1": dataclasses.replace(
                _QWEN3,
                layers=62,
                key_heads=32,
                norm_epsilon=1e-5,
                vocab=152_064,
                sequence=32_768,
                mlp=10_944,
                rope_theta=10_000_000.0,
                experts=128,
                dense_layers=1,
                experts_per_token=6,
                expert_mlp=1408,
                shared_mlp=2 * 1408,
                router="sigmoid",
                routed_scale=2.5,
                router_bias_rate=0.001,
            ),
            # DeepSeek-AI 2024, "DeepSeek-V2", appendix B, and "DeepSeek-V3 Technical Report", section 4.2, as released;
            # Moonshot AI 2025, "Muon is Scalable for LLM Training" and "Kimi K2", with the rate of DeepSeek-V3's biases
            # (their configurations are from secondary sources). Sequences as in pre-training, before the stages with
            # YaRN. No token is dropped.
            "deepseek-v2-lite": _DEEPSEEK_LITE,
            "deepseek-v3": dataclasses.replace(_DEEPSEEK_V3, balance_loss=0.0001, balance_over="sequence"),
            "moonlight-16b-a3b": dataclasses.replace(
                _DEEPSEEK_LITE,
                vocab=163_840,
                sequence=8192,
                mlp=11_264,
                norm_epsilon=1e-5,
                rope_theta=50_000.0,
                router="sigmoid",
                routed_scale=2.446,
                router_bias_rate=0.001,
            ),
            "kimi-k2": dataclasses.replace(
                _DEEPSEEK_V3,
                heads=64,
                vocab=163_840,
                rope_theta=50_000.0,
                experts=384,
                dense_layers=1,
                routed_scale=2.827,
                router_groups=1,
                groups_per_token=1,
            ),
            # OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card", table 1, as released. Every second layer has no
            # window. No token is dropped.
            "gpt-oss-20b": GPTConfig(
                layers=24,
                embed=2880,
                heads=64,
                key_heads=8,
                head_size=64,
                vocab=201_088,
                sequence=131_072,
                tied=False,
                block="gpt_oss",
                rope_theta=150_000.0,
                rope_factor=32.0,
                attention_window=128,
                full_attention_every=2,
                experts=32,
                experts_per_token=4,
                expert_mlp=2880,
            ),
            # Zhang et al. 2024, "TinyLlama", table 2.
            "tinyllama": dataclasses.replace(_LLAMA2, layers=22, embed=2048, key_heads=4, sequence=2048, mlp=5632),
        },
    )
)
"""Model sizes by name. `dataclasses.replace` varies them."""
