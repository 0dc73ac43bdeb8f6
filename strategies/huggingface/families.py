"""Families of Hugging Face transformers models: fields of their `config.json`, and names of their tensors."""

import dataclasses
from collections.abc import Mapping

from strategies.huggingface.family import LATENT_YARN, YARN, Family
from strategies.model.clamped_experts import GAIN, LIMIT

_LLAMA = Family(
    model_type="llama",
    block="llama",
    fields={
        "hidden_size": "embed",
        "num_hidden_layers": "layers",
        "num_attention_heads": "heads",
        "num_key_value_heads": "key_heads",
        "head_dim": "head_size",
        "intermediate_size": "mlp",
        "vocab_size": "vocab",
        "max_position_embeddings": "sequence",
        "rms_norm_eps": "norm_epsilon",
        "tie_word_embeddings": "tied",
    },
    tensors={
        "embedding.token_VD": "model.embed_tokens.weight",
        "head.norm.scale_D": "model.norm.weight",
        "head.token_VD": "lm_head.weight",
        "blocks.norm1.scale_D": "model.layers.{layer}.input_layernorm.weight",
        "blocks.norm2.scale_D": "model.layers.{layer}.post_attention_layernorm.weight",
        "blocks.attention.qkv_DCA": "model.layers.{layer}.self_attn.{part}_proj.weight",
        "blocks.attention.qkv_bias_CA": "model.layers.{layer}.self_attn.{part}_proj.bias",
        "blocks.attention.out_AD": "model.layers.{layer}.self_attn.o_proj.weight",
        "blocks.attention.q_norm_K": "model.layers.{layer}.self_attn.q_norm.weight",
        "blocks.attention.k_norm_K": "model.layers.{layer}.self_attn.k_norm.weight",
        "blocks.attention.qk_norm_CA": "model.layers.{layer}.self_attn.{part}_norm.weight",
        "blocks.mlp.gate_DF": "model.layers.{layer}.mlp.gate_proj.weight",
        "blocks.mlp.up_DF": "model.layers.{layer}.mlp.up_proj.weight",
        "blocks.mlp.down_FD": "model.layers.{layer}.mlp.down_proj.weight",
        "blocks.experts.router_DE": "model.layers.{layer}.mlp.gate.weight",
        "blocks.experts.router_bias_E": "model.layers.{layer}.mlp.gate.e_score_correction_bias",
        "blocks.experts.gate_EDF": "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight",
        "blocks.experts.up_EDF": "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",
        "blocks.experts.down_EFD": "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight",
        "blocks.experts.shared_gate_DH": "model.layers.{layer}.mlp.shared_experts.gate_proj.weight",
        "blocks.experts.shared_up_DH": "model.layers.{layer}.mlp.shared_experts.up_proj.weight",
        "blocks.experts.shared_down_HD": "model.layers.{layer}.mlp.shared_experts.down_proj.weight",
    },
    fixed={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    defaults={"num_key_value_heads": None, "head_dim": None, "tie_word_embeddings": False, "rope_theta": 10_000.0},
)
_WINDOW = {"sliding_window": "attention_window"}
_TIED = {"tie_word_embeddings": False}
_QWEN2 = dataclasses.replace(
    _LLAMA,
    model_type="qwen2",
    block="qwen2",
    fixed={"hidden_act": "silu", "use_sliding_window": False},
    defaults={**_TIED, "head_dim": None},
    ignored=frozenset({"sliding_window"}),
)
_QWEN3 = dataclasses.replace(
    _QWEN2, model_type="qwen3", block="qwen3", fixed={**_QWEN2.fixed, "attention_bias": False}, defaults=_TIED
)
_DENSE = {name: ours for name, ours in _LLAMA.fields.items() if ours != "mlp"}
_EXPERTS = {"num_experts": "experts", "num_experts_per_tok": "experts_per_token", "norm_topk_prob": "router"}
_MOE = "model.layers.{layer}.block_sparse_moe"
_LOCAL_EXPERTS = {
    "intermediate_size": "expert_mlp",
    "num_local_experts": "experts",
    "num_experts_per_tok": "experts_per_token",
}
_OSS = "model.layers.{layer}.mlp"
_SHARED_EXPERTS = {
    "n_routed_experts": "experts",
    "num_experts_per_tok": "experts_per_token",
    "moe_intermediate_size": "expert_mlp",
    "n_shared_experts": "shared_mlp",
    "first_k_dense_replace": "dense_layers",
}
_GROUPS = {"routed_scaling_factor": "routed_scale", "n_group": "router_groups", "topk_group": "groups_per_token"}
_LATENT = "model.layers.{layer}.self_attn"
_DEEPSEEK_V3 = Family(
    model_type="deepseek_v3",
    block="llama",
    fields={
        **{name: ours for name, ours in _LLAMA.fields.items() if name != "head_dim"},
        **_SHARED_EXPERTS,
        **_GROUPS,
        "q_lora_rank": "query_rank",
        "kv_lora_rank": "latent_rank",
        "qk_nope_head_dim": "head_size",  # here with the rotary features
        "qk_rope_head_dim": "rotary_size",
        "v_head_dim": "value_size",
        "num_nextn_predict_layers": "mtp_loss",
    },
    tensors={
        **_LLAMA.tensors,
        "mtp.embedding_norm.scale_D": "model.layers.{layer}.enorm.weight",
        "mtp.stream_norm.scale_D": "model.layers.{layer}.hnorm.weight",
        "mtp.norm.scale_D": "model.layers.{layer}.shared_head.norm.weight",
        "mtp.join_ID": "model.layers.{layer}.eh_proj.weight",
        "blocks.attention.query_DA": f"{_LATENT}.q_proj.weight",
        "blocks.attention.query_down_DQ": f"{_LATENT}.q_a_proj.weight",
        "blocks.attention.query_norm_Q": f"{_LATENT}.q_a_layernorm.weight",
        "blocks.attention.query_up_QA": f"{_LATENT}.q_b_proj.weight",
        "blocks.attention.down_DL": f"{_LATENT}.kv_a_proj_with_mqa.weight",
        "blocks.attention.norm_C": f"{_LATENT}.kv_a_layernorm.weight",
        "blocks.attention.key_up_CE": f"{_LATENT}.kv_b_proj.weight",
        "blocks.attention.value_up_CF": f"{_LATENT}.kv_b_proj.weight",
        "blocks.attention.out_FD": f"{_LATENT}.o_proj.weight",
    },
    fixed={
        **{"hidden_act": "silu", "attention_bias": False, "moe_layer_freq": 1, "rope_interleave": True},
        **{"scoring_func": "sigmoid", "norm_topk_prob": True, "topk_method": "noaux_tc"},
    },
    defaults={
        **_TIED,
        **{"q_lora_rank": None, "num_key_value_heads": None, "rope_theta": 10_000.0, "num_nextn_predict_layers": 0},
    },
    ignored=frozenset({"auto_map", "aux_loss_alpha", "seq_aux", "ep_size", "head_dim", "qk_head_dim"}),
    model={"router": "sigmoid", "router_bias_rate": 0.0},
    scaling=LATENT_YARN,
)

FAMILIES: Mapping[str, Family] = {
    "GPT2LMHeadModel": Family(
        model_type="gpt2",
        block="gpt2",
        fields={
            "n_embd": "embed",
            "n_layer": "layers",
            "n_head": "heads",
            "n_inner": "mlp",
            "vocab_size": "vocab",
            "n_positions": "sequence",
            "layer_norm_epsilon": "norm_epsilon",
            "tie_word_embeddings": "tied",
        },
        tensors={
            "embedding.token_VD": "transformer.wte.weight",
            "embedding.position_TD": "transformer.wpe.weight",
            "head.norm.scale_D": "transformer.ln_f.weight",
            "head.norm.bias_D": "transformer.ln_f.bias",
            "head.token_VD": "lm_head.weight",
            "blocks.norm1.scale_D": "transformer.h.{layer}.ln_1.weight",
            "blocks.norm1.bias_D": "transformer.h.{layer}.ln_1.bias",
            "blocks.attention.qkv_DCA": "transformer.h.{layer}.attn.c_attn.weight",
            "blocks.attention.qkv_bias_CA": "transformer.h.{layer}.attn.c_attn.bias",
            "blocks.attention.out_AD": "transformer.h.{layer}.attn.c_proj.weight",
            "blocks.attention.out_bias_D": "transformer.h.{layer}.attn.c_proj.bias",
            "blocks.norm2.scale_D": "transformer.h.{layer}.ln_2.weight",
            "blocks.norm2.bias_D": "transformer.h.{layer}.ln_2.bias",
            "blocks.mlp.up_DF": "transformer.h.{layer}.mlp.c_fc.weight",
            "blocks.mlp.up_bias_F": "transformer.h.{layer}.mlp.c_fc.bias",
            "blocks.mlp.down_FD": "transformer.h.{layer}.mlp.c_proj.weight",
            "blocks.mlp.down_bias_D": "transformer.h.{layer}.mlp.c_proj.bias",
        },
        fixed={
            "activation_function": "gelu_new",
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
        defaults={"n_inner": None, "tie_word_embeddings": True},
        linear=False,
    ),
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": dataclasses.replace(
        _LLAMA,
        model_type="mistral",
        fields={**_LLAMA.fields, **_WINDOW},
        fixed={"hidden_act": "silu"},
        defaults={**_TIED, "head_dim": None},
    ),
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen3ForCausalLM": _QWEN3,
    "MixtralForCausalLM": dataclasses.replace(
        _LLAMA,
        model_type="mixtral",
        fields={**_DENSE, **_WINDOW, **_LOCAL_EXPERTS},
        tensors={
            **_LLAMA.tensors,
            "blocks.experts.router_DE": f"{_MOE}.gate.weight",
            "blocks.experts.gate_EDF": f"{_MOE}.experts.{{expert}}.w1.weight",
            "blocks.experts.down_EFD": f"{_MOE}.experts.{{expert}}.w2.weight",
            "blocks.experts.up_EDF": f"{_MOE}.experts.{{expert}}.w3.weight",
        },
        fixed={"hidden_act": "silu", "router_jitter_noise": 0.0},
        defaults={**_TIED, "head_dim": None, "sliding_window": None},
    ),
    "Qwen3MoeForCausalLM": dataclasses.replace(
        _QWEN3,
        model_type="qwen3_moe",
        fields={**_DENSE, **_EXPERTS, "moe_intermediate_size": "expert_mlp"},
        fixed={**_QWEN3.fixed, "decoder_sparse_step": 1, "mlp_only_layers": []},
        defaults={**_TIED, "head_dim": None, "norm_topk_prob": False},
        ignored=frozenset({"sliding_window", "intermediate_size"}),
    ),
    "Dots1ForCausalLM": dataclasses.replace(
        _QWEN3,
        model_type="dots1",
        fields={
            **_LLAMA.fields,
            **_SHARED_EXPERTS,
            **_GROUPS,
        },
        fixed={"hidden_act": "silu", "attention_bias": False, "norm_topk_prob": True, "moe_layer_freq": 1},
        defaults={**_TIED, "head_dim": None, "n_group": 1, "topk_group": 1},
        ignored=frozenset({"sliding_window", "scoring_func"}),
        model={"router": "sigmoid", "router_bias_rate": 0.0},
    ),
    "DeepseekV3ForCausalLM": _DEEPSEEK_V3,
    "DeepseekV2ForCausalLM": dataclasses.replace(
        _DEEPSEEK_V3,
        model_type="deepseek_v2",
        fields={name: ours for name, ours in _DEEPSEEK_V3.fields.items() if name not in _GROUPS and ours != "mtp_loss"},
        fixed={
            **{"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "moe_layer_freq": 1},
            **{"scoring_func": "softmax", "norm_topk_prob": False, "topk_method": "greedy"},
            "routed_scaling_factor": 1.0,
        },
        ignored=_DEEPSEEK_V3.ignored | {"n_group", "topk_group"},  # greedy: of all groups
        model={"router": "softmax"},
    ),
    "OlmoeForCausalLM": dataclasses.replace(
        _LLAMA,
        model_type="olmoe",
        block="olmoe",
        fields={**_DENSE, **_EXPERTS, "intermediate_size": "expert_mlp"},
        fixed={"hidden_act": "silu", "attention_bias": False, "clip_qkv": None},
        defaults={**_LLAMA.defaults, "norm_topk_prob": False},
    ),
    "GptOssForCausalLM": dataclasses.replace(
        _LLAMA,
        model_type="gpt_oss",
        block="gpt_oss",
        fields={**_DENSE, **_WINDOW, **_LOCAL_EXPERTS},
        tensors={
            **_LLAMA.tensors,
            "blocks.attention.out_bias_D": "model.layers.{layer}.self_attn.o_proj.bias",
            "blocks.attention.sink_H": "model.layers.{layer}.self_attn.sinks",
            "blocks.experts.router_DE": f"{_OSS}.router.weight",
            "blocks.experts.logit_bias_E": f"{_OSS}.router.bias",
            "blocks.experts.gate_EDF": f"{_OSS}.experts.gate_up_proj[0::2]",
            "blocks.experts.up_EDF": f"{_OSS}.experts.gate_up_proj[1::2]",
            "blocks.experts.gate_bias_EF": f"{_OSS}.experts.gate_up_proj_bias[0::2]",
            "blocks.experts.up_bias_EF": f"{_OSS}.experts.gate_up_proj_bias[1::2]",
            "blocks.experts.down_EFD": f"{_OSS}.experts.down_proj",
            "blocks.experts.down_bias_ED": f"{_OSS}.experts.down_proj_bias",
        },
        fixed={"hidden_act": "silu", "attention_bias": True, "swiglu_limit": LIMIT, "swiglu_alpha": GAIN},
        defaults={**_TIED, "rope_theta": 150_000.0, "rope_scaling": {**YARN, "factor": 32.0}},
        ignored=frozenset({"experts_per_token", "initial_context_length"}),  # for other programs
        scaling=YARN,
        alternates=True,
    ),
}
"""By the class in transformers that `config.json` names in `architectures`."""
