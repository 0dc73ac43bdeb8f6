"""Folders of Hugging Face: what is read is what was stored, under every strategy, and what is written is what was read.

That tensors are the weights that transformers takes them for is held by tests/oracle.
"""

import dataclasses
import json

import numpy as np
import pytest

from strategies import PRESETS, CheckpointError, TrainConfig
from strategies.checkpoints import save
from strategies.huggingface import folder as module
from strategies.huggingface import read, safetensors, tensors, write
from strategies.huggingface.config_json import config_of, facts_of
from strategies.huggingface.family import LLAMA3 as SCALING
from strategies.huggingface.family import YARN
from strategies.model.gpt import param_count
from strategies.registry import STRATEGIES
from tests.strategies.folders import CONFIGS, LLAMA, bytes_of, folder_of, rewrite
from tests.strategies.sampling import nightly

GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131_072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150_000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201_088,
}
"""Of the `config.json` of gpt-oss-20b."""


@pytest.mark.parametrize(
    ("kind", "mesh", "dtype"),
    [
        ("llama", "fsdp=4", "bfloat16"),
        ("llama", "tensor=2", "float16"),
        ("llama", "pipeline=2", "float32"),
        ("mixtral", "expert=4", "bfloat16"),
        ("dots1", "fsdp=2", "float32"),
        ("deepseek-v3", "tensor=2", "bfloat16"),
        ("gpt-oss", "expert=4", "bfloat16"),
        ("gpt2", "tensor=4", "bfloat16"),
        ("gpt2", "pipeline=2", "float32"),
        *nightly(
            ("dots1", "expert=4", "bfloat16"),
            ("deepseek-v3", "fsdp=2", "float32"),
            ("deepseek-v2", "expert=4", "float16"),
            ("deepseek-v2", "pipeline=2", "bfloat16"),
            ("mixtral", "tensor=2", "bfloat16"),
            ("mixtral", "pipeline=2", "bfloat16"),
            ("gpt-oss", "tensor=2", "float32"),
            ("gpt2", "fsdp=2", "float16"),
        ),
    ],
)
def test_a_folder_is_written_as_it_was_read(kind, mesh, dtype, tmp_path, monkeypatch):
    """By way of the state of a strategy and a checkpoint, to the bit, in one file or in several."""
    config = CONFIGS[kind]
    original = folder_of(tmp_path / "original", config, dtype)
    step = STRATEGIES[mesh.partition("=")[0]].build(config, mesh, TrainConfig(batch_size=8))
    save(step, read(original).state(step), tmp_path / "checkpoints").wait()
    monkeypatch.setattr(module, "MOST_FILE_BYTES", 4096 if dtype == "float32" else 10**9)
    monkeypatch.setattr(module, "MOST_TILE_BYTES", 1024)
    write(tmp_path / "written", tmp_path / "checkpoints", dtype=dtype)
    assert (tmp_path / "written" / module.INDEX).exists() == (dtype == "float32")
    assert json.loads((tmp_path / "written" / module.CONFIG).read_text()) == facts_of(config, dtype)[1]
    assert bytes_of(tmp_path / "written") == bytes_of(original)


def test_each_weight_is_read_once(tmp_path, monkeypatch):
    """A device reads its own shard: all devices together read as many elements as the model has."""
    folder, found = folder_of(tmp_path / "folder", LLAMA, "float32"), []
    read_range = tensors.Layout.read

    def counted(layout: tensors.Layout, there: tensors.Tensors, index: tuple[slice, ...], values: np.ndarray) -> None:
        found.append(values.size)
        read_range(layout, there, index, values)

    monkeypatch.setattr(tensors.Layout, "read", counted)
    read(folder).state(STRATEGIES["fsdp"].build(LLAMA, "fsdp=8", TrainConfig(batch_size=8)))
    assert sum(found) == param_count(LLAMA)
    assert max(found) == 2 * 16 * 4 * 16 // 8, "an eighth of the largest weight, queries, keys and values"


def test_a_shorter_sequence_and_losses_of_routers_are_of_the_training(tmp_path):
    """They are no part of the model in a folder; everything else is, and learned positions have one length."""
    mixtral = read(folder_of(tmp_path / "mixtral", CONFIGS["mixtral"], "float32"))
    mixtral.require_same(dataclasses.replace(mixtral.config, sequence=4, balance_loss=0.1, capacity_factor=2.0))
    with pytest.raises(
        ValueError, match=r"config.json has sequence=8, attention_window=4, which cannot be sequence=16"
    ):
        mixtral.require_same(dataclasses.replace(mixtral.config, sequence=16, attention_window=None))
    gpt2 = read(folder_of(tmp_path / "gpt2", CONFIGS["gpt2"], "float32"))
    with pytest.raises(ValueError, match=r"config.json has sequence=8, which cannot be sequence=4"):
        gpt2.state(STRATEGIES["single"].build(dataclasses.replace(gpt2.config, sequence=4), "data=1", TrainConfig(1)))


def test_old_folders_are_read(tmp_path):
    """GPT-2 was released without a prefix and with masks, and some tied models have their table twice."""
    folder = folder_of(tmp_path / "folder", CONFIGS["gpt2"], "float32")
    there = {name.removeprefix("transformer."): tensor.copy() for name, tensor in read(folder).tensors.items()}
    there |= {"h.0.attn.bias": np.ones((1, 1, 8, 8), np.float32), "lm_head.weight": there["wte.weight"]}
    expected = bytes_of(folder)
    rewrite(folder, there)
    assert bytes_of(folder) == expected
    rewrite(folder, {**there, "lm_head.weight": 2 * there["wte.weight"]})
    with pytest.raises(ValueError, match=r"1 tensors that no weight of config.json is: lm_head.weight"):
        read(folder)


def test_copies_of_the_tables_are_read(tmp_path):
    """DeepSeek-V3 was released with both tables once more, in the MTP block."""
    folder = folder_of(tmp_path / "folder", CONFIGS["deepseek-v3"], "float32")
    there, expected = {name: tensor.copy() for name, tensor in read(folder).tensors.items()}, bytes_of(folder)
    block = f"model.layers.{CONFIGS['deepseek-v3'].layers}"
    head, table = f"{block}.shared_head.head.weight", f"{block}.embed_tokens.weight"
    there |= {head: there["lm_head.weight"], table: there["model.embed_tokens.weight"]}
    rewrite(folder, there)
    assert bytes_of(folder) == expected
    rewrite(folder, {**there, head: there["model.embed_tokens.weight"]})
    with pytest.raises(ValueError, match=rf"1 tensors that no weight of config.json is: {head}"):
        read(folder)
    rewrite(folder, {name: tensor for name, tensor in there.items() if not name.startswith(block)})
    with pytest.raises(ValueError, match=r"lacks .*; set num_nextn_predict_layers to 0"):
        read(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, r'has architectures: \["GemmaForCausalLM"\]; supported is a list of'),
        ({"attention_bias": True}, "has attention_bias: true; only false is supported"),
        ({"hidden_act": "gelu"}, 'has hidden_act: "gelu"; only "silu" is supported'),
        ({"quantization_config": {"bits": 4}}, r"save them dequantized, for MXFP4 with .*Mxfp4Config\(dequantize=True"),
        ({"quantization_config": {"quant_method": "fp8"}}, r"save them dequantized, .* for FP8 with fp8_cast_bf16\.py"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "has rope_type: dynamic; supported are default and llama3"),
        ({"rope_scaling": {**SCALING, "factor": 8.0, "low_freq_factor": 2}}, "has low_freq_factor: 2; only 1 is"),
        ({"rope_scaling": {**SCALING, "factor": None}}, "lacks factor of rope_scaling"),
        ({"rope_scaling": {**SCALING, "factor": 8.0, "mscale": 2}}, "has mscale: 2; only null is supported"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "lacks low_freq_factor, .* of rope_scaling"),
        ({"rope_scaling": {"factor": 8.0}}, "has factor: 8.0; only 1.0 is supported without a rope_type"),
        ({"rope_scaling": {"type": "default", "beta_fast": 32}}, "beta_fast: 32; only null is .* rope_type default"),
        ({"rope_scaling": 3}, "rope_scaling is 3; it must be an object"),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            "has layer_types with sliding_attention; all layers",
        ),
        ({"num_attention_heads": 3}, "key_heads=2 does not divide heads=3"),
        ({"num_hidden_layers": "2"}, "layers='2'; it must be a whole number"),
        ({"hidden_size": None}, "embed=None; it must be a whole number"),
        ({"num_hidden_layers": 1}, r"has 9 tensors that no weight of config.json is: model.layers.1.\S+, .*, \.\.\.$"),
        ({"num_hidden_layers": 3}, r"lacks 9 tensors of config.json: model.layers.2.\S+, .*, \.\.\.$"),
        ({"vocab_size": 32}, r"model.embed_tokens.weight has shape \[31, 16\], and config.json says \[32, 16\]"),
        ({"tie_word_embeddings": True}, "has 1 tensors that no weight of config.json is: lm_head.weight"),
        ({"vocab_size": ...}, "config.json lacks vocab_size"),
    ],
)
def test_another_model_is_refused(changes, message, tmp_path):
    """In one line that names the field or the tensors; `...` is a field that is not there."""
    folder = folder_of(tmp_path / "folder", LLAMA, "bfloat16")
    facts = json.loads((folder / module.CONFIG).read_text()) | changes
    (folder / module.CONFIG).write_text(json.dumps({name: facts[name] for name in facts if facts[name] is not ...}))
    with pytest.raises(ValueError, match=message) as caught:
        read(folder)
    assert "\n" not in str(caught.value)


def test_the_released_gpt_oss_is_the_preset():
    """By the fields of its `config.json`, but for the quantization; null is what transformers takes by default."""
    assert config_of(GPT_OSS, "config.json")[1] == PRESETS["gpt-oss-20b"]
    assert config_of({**GPT_OSS, "rope_scaling": None}, "config.json")[1] == PRESETS["gpt-oss-20b"]
    dense = config_of({**GPT_OSS, "layer_types": ["full_attention"] * 24}, "config.json")[1]
    assert (dense.attention_window, dense.full_attention_every) == (None, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"quantization_config": {"quant_method": "mxfp4"}},
            r"save them dequantized, for MXFP4 with .*\(dequantize=True",
        ),
        ({"attention_bias": False}, "has attention_bias: false; only true is supported"),
        ({"swiglu_limit": 10.0}, "has swiglu_limit: 10.0; only 7.0 is supported"),
        ({"rope_scaling": {**YARN, "factor": 32.0, "truncate": True}}, "has truncate: true; only false is supported"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 32.0}}, "lacks beta_fast, .*, truncate of rope_scaling"),
        ({"layer_types": ["full_attention", "sliding_attention"] * 12}, "every Nth of 24 layers can have full"),
        ({"layer_types": None}, r"has layer_types: \[\]; every Nth of 24 layers"),
        ({"sliding_window": None}, "has sliding_window: null, and layer_types with sliding_attention; set"),
    ],
)
def test_another_gpt_oss_is_refused(changes, message):
    """In one line that names the field."""
    with pytest.raises(ValueError, match=message) as caught:
        config_of({**GPT_OSS, **changes}, "config.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (b'"F32"', b'"F64"', r": model\.\S+ has dtype F64; supported are F32, BF16, F16"),
        (b"[31, 16]", b"[31, 15]", r"of shape \[31, 15\] is in bytes 15,616 to 17,600, after 15,616"),
        (b'{"__meta', b"\xff\xff__meta", "cut short or not JSON"),
        (b"\0\0\0\0", b"\0\0\1\0", r"cut short or not safetensors: its header has 4,294,\d+,\d+ bytes"),
    ],
)
def test_a_damaged_file_is_refused(before, after, message, tmp_path):
    """Its header must be what its bytes are."""
    file = folder_of(tmp_path / "folder", LLAMA, "float32") / module.FILE
    content = file.read_bytes()
    file.write_bytes(content.replace(before, after, 1))
    with pytest.raises(ValueError, match=message):
        safetensors.opened(file)
    file.write_bytes(content[:-1])
    with pytest.raises(ValueError, match=r"has 1\d,\d+ bytes of tensors, and its header says"):
        safetensors.opened(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_stride": 4}, "LlamaForCausalLM does not have attention_stride=4"),
        ({"block": "gpt2", "rope_factor": 1.0}, "GPT2LMHeadModel does not have key_heads=2"),
        ({"block": "gpt_oss", "experts": 4, "shared_mlp": 8}, "GptOssForCausalLM does not have shared_mlp=8"),
        ({"experts": 4, "shared_mlp": 8, "rope_factor": 1.0}, "MixtralForCausalLM does not have shared_mlp=8"),
        ({"block": "gpt2", "key_heads": None, "experts": 4}, "no family of Hugging Face has block=gpt2 with experts"),
    ],
)
def test_a_model_that_no_family_has_is_refused(changes, message):
    """When it is written, by what the nearest family lacks."""
    with pytest.raises(ValueError, match=message):
        facts_of(dataclasses.replace(LLAMA, **changes), "float32")


def test_nothing_is_overwritten(tmp_path):
    """A folder with something in it is refused, and the reading of a checkpoint that is damaged leaves no folder."""
    step = STRATEGIES["single"].build(LLAMA, "data=1", TrainConfig(batch_size=1))
    save(step, read(folder_of(tmp_path / "original", LLAMA, "float32")).state(step), tmp_path / "saved").wait()
    with pytest.raises(ValueError, match="original has something in it already; name another folder"):
        write(tmp_path / "original", tmp_path / "saved")
    (tmp_path / "saved" / "0" / "params" / "blocks.mlp.up_DF" / "c" / "0" / "0" / "0").unlink()
    with pytest.raises(CheckpointError, match=r"damaged: params/blocks.mlp.up_DF has \d of \d chunks"):
        write(tmp_path / "written", tmp_path / "saved")
    assert {path.name for path in tmp_path.iterdir()} == {"original", "saved"}
