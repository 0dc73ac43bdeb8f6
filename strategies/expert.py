"""Expert parallel: each device holds some of the experts of every layer, and a shard of the batch.

The axis splits the experts of a model (model/experts.py), and like `data` the batch; all other weights are replicated
over it. Tokens go to the devices that have their experts, and come back (Lepikhin et al. 2020, "GShard", section 3):

    x[E,G_expert,C,D+1] -all_to_all(expert)-> x[E_expert,G,C,D+1], once a layer forward: dispatch
    y[E_expert,G,C,D] -all_to_all(expert)-> y[E,G_expert,C,D], once a layer forward: combine
    each is the transpose of the other: once and once a layer backward

    dW[E_expert,D,F] needs no sum over expert: the tokens of all its devices have come here
    dW[D,F] -all_reduce(data x expert)-> dW[D,F], each other weight, once a step, in `reduce_dtype`
    for the load-balancing loss -all_reduce(data x expert)-> the choices of each expert: E numbers a layer, forward

G are the groups of tokens, and C is the capacity of an expert for a group, so a device with T tokens sends buffers of
R = E C T / g rows for groups of g tokens: R = k T x `capacity_factor`, rounded up, for k experts a token. A row has D
features of a token, and its router's weight. On n devices a device sends (4 D + 2) L R (n-1)/n elements a step in the
compute dtype, for L layers; with `remat="full"` (5 D + 3) L R (n-1)/n, because the dispatch is repeated, but not the
combine, whose result the backward pass does not need.

All devices hold buffers of the same size, however the router spreads the tokens: what does not fit is dropped, and
without a capacity factor each buffer has a row for each token. A model without experts is trained as by `data`.
"""

from collections.abc import Iterator
from dataclasses import replace

import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from strategies import data
from strategies.core.plan import Plan
from strategies.core.traffic import Traffic, traffic
from strategies.infeasible import require_divides
from strategies.model.experts import rows_of
from strategies.model.remat import KEPT
from strategies.step import Implementation
from strategies.strategy import Strategy


def require(plan: Plan) -> None:
    """Check that the axis divides the experts.

    Raises:
        Infeasible: it does not; the message names both numbers.
    """
    if plan.config.experts:
        require_divides("expert", plan.size("expert"), experts=plan.config.experts)


def dispatch(
    x_EGCD: Float[Array, "E G C D"], weights_EGC1: Float[Array, "E G C 1"]
) -> tuple[Float[Array, "e g C D"], Float[Array, "e g C 1"]]:
    """`Hooks.dispatch`. Rows and weights go together: two exchanges at the same time could deadlock."""
    joined_EGCX = jnp.concatenate([x_EGCD, weights_EGC1], axis=-1)
    joined_EGCX = checkpoint_name(lax.all_to_all(joined_EGCX, "expert", 0, 1, tiled=True), KEPT)
    return joined_EGCX[..., :-1], joined_EGCX[..., -1:]


def combine(y_EGCD: Float[Array, "e g C D"]) -> Float[Array, "E G C D"]:
    """`Hooks.combine`."""
    return lax.all_to_all(y_EGCD, "expert", 1, 0, tiled=True)


def implement(plan: Plan, before: Implementation) -> Implementation:
    """Add the hooks of an expert axis."""
    return replace(before, hooks=replace(before.hooks, dispatch=dispatch, combine=combine))


def exchanged_rows(plan: Plan) -> Iterator[Traffic]:
    """Dispatch and combine, forward and backward; and the dispatch again, unless its result is kept."""
    if not plan.config.experts:
        return
    rows, embed = plan.layers * rows_of(plan.config, plan.tokens), plan.config.embed
    dispatches = 3 if plan.train.remat == "full" else 2
    for what, elements in (("dispatch", dispatches * (embed + 1)), ("combine", 2 * embed)):
        yield from traffic(plan, what, "all_to_all", plan.axes_of("experts"), elements * rows, dtype=plan.train.dtype)


AXIS = replace(
    data.REPLICAS,
    name="expert",
    dims=("experts",),
    require=require,
    implement=implement,
    traffic=(exchanged_rows,),
)
EXPERT = Strategy("expert", (data.REPLICAS, AXIS))
