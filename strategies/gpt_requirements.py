"""What fields of a model must fit together, and which have an effect only with others."""

import re
from dataclasses import fields
from typing import Any

from strategies.infeasible import Infeasible, require_at_most, require_divides

ROUTINGS = "learned", "balanced", "one"
"""Values of `GPTConfig.routing` in addition to zipf=X."""
MOST_UNEVEN = 8.0
"""The largest X of zipf=X. With it nearly all tokens already choose the same experts."""
OF_SIGMOIDS = "routed_scale", "router_bias_rate", "router_groups", "groups_per_token"
"""Fields of `GPTConfig` that need router="sigmoid"."""
OF_EXPERTS = (
    *("dense_layers", "experts_per_token", "expert_mlp", "shared_mlp", "router", "routing", *OF_SIGMOIDS),
    *("capacity_factor", "expert_group", "balance_loss", "balance_over", "router_z_loss"),
)
"""Fields of `GPTConfig` that need `experts`."""
OF_LATENTS = "query_rank", "rotary_size", "value_size", "rope_mscale"
"""Fields of `GPTConfig` that need `latent_rank`."""


def require_fitting(config: Any) -> None:
    """Refuse fields of a `GPTConfig` that do not go together, and those without effect."""
    if config.head_size is None:
        require_divides("heads", config.heads, "it", embed=config.embed)
    if config.key_heads is not None:
        require_divides("key_heads", config.key_heads, "it", heads=config.heads)
    if every := config.full_attention_every:
        require_divides("full_attention_every", every, "it", layers=config.layers)
        if dense := config.dense_layers:
            problem = f"full_attention_every={every} does not go with dense_layers={dense}"
            raise Infeasible(f"{problem}; omit one of them")
    _require_latents(config)
    _require_pattern(config)
    _require_experts(config)


def _require_latents(config: Any) -> None:
    """Refuse latent attention without its sizes, and its sizes without it."""
    if config.latent_rank is None:
        _require_left_out(config, OF_LATENTS, "latent attention; set latent_rank")
        return
    if config.rotary_size is None or config.value_size is None or config.head_size is None:
        problem = f"latent_rank={config.latent_rank} needs head_size, rotary_size and value_size"
        raise Infeasible(f"{problem}; in DeepSeek-V3 they are 192, 64 and 128")
    if config.rotary_size % 2 or config.rotary_size >= config.head_size:
        allowed = f"it must be even and less than head_size={config.head_size}"
        raise Infeasible(f"rotary_size={config.rotary_size}; {allowed}")
    if config.key_heads not in (None, config.heads):
        raise Infeasible(
            f"key_heads={config.key_heads} does not go with latent_rank, which has no KV heads; omit key_heads"
        )
    if config.rope_factor == 1:
        _require_left_out(config, ("rope_mscale",), "scaled rotary positions; set rope_factor")


def _require_pattern(config: Any) -> None:
    """Refuse options of sparse attention that do not go together."""
    pattern, stride, summary = config.attention_pattern, config.attention_stride, config.attention_summary
    if stride is not None:
        require_divides("attention_stride", stride, "it", sequence=config.sequence)
    if pattern == "strided":
        if summary != 1:
            raise Infeasible(f"attention_summary={summary} is for attention_pattern=fixed; omit it")
    elif stride is None:
        raise Infeasible("attention_pattern=fixed has blocks of attention_stride tokens; set attention_stride")
    elif config.attention_window is not None:
        problem = f"attention_window={config.attention_window} does not go with attention_pattern=fixed"
        raise Infeasible(f"{problem}, whose blocks have attention_stride={stride} tokens; omit one of them")
    elif summary > stride:
        problem = f"attention_summary={summary} is more than the attention_stride={stride} tokens of a block"
        raise Infeasible(f"{problem}; use at most {stride}")


def _require_experts(config: Any) -> None:
    """Refuse more experts per token than experts, groups that do not divide a sequence, and expert fields without
    experts.

    Only sigmoid scores have a scale, biases and groups, as in DeepSeek-V3.
    """
    if config.experts is None:
        _require_left_out(config, OF_EXPERTS, "a model with experts; set experts")
        return
    if config.dense_layers >= config.layers:
        raise Infeasible(
            f"dense_layers={config.dense_layers} leaves no layer with experts; take fewer than {config.layers}"
        )
    require_at_most("experts_per_token", config.experts_per_token, experts=config.experts)
    require_divides("expert_group", config.group_tokens, "it", sequence=config.sequence)
    if config.router != "sigmoid":
        _require_left_out(config, OF_SIGMOIDS, "router=sigmoid; omit it")
    if not config.balance_loss:
        _require_left_out(config, ("balance_over",), "a model with a balance loss; set balance_loss")
    require_divides("router_groups", config.router_groups, "it", experts=config.experts)
    require_at_most("groups_per_token", config.groups_per_token, router_groups=config.router_groups)
    reach = config.experts // config.router_groups * config.groups_per_token
    if config.experts_per_token > reach:
        groups = f"the groups_per_token={config.groups_per_token} groups of a token have {reach} experts"
        raise Infeasible(
            f"{groups}, fewer than experts_per_token={config.experts_per_token}; use more groups_per_token"
        )
    if config.routing not in ROUTINGS and not 0 < zipf_exponent(config.routing) <= MOST_UNEVEN:
        kinds = f"it can be {', '.join(ROUTINGS)} or zipf=X with X above 0 and up to {MOST_UNEVEN:g}, such as zipf=1.2"
        raise Infeasible(f"routing={config.routing!r}; {kinds}")


def zipf_exponent(routing: str) -> float:
    """The exponent X of "zipf=X"; 0 for other routings.

    >>> zipf_exponent("zipf=1.2"), zipf_exponent("balanced")
    (1.2, 0.0)
    """
    found = re.fullmatch(r"zipf=([0-9]{1,4}(\.[0-9]{1,4})?)", routing)
    return float(found[1]) if found else 0.0


def _require_left_out(config: Any, names: tuple[str, ...], needed: str) -> None:
    """Refuse fields without effect."""
    defaults = {each.name: each.default for each in fields(config) if each.name in names}
    if given := [name for name, default in defaults.items() if getattr(config, name) != default]:
        raise Infeasible(f"{given[0]}={getattr(config, given[0])!r} is for {needed}")
