"""Data parallel: each device holds a replica of all weights and a shard of the batch (Li et al. 2020, "PyTorch
Distributed").

    dW[D,F] -all_reduce(data)-> dW[D,F], each weight, once a step, in `reduce_dtype`: after all microbatches, or with
        `reduce="layer"` each layer's in the backward loop (core/layer_reduction.py)

For P parameters on n devices a device sends 2 P (n-1)/n elements a step, and the loss. By default there is one
all-reduce for each weight. With `bucket_bytes` the gradients are concatenated in the order of the backward pass, and
there is one all-reduce for each bucket of `bucket_bytes` (section 3.2.3 of the paper); with `reduce="layer"` each layer
has its own buckets. The number of elements is the same. With `compression` gradients are sent as int8 or as signs, and
their sum is not exact (core/compression.py).
"""

import bisect
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from strategies.config import DEFAULTS, NEEDS
from strategies.core.axis import Axis
from strategies.core.compression import BLOCK, compressed, padded
from strategies.core.gradients import cast, sum_remaining
from strategies.core.layer_reduction import resolve_reduce
from strategies.core.plan import Plan
from strategies.core.traffic import Traffic, replica_sums, traffic
from strategies.infeasible import Infeasible
from strategies.model.gpt import weight_specs
from strategies.model.layers import after
from strategies.model.weights import Weights
from strategies.step import Implementation
from strategies.strategy import Strategy

MOST_BUCKETS = 1000
"""Upper bound on the number of all-reduces with `bucket_bytes`. XLA's CPU backend takes 12 s to compile a step of
`data` with 100 of them, and 20 s with 400, on one core."""
BACKWARD = ("head", "mtp", "blocks", "lead", "embedding")
"""Parts of the model in backward order."""


def buckets(sizes: Sequence[int], capacity: int) -> list[list[tuple[int, slice]]]:
    """Cut the concatenation of arrays of these sizes into buckets of `capacity` elements.

    Returns the pieces of each bucket: the index of an array, and a slice of that array, flattened.

    >>> buckets([3, 4], capacity=5)
    [[(0, slice(0, 3, None)), (1, slice(0, 2, None))], [(1, slice(2, 4, None))]]
    """
    filled: list[list[tuple[int, slice]]] = []
    free = 0
    for i, size in enumerate(sizes):
        start = 0
        while start < size:
            if free == 0:
                filled, free = [*filled, []], capacity
            stop = min(size, start + free)
            filled[-1].append((i, slice(start, stop)))
            start, free = stop, free - (stop - start)
    return filled


def all_reduce_buckets(grads: Weights, bucket_bytes: int, dtype: str) -> Weights:
    """Sum gradients over devices in `dtype`, with one all-reduce per bucket, in order. The results are float32."""
    arrays, structure = jax.tree.flatten([cast(grads[part], dtype) for part in BACKWARD if part in grads])
    sums = jax.tree.unflatten(structure, cast(sum_in_buckets(arrays, bucket_bytes), "float32"))
    return dict(zip([part for part in BACKWARD if part in grads], sums, strict=True))


def all_reduce_layer(grads: list[Array], bucket_bytes: int, dtype: str) -> list[Array]:
    """`all_reduce_buckets` of one layer's gradients."""
    return cast(sum_in_buckets(cast(grads, dtype), bucket_bytes), "float32")


def sum_in_buckets(arrays: list[Array], bucket_bytes: int) -> list[Array]:
    """Sum arrays of one dtype over devices with one all-reduce per bucket, in order."""
    filled = buckets([array.size for array in arrays], bucket_bytes // arrays[0].dtype.itemsize)
    sums: list[Array] = []
    for bucket in filled:
        packed = jnp.concatenate([arrays[i].reshape(-1)[part] for i, part in bucket])
        # Each all-reduce depends on the previous one. The compiler would merge independent ones, even across barriers.
        if sums:
            packed = after(lax.pcast(sums[-1][0], "data", to="varying"), packed)
        sums.append(lax.psum(packed, "data"))
    pieces: list[list[Array]] = [[] for _ in arrays]
    for bucket, packed in zip(filled, sums, strict=True):
        ends = np.cumsum([part.stop - part.start for _, part in bucket])
        for (i, _), piece in zip(bucket, jnp.split(packed, ends[:-1]), strict=True):
            pieces[i].append(piece)
    return [jnp.concatenate(piece).reshape(array.shape) for piece, array in zip(pieces, arrays, strict=True)]


def require(plan: Plan) -> None:
    """Refuse other axes with buckets or compression, too many buckets, and router biases whose loads would
    be rounded.
    """
    _require_alone(plan)
    require_few_buckets(plan)
    train, rate = plan.train, f"router_bias_rate={plan.config.router_bias_rate}"
    if plan.config.router_bias_rate is None:
        return
    if train.compression != "none":
        raise Infeasible(f"{rate} does not go with compression={train.compression}; omit one of them")
    if train.bucket_bytes and train.reduce_dtype != "float32":
        problem = f"{rate} does not go with bucket_bytes={train.bucket_bytes} and reduce_dtype={train.reduce_dtype}"
        raise Infeasible(f"{problem}, which would round the loads of experts; omit one of the three")


def _require_alone(plan: Plan) -> None:
    """Refuse buckets and compression with axes other than `data`, where devices have gradients of different weights."""
    train, others = plan.train, [axis.name for axis in plan.active if axis.name != "data"]
    own = {"bucket_bytes": (train.bucket_bytes, None), "compression": (train.compression, "none")}
    for name, (value, default) in own.items():
        if others and value != default:
            problem = f"{name}={value} sums only over the axis data, and mesh {plan.mesh} has {' and '.join(others)}"
            given = (each for each, (needed, _) in NEEDS.items() if needed == name)
            idle = [each for each in given if vars(train)[each] != DEFAULTS[each]]
            raise Infeasible(f"{problem}; omit {' and '.join([name, *idle]) if idle else 'it'}")


def require_few_buckets(plan: Plan) -> None:
    """Refuse `bucket_bytes` so small that the program would have more than `MOST_BUCKETS` all-reduces.

    With `reduce="layer"` one layer's buckets are in the program once, in a loop.
    """
    config, train = plan.config, plan.train
    if not train.bucket_bytes:
        return
    sizes, itemsize = {**config.dim_sizes, "vocab": config.vocab_rows()}, jnp.dtype(train.reduce_dtype).itemsize
    layer = ends = 0
    for spec in weight_specs(config).values():
        elements = math.prod(sizes[dim] for dim in spec.dims if dim != "layers")
        layer, ends = (layer + elements, ends) if spec.is_stacked else (layer, ends + elements)
    groups = (layer, ends) if train.reduce == "layer" else (config.blocks * layer + ends,)

    def count(bucket_bytes: int) -> int:
        return sum(-(-elements // (bucket_bytes // itemsize)) for elements in groups)

    if (buckets := count(train.bucket_bytes)) > MOST_BUCKETS:
        possible = range(itemsize, sum(groups) * itemsize + 1, itemsize)
        least = possible[bisect.bisect_left(possible, -MOST_BUCKETS, key=lambda bucket_bytes: -count(bucket_bytes))]
        problem = f"bucket_bytes={train.bucket_bytes} makes {buckets:,} buckets, and each is a sum to compile"
        raise Infeasible(f"{problem}; take at least bucket_bytes={least}, for {MOST_BUCKETS:,} or fewer")


def implement(plan: Plan) -> Implementation:
    """Sum gradients compressed or in buckets if the options say so; otherwise like every strategy."""
    train = plan.train
    if train.compression != "none":
        optimizer = partial(compressed, train=train, devices=plan.size("data"))
        # Each device keeps its own gradients, as [1,...]; compression.py sums them later.
        own = partial(jax.tree.map, lambda grad: grad[None])
        reduce = partial(sum_remaining, plan=plan, sum_replicas=own)
        return Implementation(reduce=reduce, optimizer=optimizer, inexact=f"compression={train.compression}")
    if train.bucket_bytes:
        buckets_of: Any = {"bucket_bytes": train.bucket_bytes, "dtype": train.reduce_dtype}
        reduce = partial(sum_remaining, plan=plan, sum_replicas=partial(all_reduce_buckets, **buckets_of))
        return Implementation(reduce=reduce, sum_layer=partial(all_reduce_layer, **buckets_of))
    return Implementation()


def compressed_sums(plan: Plan) -> Iterator[Traffic]:
    """Codes and scales with compression="int8"; otherwise the all-reduces of every strategy.

    "onebit" has the all-reduces of its warm-up steps, because the larger branch of a conditional counts.
    """
    if plan.train.compression != "int8":
        yield from replica_sums(plan)
        return
    devices = plan.size("data")
    codes = padded(plan.elements, devices)
    term = partial(traffic, plan, axes=("data",), array="gradients", when=plan.when_summed)
    for kind, count in (("all_to_all", codes), ("all_gather", codes // devices)):
        yield from term("codes", kind, elements=count, dtype="int8")
        yield from term("scales", kind, elements=count // BLOCK)


REPLICAS = Axis("data", batch=True, options=("reduce", "reduce_dtype"), resolve=resolve_reduce)
"""Replicas of the weights, or of shards of them that other axes make."""
AXIS = replace(
    REPLICAS,
    options=("bucket_bytes", "compression", "compression_warmup", *REPLICAS.options),
    resolve=lambda plan: {**resolve_reduce(plan), "compression": plan.train.compression},
    require=require,
    implement=implement,
    replica_sums=compressed_sums,
)
DATA = Strategy("data", (AXIS,))
