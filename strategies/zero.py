"""Data or expert parallel with a sharded optimizer: ZeRO stages 1 and 2 (Rajbhandari et al. 2020, section 5).

Each device holds all weights, a shard of the batch, and a shard of AdamW's moments (core/shards.py). It updates its
shard of the weights, and then all devices gather the updated weights:

    dW[D,F] -reduce_scatter(data)-> dW[D_data,F], each weight, in `reduce_dtype`: zero1 once a step, zero2 once a
        microbatch; after the backward pass, or with `reduce="layer"` each layer's in the backward loop
        (core/layer_reduction.py)
    W[D_data,F] -all_gather(data)-> W[D,F], each weight once a step, after the update; in float32, or with
        `master="float32"` in the compute dtype

For P parameters on n devices a device of zero1 sends 2 P (n-1)/n elements a step, like data, and the loss and the
gradients' norm. A device of zero2 with M microbatches sends (M + 1) P (n-1)/n elements. In return it accumulates only
its shard of the gradients: full gradients exist for one microbatch at a time. With one microbatch zero1 and zero2 are
the same. With `reduce="layer"` a device has full gradients of only one layer at a time, and of embedding and head.

The axis `expert` splits experts and exchanges tokens as in expert.py. Along it experts are split already, so their
optimizer state is split only over data, and all other weights' over both axes (Rajbhandari et al. 2022,
"DeepSpeed-MoE", section 4):

    dW[E_expert,D,F] -reduce_scatter(data)-> dW[E_expert,D_data,F]; W[E_expert,D_data,F] -all_gather(data)-> back
    dW[D,F] -reduce_scatter(data x expert)-> dW[D_(data,expert),F]; W[D_(data,expert),F] -all_gather-> back

By default weights and their gradients are float32. With `master="float32"` both are in the compute dtype, except
vectors, and each device has a float32 shard of the weights with its moments (core/shards.py).
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from strategies import expert
from strategies.core.axis import Axis
from strategies.core.layer_reduction import resolve_reduce
from strategies.core.matrices import Muon
from strategies.core.plan import Plan
from strategies.core.sizes import held_dtype
from strategies.core.traffic import Traffic, elements_by_dtype, traffic
from strategies.infeasible import Infeasible
from strategies.strategy import Strategy


def require(plan: Plan) -> None:
    """Refuse what `expert` refuses, and a placement of matrices that all devices update whole (`by_layer`)."""
    expert.require(plan)
    if plan.train.matrices != "auto" and not any(group.split for group in Muon(plan).groups):
        raise Infeasible(f"matrices={plan.train.matrices} changes nothing, as devices update whole matrices; omit it")


def updates(plan: Plan) -> Iterator[Traffic]:
    """Reduce-scatters of gradients, once a step or once a microbatch, and gathers of updated weights."""
    at_once = plan.train.reduce != "layer" and plan.scatters_microbatches
    when = "after each microbatch" if at_once else plan.when_summed
    times = plan.train.microbatches if plan.scatters_microbatches else 1
    shared = [(weight.update_shard.axes, weight) for weight in plan.weights.values() if weight.update_shard]
    for axes in dict.fromkeys(axes for axes, _ in shared):
        split = [weight for each, weight in shared if each == axes]
        term = partial(traffic, plan, "gradients", "reduce_scatter", axes, array="gradients", when=when)
        for dtype, elements in elements_by_dtype(plan, ((weight, weight.elements) for weight in split)):
            yield from term(times * elements, dtype=dtype)
        for weight in split:
            held, part = held_dtype(weight.spec, plan.train), weight.updated_elements
            yield from traffic(plan, "weights", "all_gather", axes, part, dtype=held, array="weights", when="update")


# core/train_step.py makes the step of a placement with `updates`: nothing to implement here.
AXIS1 = Axis(
    "data",
    batch=True,
    updates=True,
    options=("master", "reduce", "reduce_dtype", "matrices"),
    resolve=resolve_reduce,
    require=require,
    traffic=(updates,),
)
AXIS2 = replace(AXIS1, reduce_scatter_per_microbatch=True)
EXPERT = replace(
    expert.AXIS,
    updates=True,
    options=(*AXIS1.options, "dispatch"),
    require=require,
    traffic=(*expert.AXIS.traffic, updates),
)
ZERO1 = Strategy("zero1", (AXIS1, EXPERT), usual_axes=("data",))
ZERO2 = Strategy(
    "zero2", (AXIS2, replace(EXPERT, reduce_scatter_per_microbatch=True)), microbatches=2, usual_axes=("data",)
)
