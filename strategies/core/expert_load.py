"""How evenly the routers of a step spread tokens over experts, measured by a separate forward pass (`Step.load`).

It runs the layers one by one on all devices, with the step's hooks, and reads the sums of their mixtures of experts. A
layer's weights that are on one pipeline stage are sent to the others.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from strategies.core.gradients import total_of_microbatches
from strategies.core.plan import Plan
from strategies.device_mesh import mark_missing
from strategies.model.experts import Experts
from strategies.model.gpt import GPT
from strategies.model.passes import read_slot
from strategies.step import Implementation, Load, Tokens


def expert_load(model: GPT, tokens_BS: Tokens, plan: Plan, implementation: Implementation) -> Load:
    """The load of each layer for a batch. Runs inside `jax.shard_map` unless the compiler partitions the step."""
    whole, layers, experts = implementation.compiler_partitioned, plan.config.blocks, plan.config.dim_sizes["experts"]
    stages = () if whole else plan.over(plan.axes_of("layers"))
    stored = nnx.split(model.blocks)[1]
    held = len(jax.tree.leaves(stored)[0])
    slots = plan.slots if plan.staged else range(layers)
    slot_L = jnp.array([slots.index(layer) for layer in range(layers)])

    def layer(x_BTD: Array, slot: Array) -> tuple[Array, Array]:
        weights = read_slot(stored, slot % held)
        if stages:
            here = slot // held == lax.axis_index(stages)
            weights = jax.tree.map(lambda w: lax.psum(jnp.where(here, w, 0), stages), weights)
        block = model.block(weights)
        x_BTD, found = block(x_BTD, model.layer_info)
        mixtures = [sums for name, sums in found.items() if isinstance(getattr(block, name), Experts)]
        loads = (jnp.concatenate([sums["count_E"], sums["probs_E"], sums["dropped"][None]]) for sums in mixtures)
        return x_BTD, jnp.stack([*loads])

    def load(tokens_bS: Tokens) -> Array:
        return lax.scan(layer, model.embed(tokens_bS[:, :-1]), slot_L)[1]

    load_LX = total_of_microbatches(load, tokens_BS, plan.train.microbatches)
    load_LX = load_LX.reshape(-1, 2 * experts + 1)  # a block's layers in order
    load_LX = load_LX if whole else _summed(load_LX, plan)
    return Load(load_LX[:, :experts], load_LX[:, experts:-1], load_LX[:, -1])


def _summed(load_LX: Float[Array, "L X"], plan: Plan) -> Float[Array, "L X"]:
    """Sums over devices that split the tokens. All other devices have counted the same tokens."""
    axes = tuple(axis for axis, _ in plan.mesh.axes)
    copies = plan.mesh.size // plan.size(*plan.placement.batch, *plan.placement.tokens)
    return lax.psum(mark_missing(load_LX, axes), axes) / copies
