"""Pipeline parallel: each device is a stage that holds some of the layers (Huang et al. 2019, "GPipe").

Microbatches pass through the stages in the order of a schedule (pipelining/orders.py). At each tick a stage runs the
forward or the backward pass of one microbatch, or is idle. Embedding and head are split over the vocabulary, one shard
per stage, so that no stage holds or computes more than another (Yeung et al. 2024, "Balancing Pipeline Parallelism with
Vocabulary Parallelism"). All stages together embed a microbatch when the first stage needs it, and compute its loss
when the last stage has finished it. Leading dense layers of a mixture run with the embedding: they are replicated on
every stage, and run forward again for the backward pass.

    x[b,T,D] -permute(pipeline)-> the next stage, dx[b,T,D] -permute(pipeline)-> the previous stage: one exchange at
        the end of each tick in which any stage sends, or two if a stage receives both
    for each microbatch:
    x[b,T,D] embedded, partial sums -all_reduce(pipeline)-> every stage; once more for dx of the first stage
    x[b,T,D] of the last stage -all_reduce(pipeline)-> every stage, for the loss; once more for its dx
    three numbers a token for the loss, as in tensor.py
    with leading dense layers x[b,T,D] embedded -all_reduce(pipeline)-> every stage again, for the backward pass
    once a step, in `reduce_dtype`:
    dW[D] of the last norm -all_reduce(pipeline)-> every stage
    with multi-token prediction, whose block every stage runs:
    x[b,T,D] of next tokens embedded -all_reduce(pipeline)-> every stage, and its dx; three numbers a token for its loss
    dW of the MTP block -all_reduce(pipeline)-> every stage, once a step, in `reduce_dtype`

For S stages, M microbatches of b = B / M sequences and a schedule with K exchanges (`Ticks.exchanges`; GPipe has 2 (M +
S - 2)), a device sends K b T D elements a step to its neighbours, and 4 times 2 B T D (S-1)/S elements in all-reduces,
in the compute dtype; with multi-token prediction 6 times. Positions, leading dense layers, the MTP block and the last
norm are replicated on all stages.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from strategies.backends.device_mesh import mark_varying
from strategies.core.axis import Axis
from strategies.core.gradients import microbatched
from strategies.core.plan import Plan
from strategies.core.traffic import Traffic, traffic
from strategies.model.gpt import GPT, Collect, map_weights, weight_specs
from strategies.model.layers import Leaves, Result, added
from strategies.model.weights import Weights, WeightSpec
from strategies.pipelining.executor import Executor, StageFunctions
from strategies.pipelining.orders import best_schedule
from strategies.pipelining.schedules import PassTimes, Schedule
from strategies.step import Differentiate, Divisor, Forward, Implementation, LossTerms, Tokens
from strategies.strategy import Strategy, vocabulary_traffic


def resolve(plan: Plan) -> Mapping[str, Any]:
    """Resolve `schedule="auto"`."""
    train = plan.train
    if train.schedule != "auto":
        return {}
    passes = pass_flops(plan)
    return {"schedule": best_schedule(plan.config.blocks, plan.stages, train.microbatches, train.chunks, passes)}


def pass_flops(plan: Plan) -> PassTimes:
    """FLOPs per token of a layer's passes: forward, gradients of inputs, and of weights, without masked scores.

    The backward pass computes scores again, with 5 matmuls for 2 (Dao et al. 2022, "FlashAttention", section 3.1).
    """
    config = plan.config
    sizes = {**config.dim_sizes, "experts": config.experts_per_token, "layers": 1}
    matrices = (spec.dims for spec in weight_specs(config).values() if spec.is_stacked and spec.is_matrix)
    matmuls = 2 * sum(math.prod(sizes[dim] for dim in dims) for dims in matrices)
    keys = min(config.sequence / 2, config.attention_window or math.inf) * config.layers_in_block
    scores = 2 * keys * (config.query_features + config.head_features)
    again = matmuls + scores if plan.train.remat == "full" else 0
    return PassTimes(matmuls + scores, matmuls + 2.5 * scores + again, matmuls)


def require(plan: Plan) -> None:
    """Check that layers and microbatches fit the stages."""
    _ = plan.order


def implement(plan: Plan) -> Implementation:
    """Run the microbatches in the order of the schedule."""
    return Implementation(
        differentiate=scheduled(plan),
        schedules_microbatches=True,
        forward=forward(plan.schedule),
    )


def has_partial_gradient(plan: Plan, spec: WeightSpec) -> bool:
    """Whether stages have parts of a replicated weight's gradient, by vocabulary shard: before the head's logits."""
    return spec.name.startswith(("head.", "mtp.")) and "vocab" not in spec.dims


def scheduled(plan: Plan) -> Differentiate:
    """A `Differentiate` that runs the forward and backward passes in the order of the plan's schedule."""
    schedule, ticks, train = plan.schedule, plan.ticks, plan.train
    used_SL = np.array(plan.slots).reshape(schedule.stages, -1) >= 0

    def differentiate(
        build: Callable[[Weights], GPT], weights: Weights, tokens_BS: Tokens, divisor: Divisor
    ) -> tuple[LossTerms, Weights]:
        blocks, structure = jax.tree.flatten(_cast_ahead(weights["blocks"], plan))
        ends = {name: part for name, part in weights.items() if name != "blocks"}

        def model(ends: Weights, blocks: Leaves = blocks) -> GPT:
            return build({**ends, "blocks": jax.tree.unflatten(structure, blocks)})

        def run(layer: Leaves, x_bTD: Array) -> Result:
            y_bTD, extras = model(ends, layer).run(x_bTD, in_loop=True)
            return y_bTD, {name: total / (divisor * plan.tensors) for name, total in extras.items()}

        def loss(ends: Weights, y_bTD: Array, tokens_bS: Array) -> LossTerms:
            losses_N, more = model(ends).training_losses(y_bTD, tokens_bS[:, 1:])
            # All stages compute the same extras of the MTP block, and each backpropagates its share of them.
            more |= {name: lax.pmean(more[name], "pipeline") for name in more if name != "mtp"}
            return {name: total / divisor for name, total in {"loss": losses_N.sum(), **more}.items()}

        parts = StageFunctions(
            embed=lambda ends, tokens_bS: model(ends).embed(tokens_bS[:, :-1]),
            run=run,
            loss=loss,
        )
        if plan.block.extras():  # they may depend on which sequences a microbatch takes
            tokens_MbS = microbatched(tokens_BS, schedule.microbatches)
        else:
            tokens_MbS = tokens_BS.reshape(schedule.microbatches, -1, tokens_BS.shape[-1])
        used_L = None if used_SL.all() else jnp.asarray(used_SL)[lax.axis_index("pipeline")]
        executor = Executor(schedule, ticks, parts, blocks, ends, tokens_MbS, used_L, train.layers_in_loop)
        terms, extras, dblocks, dends = executor()
        # Devices that split a layer's features compute identical extras, and each backpropagates its share of them.
        extras = {name: plan.tensors * model(ends).hooks.replicated_loss(total) for name, total in extras.items()}
        return added(terms, extras), {**dends, "blocks": jax.tree.unflatten(structure, dblocks)}

    return differentiate


def _cast_ahead(blocks: Weights, plan: Plan) -> Weights:
    """The layers' weights, cast to the dtype of their use if `Plan.casts_ahead`."""
    if not plan.casts_ahead:
        return blocks

    def cast_one(weight: Array, spec: WeightSpec) -> Array:
        return weight.astype(spec.used_dtype(plan.train.dtype))

    return map_weights(cast_one, plan.config, {"blocks": blocks})["blocks"]


def forward(schedule: Schedule) -> Forward:
    """A forward pass through the stages without a backward pass: for evaluation, and for the load of experts.

    Every stage runs its layers in every tick. In tick t the stage at place s of a round has microbatch t - s. In the
    first and last ticks of a round some stages have none, and their results are not used. With several chunks per
    stage, the microbatches go around once per chunk, every second time backwards if the model is in a V.
    """
    microbatches = schedule.microbatches

    def through_stages(
        build: Callable[[Weights], GPT], weights: Weights, tokens_BS: Tokens, collect: Collect | None
    ) -> tuple[Array, Any]:
        def run(blocks: Weights, x_bTD: Array) -> tuple[Array, Any]:
            return build({**weights, "blocks": blocks}).run(x_bTD, collect)

        model, tokens_MbS = build(weights), tokens_BS.reshape(microbatches, -1, tokens_BS.shape[-1])
        x_MbTD = lax.map(lambda tokens_bS: model.embed(tokens_bS[:, :-1]), tokens_MbS)
        y_MbTD, found = _run_forward(run, weights["blocks"], x_MbTD, schedule)
        losses_MN = lax.map(lambda each: model.losses(each[0], each[1][:, 1:]), (y_MbTD, tokens_MbS))
        return losses_MN.reshape(-1), _by_slot(found, schedule) if collect else None

    return through_stages


def _run_forward(
    run: Callable[[Weights, Array], tuple[Array, Any]],
    blocks: Weights,
    x_MbTD: Float[Array, "M b T D"],
    schedule: Schedule,
) -> tuple[Float[Array, "M b T D"], list[Any]]:
    """Run all layers on embedded microbatches x, which are equal on all stages, as is the result after the last layer.

    `run` maps (weights of layers, x) to (y, what it finds in these layers). `blocks` are the weights of this stage's
    layers, chunk after chunk. Also returns what was found in each chunk, by tick: microbatch m is in tick m plus the
    stage's place in the round.
    """
    leaves, structure = jax.tree.flatten(blocks)
    found = []
    for chunk, part in enumerate(zip(*(jnp.split(leaf, schedule.chunks) for leaf in leaves), strict=True)):
        x_MbTD, found_t = _around(partial(run, jax.tree.unflatten(structure, part)), x_MbTD, schedule.route(chunk))
        found.append(found_t)
    return x_MbTD, found


def _place(route: Sequence[int]) -> Array:
    """This stage's place in a route."""
    return jnp.asarray(np.argsort(route))[lax.axis_index("pipeline")]


def _by_slot(found: list[Array], schedule: Schedule) -> Array:
    """What `_run_forward` has found [ticks,L,...] in each chunk -> its sum over microbatches, by slot of all stages."""
    places = [_place(schedule.route(chunk)) for chunk in range(schedule.chunks)]
    sums = [
        lax.dynamic_slice_in_dim(found_t, place, schedule.microbatches).sum(0)
        for found_t, place in zip(found, places, strict=True)
    ]
    return lax.all_gather(jnp.concatenate(sums), "pipeline", tiled=True, to="invarying")


def _around(run: Callable[[Array], tuple[Array, Any]], x_MbTD: Array, route: Sequence[int]) -> tuple[Array, Any]:
    """One round: through one chunk of each stage."""
    microbatches, place = len(x_MbTD), _place(route)
    x_MbTD = mark_varying(x_MbTD, "pipeline")
    onward = list(pairwise(route))

    def tick(arrived_bTD: Array, number: Array) -> tuple[Array, tuple[Array, Any]]:
        entered_bTD = x_MbTD[jnp.minimum(number, microbatches - 1)]
        y_bTD, found = run(jnp.where(place == 0, entered_bTD, arrived_bTD))
        return lax.ppermute(y_bTD, "pipeline", onward), (y_bTD, found)

    _, (y_tbTD, found_t) = lax.scan(tick, jnp.zeros_like(x_MbTD[0]), jnp.arange(microbatches + len(route) - 1))
    left_MbTD = jnp.where(place == len(route) - 1, y_tbTD[len(route) - 1 :], 0)
    return lax.psum(left_MbTD, "pipeline"), found_t


def exchanges(plan: Plan) -> Iterator[Traffic]:
    """Activations and gradients that stages send to their neighbours, in each exchange."""
    sent = plan.ticks.exchanges * plan.own_residual // plan.train.microbatches
    yield from traffic(plan, "stages", "permute", plan.axes_of("layers"), sent, dtype=plan.train.dtype)


def all_reduces(plan: Plan) -> Iterator[Traffic]:
    """The all-reduces of embedding and head."""
    along = plan.axes_of("layers")
    # The last stage's result and its gradient, the gradient of the first stage's input, and that of next tokens.
    ends = (2 + plan.head_uses) * plan.own_residual
    yield from traffic(plan, "ends", "all_reduce", along, ends, dtype=plan.train.dtype)
    extras = partial(traffic, plan, "extras", "all_reduce", along, array="number")
    yield from extras(len(plan.block.extras()), when="after backward")
    if plan.mtp:
        yield from extras(plan.train.microbatches * len(plan.block.extras()), when="forward")


AXIS = Axis(
    "pipeline",
    dims=("layers", "vocab"),
    options=("schedule", "chunks", "reduce_dtype"),
    resolve=resolve,
    require=require,
    partial_gradient=has_partial_gradient,
    implement=implement,
    traffic=(exchanges, all_reduces, vocabulary_traffic),
)
PIPELINE = Strategy("pipeline", (AXIS,))
