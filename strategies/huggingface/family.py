"""What a family of Hugging Face transformers models is, and what families share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from strategies.model.rotary import FAST, ORIGINAL_TOKENS, SLOW, YARN_FAST, YARN_SLOW, YARN_TOKENS

SPECIAL_TOKENS = "bos_token_id", "eos_token_id", "pad_token_id"
IGNORED = {
    *("_name_or_path", "architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "use_cache"),
    *(*SPECIAL_TOKENS, "initializer_range", "pretraining_tp", "task_specific_params"),
    *("attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "output_router_logits", "router_aux_loss_coef"),
    *("rope_theta", "rope_scaling", "rope_parameters", "layer_types", "max_window_layers"),
    *("n_ctx", "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout", "summary_proj_to_labels"),
    *("summary_type", "summary_use_proj"),
}
"""Fields that are read elsewhere, or concern dropout, router losses, generation and other tasks than training."""
LLAMA3: Mapping[str, Any] = {
    "rope_type": "llama3",
    "low_freq_factor": SLOW,
    "high_freq_factor": FAST,
    "original_max_position_embeddings": ORIGINAL_TOKENS,
}
"""Llama 3.1's scaling of rotary positions."""
YARN: Mapping[str, Any] = {
    "rope_type": "yarn",
    "beta_fast": YARN_FAST,
    "beta_slow": YARN_SLOW,
    "original_max_position_embeddings": YARN_TOKENS,
    "truncate": False,
}
"""YaRN's scaling as in gpt-oss."""
LATENT_YARN: Mapping[str, Any] = {
    **{name: value for name, value in YARN.items() if name != "truncate"},
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
"""YaRN's scaling as in DeepSeek-V2 and -V3. `GPTConfig.rope_mscale` is the last two."""


@dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
        model_type: in `config.json`.
        block: `GPTConfig.block`.
        fields: `config.json` fields -> `GPTConfig` fields.
        tensors: weight names -> tensor names. {layer} and {expert} are numbers, {part} is q, k or v. [0::2] and [1::2]
            are the even and the odd elements of a tensor's last dim.
        fixed: fields of `config.json` with the only value that is supported.
        defaults: of fields that a file may omit, or have as null; all others are required.
        model: fields of `GPTConfig` that all models of the family share.
        scaling: fields of `rope_scaling`, except the factor, with the only values that are supported.
        alternates: whether layers with and without a window alternate, as `layer_types` says. Otherwise all layers or
            none have a window.
        linear: matrices are stored as in torch's `Linear`, [out, in].
        ignored: fields without effect, in addition to `IGNORED`.
    """

    model_type: str
    block: str
    fields: Mapping[str, str]
    tensors: Mapping[str, str]
    fixed: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    linear: bool = True
    ignored: frozenset[str] = frozenset()
    model: Mapping[str, Any] = field(default_factory=dict)
    scaling: Mapping[str, Any] = field(default_factory=lambda: LLAMA3)
    alternates: bool = False

    @property
    def is_rotary(self) -> bool:
        """Whether positions are rotary. Otherwise they are learned, with one row of a table for each token."""
        return self.linear
