"""A folder's `config.json` <-> `GPTConfig`.

Every field of `config.json` must be a field of `GPTConfig`, have the only value that is supported for the family, or
have no effect on training. All others are refused by name, so that no other model is trained silently.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from strategies.gpt_config import GPTConfig
from strategies.huggingface.families import FAMILIES
from strategies.huggingface.family import IGNORED, SPECIAL_TOKENS, Family
from strategies.infeasible import Infeasible
from strategies.model.block import block_of
from strategies.model.gpt import resolved
from strategies.schema import checked

OF_TRAINING = {"vocab_multiple", "capacity_factor", "expert_group", "balance_loss", "balance_over", "router_z_loss"}
"""Fields of `GPTConfig` that a folder does not have, because they are chosen for each training."""
OPTIONAL_PARTS = "experts", "latent_rank"
"""Fields of `GPTConfig` that all models of a family have, or none."""
MTP_LOSS = 0.3
"""Factor of the loss of multi-token prediction, which a file does not have ("DeepSeek-V3 Technical Report", section
4.2)."""
FULL, SLIDING = "full_attention", "sliding_attention"
"""Values of `layer_types`."""
_ALIASES = {
    "qwen3_moe": {"num_local_experts": "num_experts"},
    "deepseek_v3": {"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    "deepseek_v2": {"num_experts": "n_routed_experts"},
}
"""Names of fields in transformers 5, and their names in released files."""


class HuggingFaceError(ValueError):
    """A folder cannot be read or written. The message names the file, and the field or the tensor."""


def config_of(facts: Mapping[str, Any], where: str) -> tuple[Family, GPTConfig]:
    """The family and the configuration of a `config.json`."""
    names = facts.get("architectures")
    family = next((family for name, family in FAMILIES.items() if names == [name]), None)
    if family is None:
        supported = f"supported is a list of one of {', '.join(FAMILIES)}"
        raise HuggingFaceError(f"{where} has architectures: {json.dumps(names)}; {supported}")
    if facts.get("model_type") not in (None, family.model_type):
        stated = f"model_type: {json.dumps(facts['model_type'])} and architectures: {json.dumps(names)}"
        raise HuggingFaceError(f"{where} has {stated}, which have model_type {family.model_type}; correct one of them")
    aliases = _ALIASES.get(family.model_type, {})
    facts = {aliases.get(name, name): value for name, value in facts.items()}
    facts = {**facts, **{name: value for name, value in family.defaults.items() if facts.get(name) is None}}
    _require_supported(facts, family, where)
    values = {ours: facts[name] for name, ours in family.fields.items()}
    if isinstance(values.get("router"), bool):
        values["router"] = "renormalised" if values["router"] else "softmax"
    if "shared_mlp" in values:  # a file has the number of shared experts
        values["shared_mlp"] = (values["shared_mlp"] or 0) * values["expert_mlp"] or None
    if "rotary_size" in values:  # a file has the features of a head without the rotary ones
        sizes = (
            checked(facts[f"qk_{part}_head_dim"], int, f"{where}: qk_{part}_head_dim") for part in ("nope", "rope")
        )
        values["head_size"] = sum(sizes)
    if "mtp_loss" in values:
        field = "num_nextn_predict_layers"
        if (layers := checked(values["mtp_loss"], int, f"{where}: {field}")) not in (0, 1):
            raise HuggingFaceError(f"{where} has {field}: {layers}; only 0 and 1 are supported")
        values["mtp_loss"] = MTP_LOSS * layers
    values |= _windows(facts, family, where)
    if family.is_rotary:
        values |= _rope(facts, family, where)
    try:
        config = GPTConfig(block=family.block, **family.model, **values)
        block_of(config)
    except Infeasible as error:
        raise HuggingFaceError(f"{where}: {error}") from error
    return family, config


def _require_supported(facts: Mapping[str, Any], family: Family, where: str) -> None:
    """Refuse a file that lacks a field, has an unknown one, or has another value than the only supported one."""
    if facts.get("quantization_config"):
        loaded = "from_pretrained(FOLDER, quantization_config=Mxfp4Config(dequantize=True))"
        way_out = f"save them dequantized, for MXFP4 with {loaded} and save_pretrained of transformers"
        way_out += ", for FP8 with fp8_cast_bf16.py of the repository deepseek-ai/DeepSeek-V3"
        raise HuggingFaceError(f"{where} has quantization_config, and quantized weights are not read; {way_out}")
    if lacking := [name for name in family.fields if name not in facts]:
        raise HuggingFaceError(f"{where} lacks {', '.join(lacking)}")
    for name, value in family.fixed.items():
        if facts.get(name, value) != value:
            shown = f"{name}: {json.dumps(facts[name])}"
            raise HuggingFaceError(f"{where} has {shown}; only {json.dumps(value)} is supported")
    known = {*family.fields, *family.fixed, *family.ignored, *IGNORED}
    for name, value in facts.items():
        if name not in known and value not in (None, False, [], {}):
            raise HuggingFaceError(f"{where} has {name}: {json.dumps(value)}, which is not supported")


def _windows(facts: Mapping[str, Any], family: Family, where: str) -> dict[str, Any]:
    """The fields of windows that follow from `layer_types`."""
    types = checked(facts.get("layer_types") or [], list[str], f"{where}: layer_types")
    window = SLIDING if "sliding_window" in family.fields and facts["sliding_window"] else FULL
    if not family.alternates:
        if others := {*types} - {window}:
            raise HuggingFaceError(f"{where} has layer_types with {min(others)}; all layers must have {window}")
        return {}
    if SLIDING in types and window == FULL:
        shown = f"sliding_window: {json.dumps(facts['sliding_window'])}"
        raise HuggingFaceError(f"{where} has {shown}, and layer_types with {SLIDING}; set sliding_window to a number")
    layers, every = facts["num_hidden_layers"], types.index(FULL) + 1 if FULL in types else None
    if len(types) != layers or types != _layer_types(len(types), window, every):
        supported = f"every Nth of {layers} layers can have {FULL}, and all others {window}"
        raise HuggingFaceError(f"{where} has layer_types: {json.dumps(types)}; {supported}")
    return {"attention_window": None} if every == 1 else {"full_attention_every": every}


def _layer_types(layers: int, window: str, every: int | None) -> list[str]:
    return [FULL if every and layer % every == 0 else window for layer in range(1, layers + 1)]


def _rope(facts: Mapping[str, Any], family: Family, where: str) -> dict[str, Any]:
    """The fields of rotary positions, in the format of transformers 4 or 5."""
    found = facts.get("rope_parameters") or facts.get("rope_scaling") or {}
    given = checked(found, dict[str, Any], f"{where}: rope_scaling")
    rope = {name: value for name, value in given.items() if value is not None}
    theta, kind = rope.get("rope_theta", facts.get("rope_theta")), rope.get("rope_type", rope.get("type", "default"))
    if theta is None:
        raise HuggingFaceError(f"{where} lacks rope_theta")
    if kind == "default":
        factor, only = 1.0, {"factor": 1.0}
    elif kind != family.scaling["rope_type"]:
        raise HuggingFaceError(
            f"{where} has rope_type: {kind}; supported are default and {family.scaling['rope_type']}"
        )
    elif lacking := [name for name in ("factor", *family.scaling) if name not in {"rope_type", *rope}]:
        raise HuggingFaceError(f"{where} lacks {', '.join(lacking)} of rope_scaling")
    else:
        factor, only = rope["factor"], _with_mscale(family.scaling, rope.get("mscale_all_dim"))
    others = rope.keys() - {"rope_type", "type", "rope_theta", "factor"}
    for name, value in {**dict.fromkeys(others), **only, "partial_rotary_factor": 1.0}.items():
        if rope.get(name, value) != value:
            shown = f"{name}: {json.dumps(rope[name])}"
            typed = f"with rope_type {kind}" if {"rope_type", "type"} & {*rope} else "without a rope_type"
            raise HuggingFaceError(f"{where} has {shown}; only {json.dumps(value)} is supported {typed}")
    scores = {"rope_mscale": only["mscale"]} if "mscale" in only and factor != 1 else {}
    return {"rope_theta": theta, "rope_factor": factor, **scores}


def _with_mscale(scaling: Mapping[str, Any], mscale: Any) -> Mapping[str, Any]:
    """YaRN's fields with this `mscale_all_dim`. With an equal `mscale` rotated features are not scaled."""
    return {**scaling, "mscale": mscale, "mscale_all_dim": mscale} if "mscale" in scaling else scaling


def facts_of(config: GPTConfig, dtype: str) -> tuple[Family, dict[str, Any]]:
    """The first family that can express the whole model, and its `config.json`."""
    own = dataclasses.asdict(config) | {"mlp": config.mlp_dim}
    own |= {"key_heads": config.key_heads or config.heads, "expert_mlp": config.dim_sizes["expert_mlp"]}
    own |= {"router": config.router == "renormalised", "mtp_loss": int(config.mtp_loss > 0)}
    own |= {"head_size": config.head_dim - (config.rotary_size or 0)}
    own |= {"shared_mlp": (config.shared_mlp or 0) // config.dim_sizes["expert_mlp"]}
    has, lacking = {part for part in OPTIONAL_PARTS if getattr(config, part) is not None}, []
    for name, family in FAMILIES.items():
        parts = {part for part in OPTIONAL_PARTS if part in family.fields.values()}
        if family.block != config.block or parts != has:
            continue
        facts = {"architectures": [name], "model_type": family.model_type, "torch_dtype": dtype}
        facts |= {**{theirs: own[ours] for theirs, ours in family.fields.items()}, **family.fixed}
        facts |= dict.fromkeys(SPECIAL_TOKENS)
        if family.is_rotary:
            scaled = config.rope_factor > 1 or "rope_scaling" in family.defaults
            scaling = {**_with_mscale(family.scaling, config.rope_mscale), "factor": config.rope_factor}
            scaling = scaling if scaled else None
            facts |= {"rope_theta": config.rope_theta, "rope_scaling": scaling}
        if family.alternates:
            window = SLIDING if config.attention_window else FULL
            facts["layer_types"] = _layer_types(config.layers, window, config.full_attention_every)
        if not (differing := differences(config_of(facts, name)[1], config)):
            return family, facts
        lacking = lacking or [f"{name} does not have {' and '.join(differing)}"]
    kind = f"block={config.block}{' with ' if has else ''}{' and '.join(sorted(has))}"
    raise HuggingFaceError(f"{lacking[0] if lacking else f'no family of Hugging Face has {kind}'}")


def kept_by(family: Family) -> list[str]:
    """Fields of `config.json` that a folder keeps by way of a training run: a step does not have them."""
    longest = [theirs for theirs, ours in family.fields.items() if ours == "sequence" and family.is_rotary]
    return [*SPECIAL_TOKENS, *longest]


def differences(config: GPTConfig, other: GPTConfig, but: Iterable[str] = ()) -> list[str]:
    """Fields, such as "layers=4", in which a model differs from another. Fields of training do not count."""

    def own(model: GPTConfig) -> dict[str, Any]:
        facts = dataclasses.asdict(resolved(model)) | {"attention_window": model.attention_window}
        facts |= {"mtp_loss": MTP_LOSS * (model.mtp_loss > 0)}
        if not model.experts:
            return facts
        # A rate of zero stands for any rate: biases belong to the model, their rate to training.
        rate = None if model.router_bias_rate is None else 0.0
        mlp = facts["mlp"] if model.dense_layers else None
        return facts | {"mlp": mlp, "expert_mlp": model.dim_sizes["expert_mlp"], "router_bias_rate": rate}

    one, two = own(config), own(other)
    names = [name for name in one if name not in {*OF_TRAINING, *but}]
    return [f"{name}={two[name]}" for name in names if one[name] != two[name]]
