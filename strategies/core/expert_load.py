"""How evenly the routers of a step spread tokens over experts, found by a forward pass (`Step.load`).

Dims: L layers, E experts, X = 2 E + 1.
"""

from collections.abc import Mapping

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from strategies.backends.device_mesh import mark_missing
from strategies.core.plan import Plan
from strategies.model.block import Block
from strategies.model.experts import Experts
from strategies.model.layers import Sums
from strategies.step import Load


def routed(block: Block, sums: Mapping[str, Sums]) -> Float[Array, "L X"]:
    """The choices of each expert, its probabilities, and the dropped choices, for each mixture of a block."""
    mixtures = [found for name, found in sums.items() if isinstance(getattr(block, name), Experts)]
    return jnp.stack([jnp.concatenate([each["count_E"], each["probs_E"], each["dropped"][None]]) for each in mixtures])


def total_load(load_SLX: Float[Array, "S L X"], plan: Plan, *, whole: bool) -> Load:
    """What `routed` finds on a device in each slot S of the stacked blocks -> the load of the whole batch.

    Devices that do not split the tokens have counted the same. `whole`: all devices' tokens are counted already.
    """
    if plan.staged:
        load_SLX = load_SLX[jnp.array([plan.slots.index(layer) for layer in range(plan.config.blocks)])]
    load_LX, experts = load_SLX.reshape(-1, load_SLX.shape[-1]), plan.config.dim_sizes["experts"]
    if not whole:
        axes = tuple(axis for axis, _ in plan.mesh.axes)
        copies = plan.mesh.size // plan.size(*plan.placement.batch, *plan.placement.tokens)
        load_LX = lax.psum(mark_missing(load_LX, axes), axes) / copies
    return Load(load_LX[:, :experts], load_LX[:, experts:-1], load_LX[:, -1])
