"""Expert parallel: each device holds some of the experts of every layer, and a shard of the batch.

The axis splits the experts of a model (model/experts.py) and, like `data`, the batch; all other weights are replicated
over it. With `dispatch="all_to_all"` tokens go to the devices that have their experts, and come back (Lepikhin et al.
2020, "GShard", section 3):

    x[E,G_expert,C,D+1] -all_to_all(expert)-> x[E_expert,G,C,D+1], once a layer forward: dispatch
    y[E_expert,G,C,D] -all_to_all(expert)-> y[E,G_expert,C,D], once a layer forward: combine
    each is the transpose of the other: once and once a layer backward

Without a capacity factor they go as rows to n devices, and each device sorts what arrives by its experts:

    x[n,R_expert,D+2] -all_to_all(expert)-> x[n_expert,R,D+2], once a layer forward: dispatch
    y[n_expert,R,D] -all_to_all(expert)-> y[n,R_expert,D], once a layer forward: combine
    on TPUs and GPUs these are ragged, after counts[n_expert,n,2] -all_to_all(expert)-> counts[n,n_expert,2]

With `dispatch="all_gather"` every device gets all tokens, and takes those of its experts (Megatron-LM's "allgather"
dispatcher):

    x[N_expert,D+2k] -all_gather(expert)-> x[N,D+2k], once a layer forward: dispatch
    y[N,D], sums over the experts of a device -reduce_scatter(expert)-> y[N_expert,D], once a layer forward: combine
    each has the transpose of the other: a reduce-scatter and an all-gather a layer backward

    dW[E_expert,D,F] needs no sum over expert: the tokens of all its devices have come here
    dW[D,F] -all_reduce(data x expert)-> dW[D,F], each other weight, once a step, in `reduce_dtype`
    for the load-balancing loss -all_reduce(data x expert)-> the choices of each expert: E numbers a layer, forward

With `halves="on"` (model/halves.py) each exchange becomes two, of half the sequences.

G are the groups of tokens, and C is the capacity of an expert for a group, so a device with T tokens has buffers of R =
E C T / g rows for groups of g tokens: R = k T x `capacity_factor`, rounded up, for k experts a token. Without a
capacity factor a plain exchange sends R = n T min(k, E/n) rows: to each device the most that its tokens may choose
there. A ragged dispatch sends R = k T rows, and a ragged combine the same number on average over devices; under
balanced routing 1/n of them stay. With an axis `fsdp` on TPUs buffers are used without a capacity factor, too: R = E T.
A row has a token's D features and its router weight; a row outside buffers also has the index of its expert. A gathered
token has k weights and k indices. For L layers on n devices a device sends these elements in a step, in the compute
dtype:

    all_to_all of buffers  (4 D + 2) L R (n-1)/n; with `remat="full"` (5 D + 3) L R (n-1)/n
    all_to_all of rows  (4 D + 4) L R (n-1)/n; with `remat="full"` (5 D + 6) L R (n-1)/n
    all_gather  (4 D + 4k) L T (n-1); with `remat="full"` (5 D + 6k) L T (n-1)

because recomputation repeats the dispatch but not the combine, whose result the backward pass does not need. So
`all_gather` sends less than all-to-alls of buffers if n is smaller than about k x `capacity_factor`, less than ragged
ones if n is smaller than about k, and less than plain ones of rows if k and E/n are both larger than one.

All devices have buffers of the same size, whatever the routing; choices beyond it are dropped. Without a capacity
factor there are enough rows for the most uneven routing. For a model without experts this is `data`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from strategies import data, tensor
from strategies.core.expert_rows import batch_parts
from strategies.core.layer_reduction import resolve_reduce
from strategies.core.plan import Plan, require_default
from strategies.core.shards import all_gather, all_to_all, exchange_parts, parts_of, reduce_scatter
from strategies.core.traffic import Traffic, traffic
from strategies.infeasible import WrongSize, divisors, require_divides
from strategies.model.expert_rows import buffer_rows, kept_slots, sent_rows
from strategies.model.grouped_matmul import from_rows, to_rows
from strategies.model.hooks import Exchanged, Hooks
from strategies.model.remat import KEPT
from strategies.model.router import Routed, RowAssignment, packed_slots, slots
from strategies.step import Implementation
from strategies.strategy import Strategy


def require(plan: Plan) -> None:
    """Check that the axis divides the experts."""
    if plan.config.experts:
        require_divides("expert", plan.size("expert"), experts=plan.config.experts)


def dispatch(
    x_EGCD: Float[Array, "E G C D"], weights_EGC1: Float[Array, "E G C 1"]
) -> tuple[Float[Array, "e g C D"], Float[Array, "e g C 1"]]:
    """`Hooks.dispatch`. One exchange of rows with their weights, because two concurrent ones could deadlock."""
    joined_EGCX = jnp.concatenate([x_EGCD, weights_EGC1], axis=-1)
    joined_EGCX = checkpoint_name(lax.all_to_all(joined_EGCX, "expert", 0, 1, tiled=True), KEPT)
    return joined_EGCX[..., :-1], joined_EGCX[..., -1:]


def combine(y_EGCD: Float[Array, "e g C D"]) -> Float[Array, "E G C D"]:
    """`Hooks.combine`."""
    return lax.all_to_all(y_EGCD, "expert", 1, 0, tiled=True)


Way = Callable[[Array], Array]
"""Sends rows [R,X] to other devices, and returns the rows that arrive."""


def _plain(device_Nk: Int[Array, "N k"], devices: int, section: int) -> tuple[RowAssignment, Way, Way]:
    """Assign choices to rows by device; and functions that send whole sections of rows there, and back."""
    way = partial(all_to_all, axis="expert")
    return slots(device_Nk, devices, 1, section), way, way


def _ragged(device_Nk: Int[Array, "N k"], devices: int, section: int) -> tuple[RowAssignment, Way, Way]:
    """Like `_plain`, but sends only the routed rows. A device's rows arrive at the start of its section."""
    found, mine_n2 = packed_slots(device_Nk, devices)
    mine_n2 = checkpoint_name(mine_n2, KEPT)
    theirs_n2 = checkpoint_name(all_to_all(mine_n2, "expert"), KEPT)
    there, back = parts_of(mine_n2, theirs_n2, section, "expert")
    send = partial(exchange_parts, there=there, back=back, rows=devices * section, axis="expert")
    give_back = partial(exchange_parts, there=back, back=there, rows=device_Nk.size, axis="expert")
    return found, send, give_back


def exchange_rows(ways: Callable[..., tuple[RowAssignment, Way, Way]], routed: Routed) -> Exchanged:
    """`Hooks.exchange` of rows. They arrive in one section per device, with the most rows that it may send.

    `ways` is `_ragged`, or `_plain` if the compiler has no ragged exchange.
    """
    devices, (tokens, choices) = lax.axis_size("expert"), routed.experts_Nk.shape
    held = routed.experts // devices
    found, send, give_back = ways(routed.experts_Nk // held, devices, tokens * min(choices, held))
    found = kept_slots(found)
    # A device's experts are numbered down to 1, so the zero of an empty row is not an expert.
    numbers_Nk = (held - routed.experts_Nk % held).astype(routed.x_ND.dtype)  # exact, see `resolve`
    choices_M2 = jnp.stack([routed.weights_Nk, numbers_Nk], -1).reshape(-1, 2)
    joined_RX = jnp.concatenate([to_rows(routed.x_ND, found, choices), to_rows(choices_M2, found, 1)], axis=1)
    joined_RX = checkpoint_name(send(joined_RX), KEPT)
    x_RD, weights_R1, numbers_R1 = jnp.split(joined_RX, [joined_RX.shape[1] - 2, joined_RX.shape[1] - 1], axis=1)
    arrived = Routed(x_RD, weights_R1, held - numbers_R1.astype(jnp.int32), held)
    return arrived, lambda y_RD: from_rows(give_back(y_RD), found, choices)


def exchange_tokens(routed: Routed) -> Exchanged:
    """`Hooks.exchange` of all tokens, in one gather, because two concurrent ones could deadlock."""
    (_, embed), choices = routed.x_ND.shape, routed.experts_Nk.shape[1]
    held = routed.experts // lax.axis_size("expert")
    experts_Nk = routed.experts_Nk.astype(routed.x_ND.dtype)  # exact, see `resolve`
    joined_NX = jnp.concatenate([routed.x_ND, routed.weights_Nk, experts_Nk], axis=1)
    joined_MX = checkpoint_name(all_gather(joined_NX, "expert", 0), KEPT)
    x_MD, weights_Mk, experts_Mk = jnp.split(joined_MX, [embed, embed + choices], axis=1)
    experts_Mk = experts_Mk.astype(jnp.int32) - held * lax.axis_index("expert")
    is_here_Mk = (experts_Mk >= 0) & (experts_Mk < held)
    arrived = Routed(x_MD, weights_Mk, jnp.where(is_here_Mk, experts_Mk, held), held)
    return arrived, lambda y_MD: reduce_scatter(y_MD, "expert", 0)


def resolve(plan: Plan) -> Mapping[str, Any]:
    """Resolve `reduce="auto"`, and `dispatch="auto"` to what sends fewer bytes; if equal to "all_to_all"."""
    if not plan.config.experts:
        idle = ("dispatch",) if plan.tensors > 1 else ("dispatch", "halves")
        require_default(plan.train, idle, "in a model without experts")
    dispatched, combined = _tokens(plan)
    gathered = plan.size("expert") * (dispatches(plan) * dispatched + combines(plan) * combined)
    fewer = plan.config.experts is not None and gathered < sum(_rows(plan))
    experts, most = plan.config.dim_sizes["experts"], 2 ** (jnp.finfo(plan.train.dtype).nmant + 1)
    numbers = f"numbers experts in {plan.train.dtype}, exactly up to {most}, not"
    problem = f"{numbers} experts={experts}; use dispatch=all_to_all" if experts > most else ""
    chosen = plan.choose("dispatch", problem, fewer, "all_gather", "all_to_all")
    held = experts // plan.size("expert")
    if chosen == "all_to_all" and plan.blocks_rows and held > most:
        sizes = [size for size in divisors(experts) if experts // size <= most]
        problem = f"dispatch=all_to_all {numbers} {held} of {experts} experts on a device"
        raise WrongSize(problem, "expert", sizes)
    halves = tensor.resolve_halves(plan) if plan.config.experts else {}
    return {**resolve_reduce(plan), **halves, "dispatch": chosen}


def implement(plan: Plan) -> Implementation:
    """Exchange tokens with the devices that have their experts."""
    if plan.train.dispatch == "all_gather":
        return Implementation(Hooks(exchange=exchange_tokens))
    if plan.blocks_rows:
        return Implementation(Hooks(exchange=partial(exchange_rows, _ragged if plan.backend.sends_ragged else _plain)))
    return Implementation(Hooks(dispatch=dispatch, combine=combine))


def dispatches(plan: Plan) -> int:
    """Dispatch exchanges per block, forward and backward; one more per mixture if recomputation repeats it."""
    return plan.block.mixtures() * (3 if plan.train.remat == "full" else 2)


def combines(plan: Plan) -> int:
    """Combine exchanges per block. Recomputation repeats those whose sums later layers of the block use."""
    mixtures = plan.block.mixtures()
    return 2 * mixtures + (mixtures - 1 if plan.train.remat == "full" else 0)


def _rows(plan: Plan) -> tuple[int, int]:
    """Elements of a layer's rows in all-to-alls in a step: for dispatch, and for combine."""
    config, embed = plan.config, plan.config.embed
    rows, beside = buffer_rows(config, plan.tokens), 1
    if plan.blocks_rows:
        rows, beside = sent_rows(config, plan.tokens, plan.size("expert"), ragged=plan.backend.sends_ragged), 2
    return dispatches(plan) * rows * (embed + beside), combines(plan) * rows * embed


def _tokens(plan: Plan) -> tuple[int, int]:
    """Elements of this device's tokens in a layer: with choices, as dispatch gathers them; and without."""
    embed = plan.config.embed
    return plan.tokens * (embed + 2 * plan.config.experts_per_token), plan.tokens * embed


def exchanges(plan: Plan) -> Iterator[Traffic]:
    """Dispatch and combine, forward and backward; and the dispatch again, unless its result is kept."""
    if not plan.config.experts:
        return
    term = partial(traffic, plan, axes=plan.axes_of("experts"), dtype=plan.train.dtype)
    if plan.train.dispatch == "all_to_all":
        for what, elements in zip(("dispatch", "combine"), _rows(plan), strict=True):
            yield from term(what, "all_to_all", elements=plan.layers_and_mtp * elements)
        if plan.blocks_rows and plan.backend.sends_ragged:
            counts = plan.train.microbatches * plan.layers_and_mtp * (dispatches(plan) - plan.block.mixtures())
            counts *= batch_parts(plan.share)
            sizes = 2 * plan.size("expert") * counts
            yield from traffic(plan, "counts", "all_to_all", axes=plan.axes_of("experts"), elements=sizes)
        return
    (dispatched, combined), mixtures = _tokens(plan), plan.block.mixtures()
    for what, elements, gathers, scatters in (
        ("dispatch", dispatched, dispatches(plan) - mixtures, mixtures),
        ("combine", combined, mixtures, combines(plan) - mixtures),
    ):
        yield from term(what, "all_gather", elements=plan.layers_and_mtp * gathers * elements)
        yield from term(
            what, "reduce_scatter", elements=plan.layers_and_mtp * scatters * plan.size("expert") * elements
        )


AXIS = replace(
    data.REPLICAS,
    name="expert",
    dims=("experts",),
    options=(*data.REPLICAS.options, "dispatch", "halves"),
    resolve=resolve,
    require=require,
    implement=implement,
    traffic=(exchanges,),
)
EXPERT = Strategy("expert", (data.REPLICAS, AXIS))
