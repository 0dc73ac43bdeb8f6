"""Folders of DeepSeek's models: released configurations are the presets, and other models are refused."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from strategies import PRESETS
from strategies.huggingface import differences, tensors
from strategies.huggingface.config_json import config_of, facts_of
from strategies.huggingface.families import FAMILIES
from strategies.huggingface.family import LATENT_YARN
from tests.oracle.families import FAMILIES as TINY

YARN_40 = {**LATENT_YARN, "factor": 40}
V2_LITE: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV2ForCausalLM"},
    "aux_loss_alpha": 0.001,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163_840,
    "model_type": "deepseek_v2",
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {**YARN_40, "mscale": 0.707, "mscale_all_dim": 0.707},
    "rope_theta": 10_000,
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "greedy",
    "v_head_dim": 128,
    "vocab_size": 102_400,
}
"""Of the `config.json` of DeepSeek-V2-Lite."""
MOONLIGHT: dict[str, Any] = {
    **V2_LITE,
    "architectures": ["DeepseekV3ForCausalLM"],
    "ep_size": 1,
    "intermediate_size": 11_264,
    "max_position_embeddings": 8192,
    "model_type": "deepseek_v3",
    "norm_topk_prob": True,
    "num_nextn_predict_layers": 0,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 50_000.0,
    "routed_scaling_factor": 2.446,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "vocab_size": 163_840,
}
"""Of the `config.json` of Moonlight-16B-A3B."""


def test_released_models_are_the_presets():
    """DeepSeek-V2-Lite has YaRN, after pre-training without; Moonlight is as pre-trained."""
    lite = dataclasses.replace(PRESETS["deepseek-v2-lite"], sequence=163_840, rope_factor=40.0, rope_mscale=0.707)
    assert not differences(config_of(V2_LITE, "config.json")[1], lite)
    assert not differences(config_of(MOONLIGHT, "config.json")[1], PRESETS["moonlight-16b-a3b"])
    renamed = {**MOONLIGHT, "num_local_experts": 64, "num_mtp_layers": 0}
    del renamed["n_routed_experts"], renamed["num_nextn_predict_layers"]
    assert not differences(config_of(renamed, "config.json")[1], PRESETS["moonlight-16b-a3b"])


@pytest.mark.parametrize("preset", ["deepseek-v2-lite", "moonlight-16b-a3b", "deepseek-v3", "kimi-k2"])
@pytest.mark.parametrize("changes", [{}, {"rope_factor": 40.0}, {"rope_factor": 40.0, "rope_mscale": 0.707}])
def test_presets_are_written_and_read(preset, changes):
    """As what they are, with and without YaRN."""
    config = dataclasses.replace(PRESETS[preset], **changes)
    assert not differences(config_of(facts_of(config, "bfloat16")[1], "config.json")[1], config)


@pytest.mark.parametrize(
    ("facts", "changes", "message"),
    [
        (MOONLIGHT, {"num_nextn_predict_layers": 2}, "has num_nextn_predict_layers: 2; only 0 and 1 are supported"),
        (MOONLIGHT, {"num_mtp_layers": True}, "num_nextn_predict_layers"),
        (MOONLIGHT, {"rope_interleave": False}, "has rope_interleave: false; only true is supported"),
        (MOONLIGHT, {"rope_scaling": {**YARN_40, "beta_fast": 1}}, "has beta_fast: 1; only 32 is supported"),
        (MOONLIGHT, {"rope_scaling": {**YARN_40, "mscale": 0.5}}, "has mscale: 0.5; only 1.0 is supported"),
        (MOONLIGHT, {"rope_scaling": {"type": "yarn", "factor": 2}}, "lacks beta_fast, .*mscale_all_dim of rope_sc"),
        (MOONLIGHT, {"num_key_value_heads": 8}, "key_heads=8 does not go with latent_rank"),
        (MOONLIGHT, {"qk_nope_head_dim": "128"}, "qk_nope_head_dim"),
        (MOONLIGHT, {"topk_method": "greedy"}, 'has topk_method: "greedy"; only "noaux_tc" is supported'),
        (V2_LITE, {"topk_method": "group_limited_greedy"}, 'group_limited_greedy"; only "greedy" is supported'),
        (V2_LITE, {"routed_scaling_factor": 16.0}, "has routed_scaling_factor: 16.0; only 1.0 is supported"),
        (V2_LITE, {"norm_topk_prob": True}, "has norm_topk_prob: true; only false is supported"),
    ],
)
def test_another_model_is_refused(facts, changes, message):
    """In one line that names the field."""
    with pytest.raises(ValueError, match=message) as caught:
        config_of({**facts, **changes}, "config.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"router": "renormalised"}, "does not have router=renormalised"),
        ({"attention_window": 8}, "does not have attention_window=8"),
        (
            {"experts": None, "dense_layers": 0, "shared_mlp": None, "expert_mlp": None, "router": "renormalised"},
            "no .*",
        ),
    ],
)
def test_a_model_that_no_family_has_is_refused(changes, message):
    """When it is written."""
    with pytest.raises(ValueError, match=message):
        facts_of(dataclasses.replace(TINY["deepseek-v2"], **changes), "float32")


@pytest.mark.parametrize("kind", ["deepseek-v2", "deepseek-v3"])
def test_rotary_pairs_are_neighbours_in_a_folder(kind):
    """Features 2i and 2i + 1 there are features i and i + R/2 here; keys and values of a head follow each other."""
    config, family = TINY[kind], FAMILIES[f"DeepseekV{kind[-1]}ForCausalLM"]
    layouts = tensors.layouts(config, family)
    latents, rotary = config.dim_sizes["latents"], config.rotary_size or 0
    there = {name: np.zeros(shape) for name, shape in tensors.shapes(layouts).items()}
    prefix = "model.layers.1.self_attn"
    for name in (f"{prefix}.kv_a_proj_with_mqa.weight", f"{prefix}.kv_b_proj.weight"):
        there[name][...] = np.arange(len(there[name]))[:, None]

    def first_row(weight: str) -> np.ndarray:
        layout = layouts[f"blocks.attention.{weight}"]
        values = np.zeros(layout.shape)
        layout.read(there, tuple(slice(0, size) for size in layout.shape), values)
        return values[0, 0].astype(int)

    down_L = first_row("down_DL")
    assert [*down_L[:latents]] == [*range(latents)]
    half = rotary // 2
    assert [*zip(down_L[latents : latents + half], down_L[latents + half :], strict=True)] == [
        (latents + 2 * pair, latents + 2 * pair + 1) for pair in range(half)
    ]
    plain = config.head_dim - rotary
    heads = (first_row("key_up_CE").reshape(-1, plain), first_row("value_up_CF").reshape(-1, config.value_dim))
    assert [*np.concatenate(heads, 1).reshape(-1)] == [*range(config.heads * (plain + config.value_dim))]
