"""How evenly the routers of a step spread tokens over experts, counted by a forward pass of its own (`Step.load`).

It runs the layers one after another on all devices, with the hooks of the step. The weights of a layer that a pipeline
has on one stage come to the others.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from strategies.core.plan import Plan
from strategies.device_mesh import mark_missing
from strategies.model.experts import Experts
from strategies.model.gpt import GPT
from strategies.model.layer_info import LayerInfo
from strategies.model.layer_passes import read_slot
from strategies.model.router import choices_of
from strategies.step import Implementation, Load, Tokens


def expert_load(model: GPT, tokens_BS: Tokens, plan: Plan, implementation: Implementation) -> Load:
    """The load of each layer for a batch. Runs inside `jax.shard_map` unless the compiler partitions the step."""
    whole, layers, experts = implementation.compiler_partitioned, plan.config.blocks, plan.config.dim_sizes["experts"]
    stages = () if whole else plan.over(plan.axes_of("layers"))
    stored = nnx.split(model.blocks)[1]
    held = len(jax.tree.leaves(stored)[0])
    slots = implementation.layer_slots or range(layers)

    def layer(x_BTD: Array, slot: Array) -> tuple[Array, Array]:
        weights = read_slot(stored, slot % held)
        if stages:
            here = slot // held == lax.axis_index(stages)
            weights = jax.tree.map(lambda w: lax.psum(jnp.where(here, w, 0), stages), weights)
        block, info, loads = model.block(weights), model.layer_info, []
        parts = [getattr(block, name) for name in block.parts]
        for norm, branch in zip(parts[::2], parts[1::2], strict=True):
            normed_BTD = info.hooks.all_tokens(norm(x_BTD))
            loads += [_counted(branch, normed_BTD, info)] if isinstance(branch, Experts) else []
            x_BTD, _ = branch(x_BTD, normed_BTD, info)
        return x_BTD, jnp.stack(loads)

    x_BTD = model.embed(tokens_BS[:, :-1])
    slot_L = jnp.array([slots.index(layer) for layer in range(layers)])
    _, load_LX = lax.scan(layer, x_BTD, slot_L)
    load_LX = load_LX.reshape(-1, 2 * experts + 1)  # those of a block's layers, one after another
    load_LX = load_LX if whole else _summed(load_LX, plan)
    return Load(load_LX[:, :experts], load_LX[:, experts:-1], load_LX[:, -1])


def _counted(experts: Experts, normed_BTD: Array, info: LayerInfo) -> Float[Array, " X"]:
    """Of this device's tokens: choices of each expert, sums of its probabilities, and how many are dropped."""
    config = experts.config
    routes = experts.routes(normed_BTD.reshape(-1, config.embed), info)
    group = normed_BTD.shape[1] if config.capacity_factor is None else config.group_tokens
    experts_Gtk = routes.experts_Nk.reshape(-1, group, config.experts_per_token)
    count_GE = jax.vmap(partial(choices_of, experts=config.dim_sizes["experts"]))(experts_Gtk)
    dropped = jnp.maximum(count_GE - config.capacity, 0).sum()
    return jnp.concatenate([count_GE.sum(0), routes.probs_NE.sum(0), dropped[None]])


def _summed(load_LX: Float[Array, "L X"], plan: Plan) -> Float[Array, "L X"]:
    """The sums over devices that split the tokens. All others have counted the same tokens."""
    axes = tuple(axis for axis, _ in plan.mesh.axes)
    copies = plan.mesh.size // plan.size(*plan.placement.batch, *plan.placement.tokens)
    return lax.psum(mark_missing(load_LX, axes), axes) / copies
