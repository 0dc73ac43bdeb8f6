"""Expert parallel: each device holds some of the experts of every layer, and a shard of the batch.

The axis splits the experts of a model (model/experts.py), and like `data` the batch; all other weights are replicated
over it. With `dispatch="all_to_all"` tokens go to the devices that have their experts, and come back (Lepikhin et al.
2020, "GShard", section 3):

    x[E,G_expert,C,D+1] -all_to_all(expert)-> x[E_expert,G,C,D+1], once a layer forward: dispatch
    y[E_expert,G,C,D] -all_to_all(expert)-> y[E,G_expert,C,D], once a layer forward: combine
    each is the transpose of the other: once and once a layer backward

With `dispatch="all_gather"` every device gets all tokens, and takes those of its experts (Megatron-LM's "allgather"
dispatcher):

    x[N_expert,D+2k] -all_gather(expert)-> x[N,D+2k], once a layer forward: dispatch
    y[N,D], sums over the experts of a device -reduce_scatter(expert)-> y[N_expert,D], once a layer forward: combine
    each has the transpose of the other: a reduce-scatter and an all-gather a layer backward

    dW[E_expert,D,F] needs no sum over expert: the tokens of all its devices have come here
    dW[D,F] -all_reduce(data x expert)-> dW[D,F], each other weight, once a step, in `reduce_dtype`
    for the load-balancing loss -all_reduce(data x expert)-> the choices of each expert: E numbers a layer, forward

G are the groups of tokens, and C is the capacity of an expert for a group, so a device with T tokens has buffers of R =
E C T / g rows for groups of g tokens: R = k T x `capacity_factor`, rounded up, for k experts a token. A row has D
features of a token, and its router's weight; a token that is gathered has k weights, and the numbers of k experts. For
L layers on n devices a device sends these elements in a step, in the compute dtype:

    all_to_all  (4 D + 2) L R (n-1)/n; with `remat="full"` (5 D + 3) L R (n-1)/n
    all_gather  (4 D + 4k) L T (n-1); with `remat="full"` (5 D + 6k) L T (n-1)

because the dispatch is repeated, but not the combine, whose result the backward pass does not need. So `all_gather`
sends less if n is smaller than about k x `capacity_factor`, or than E if nothing is dropped.

All devices hold buffers of the same size, however the router spreads the tokens: what does not fit is dropped, and
without a capacity factor each buffer has a row for each token. A model without experts is trained as by `data`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from strategies import data
from strategies.core.collectives import all_gather, reduce_scatter
from strategies.core.layer_reduction import resolve_reduce
from strategies.core.plan import Plan
from strategies.core.traffic import Traffic, traffic
from strategies.infeasible import require_divides
from strategies.model.experts import buffer_rows
from strategies.model.remat import KEPT
from strategies.model.router import Routed
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


def gather_routed(routed: Routed) -> Routed:
    """`Hooks.gather_routed`. One exchange: two at the same time could deadlock."""
    (_, embed), choices = routed.x_ND.shape, routed.experts_Nk.shape[1]
    held = routed.experts // lax.axis_size("expert")
    experts_Nk = routed.experts_Nk.astype(routed.x_ND.dtype)  # exact, see `_gather_problem`
    joined_NX = jnp.concatenate([routed.x_ND, routed.weights_Nk, experts_Nk], axis=1)
    joined_MX = checkpoint_name(all_gather(joined_NX, "expert", 0), KEPT)
    x_MD, weights_Mk, experts_Mk = jnp.split(joined_MX, [embed, embed + choices], axis=1)
    experts_Mk = experts_Mk.astype(jnp.int32) - held * lax.axis_index("expert")
    is_here_Mk = (experts_Mk >= 0) & (experts_Mk < held)
    return Routed(x_MD, weights_Mk, jnp.where(is_here_Mk, experts_Mk, held), held)


def scatter_routed(y_MD: Float[Array, "M D"]) -> Float[Array, "N D"]:
    """`Hooks.scatter_routed`."""
    return reduce_scatter(y_MD, "expert", 0)


def resolve(plan: Plan) -> Mapping[str, Any]:
    """Resolve `reduce="auto"`, and `dispatch="auto"`: what sends fewer bytes, of equals "all_to_all".

    Raises:
        Infeasible: `dispatch="all_gather"` with more experts than the compute dtype can number, or `reduce="layer"`
            where it is impossible.
    """
    dispatched, combined = _tokens(plan)
    gathered = plan.size("expert") * (dispatches(plan) * dispatched + combines(plan) * combined)
    fewer = plan.config.experts is not None and gathered < sum(_rows(plan))
    dispatch = plan.choose("dispatch", _gather_problem(plan), fewer, "all_gather", "all_to_all")
    return {**resolve_reduce(plan), "dispatch": dispatch}


def _gather_problem(plan: Plan) -> str:
    """Why tokens cannot be gathered with the numbers of their experts; empty if they can."""
    most = 2 ** (jnp.finfo(plan.train.dtype).nmant + 1)
    if (plan.config.experts or 0) <= most:
        return ""
    other = "use dispatch=all_to_all"
    return f"numbers experts in {plan.train.dtype}, exactly up to {most}, not experts={plan.config.experts}; {other}"


def implement(plan: Plan, before: Implementation) -> Implementation:
    """Add the hooks of an expert axis."""
    if plan.train.dispatch == "all_gather":
        exchange = {"gather_routed": gather_routed, "scatter_routed": scatter_routed}
    else:
        exchange = {"dispatch": dispatch, "combine": combine}
    return replace(before, hooks=replace(before.hooks, **exchange))


def dispatches(plan: Plan) -> int:
    """Exchanges of dispatch in a block, forward and backward; one more of each mixture if recomputation repeats it."""
    return plan.block.mixtures() * (3 if plan.train.remat == "full" else 2)


def combines(plan: Plan) -> int:
    """Exchanges of combine in a block. Recomputation repeats those whose sums later layers of the block take."""
    mixtures = plan.block.mixtures()
    return 2 * mixtures + (mixtures - 1 if plan.train.remat == "full" else 0)


def _rows(plan: Plan) -> tuple[int, int]:
    """Elements of the buffers of a layer that all-to-alls exchange in a step: for dispatch, and to combine."""
    rows, embed = buffer_rows(plan.config, plan.tokens), plan.config.embed
    return dispatches(plan) * rows * (embed + 1), combines(plan) * rows * embed


def _tokens(plan: Plan) -> tuple[int, int]:
    """Elements of this device's tokens of a layer, with their choices as dispatch gathers them; and without."""
    embed = plan.config.embed
    return plan.tokens * (embed + 2 * plan.config.experts_per_token), plan.tokens * embed


def exchanges(plan: Plan) -> Iterator[Traffic]:
    """Dispatch and combine, forward and backward; and the dispatch again, unless its result is kept."""
    if not plan.config.experts:
        return
    term = partial(traffic, plan, axes=plan.axes_of("experts"), dtype=plan.train.dtype)
    if plan.train.dispatch == "all_to_all":
        for what, elements in zip(("dispatch", "combine"), _rows(plan), strict=True):
            yield from term(what, "all_to_all", elements=plan.layers * elements)
        return
    (dispatched, combined), mixtures = _tokens(plan), plan.block.mixtures()
    for what, elements, gathers, scatters in (
        ("dispatch", dispatched, dispatches(plan) - mixtures, mixtures),
        ("combine", combined, mixtures, combines(plan) - mixtures),
    ):
        yield from term(what, "all_gather", elements=plan.layers * gathers * elements)
        yield from term(what, "reduce_scatter", elements=plan.layers * scatters * plan.size("expert") * elements)


AXIS = replace(
    data.REPLICAS,
    name="expert",
    dims=("experts",),
    options=(*data.REPLICAS.options, "dispatch"),
    resolve=resolve,
    require=require,
    implement=implement,
    traffic=(exchanges,),
)
EXPERT = Strategy("expert", (data.REPLICAS, AXIS))
