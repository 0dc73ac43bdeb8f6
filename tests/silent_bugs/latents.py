"""Latent attention over devices that split its heads: sums of gradients of what all heads share."""

from typing import Any

import jax
import jax.numpy as jnp

from tests.silent_bugs.changed_implementations import changed_hooks, scaled_gradients, unsummed, without_sum
from tests.silent_bugs.museum import LATENT, SMALL, Bug

WITHOUT_SP = {"sequence_parallel": False}


def own_rotary_key(all_tokens: Any) -> Any:
    """`Hooks.all_tokens` whose transpose sums the gradients of latents, and not of the rotary key after them."""

    @jax.custom_vjp
    def own(x: Any) -> Any:
        return all_tokens(x)

    def transposed(_: None, dx: Any) -> tuple[Any]:
        rotary = LATENT["rotary_size"] if dx.shape[-1] != SMALL.embed else 0
        split = dx.shape[-1] - rotary
        summed = jax.lax.psum(dx[..., :split], "tensor")
        return (jnp.concatenate([summed, unsummed(dx[..., split:], "tensor")], -1),)

    own.defvjp(lambda x: (all_tokens(x), None), transposed)
    return own


BUGS = [
    Bug(
        "rotary-key-without-sum",
        "https://github.com/NVIDIA/Megatron-LM/pull/6839",
        "Without sequence parallelism the gradient of the rotary key was not reduced over tensor ranks; latents' was.",
        "gradient of the rotary key: one device's heads instead of all",
        "down_DL",
        "tensor",
        "tensor=2",
        changed_hooks(all_tokens=own_rotary_key),
        LATENT,
        WITHOUT_SP,
    ),
    Bug(
        "latents-without-sum",
        "https://github.com/PaddlePaddle/PaddleFleet/pull/2008",
        "Under sequence parallelism replicated projections to latents were not marked to be reduced over tensor ranks.",
        "gradients of both projections to latents: one device's tokens instead of all",
        "down_D[LQ]",
        "tensor",
        "tensor=2",
        without_sum(r"blocks.attention.(query_)?down_D[LQ]", "tensor"),
        LATENT,
    ),
    Bug(
        "latents-summed-twice",
        "https://github.com/inclusionAI/AReno/pull/496",
        "Gradients of replicated projections to latents were reduced over tensor ranks, which had summed them before.",
        "gradients of the projection to query latents and of their norm: twice",
        "query_(down|norm)",
        "tensor",
        "tensor=2",
        scaled_gradients(r"blocks.attention.query_(down_DQ|norm_Q)", 2),
        LATENT,
        WITHOUT_SP,
    ),
]
