"""Data parallel: each device holds all weights and its part of the batch (Li et al. 2020, "PyTorch Distributed").

    dW[D,F] -all_reduce(data)-> dW[D,F], each weight, once a step, after all microbatches, in `reduce_dtype`

A device sends 2 P (n-1)/n elements a step, for P parameters on n devices; and the loss. With `bucket_bytes` a
collective is no longer one weight's: gradients are laid end to end, in the order in which the backward pass makes them,
and each `bucket_bytes` of them are one all-reduce (section 3.2.3 there). A device sends the same elements. With
`compression` they are not sent in float32, and not summed exactly: see compression.py.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from strategies.config import GPTConfig, TrainConfig
from strategies.mesh import Devices, MeshSpec
from strategies.model.weights import Weights
from strategies.sharding.layout import Layout
from strategies.step import Implementation, Step, Strategy
from strategies.training.compression import compressed
from strategies.training.gradients import cast
from strategies.training.train_step import assemble

AXES = ("data",)
LAYOUT = Layout(batch=AXES)
BACKWARD = ("head", "blocks", "embedding")
"""The parts of the model, in the order in which their gradients are ready."""


def buckets(sizes: Sequence[int], capacity: int) -> list[list[tuple[int, slice]]]:
    """Arrays of these sizes end to end, cut after every `capacity` elements: of which array which part is in a bucket.

    >>> buckets([3, 4], capacity=5)
    [[(0, slice(0, 3, None)), (1, slice(0, 2, None))], [(1, slice(2, 4, None))]]
    """
    filled: list[list[tuple[int, slice]]] = []
    room = 0
    for i, size in enumerate(sizes):
        start = 0
        while start < size:
            if room == 0:
                filled, room = [*filled, []], capacity
            stop = min(size, start + room)
            filled[-1].append((i, slice(start, stop)))
            start, room = stop, room - (stop - start)
    return filled


def all_reduce_buckets(loss: Array, grads: Weights, bucket_bytes: int, dtype: str) -> tuple[Array, Weights]:
    """The same sums in one collective for each bucket, one after another; the loss in the first if that is float32."""
    whole = loss.dtype == dtype
    ready = loss if whole else None, [cast(grads[part], dtype) for part in BACKWARD]
    arrays, structure = jax.tree.flatten(ready)
    filled = buckets([array.size for array in arrays], bucket_bytes // arrays[0].dtype.itemsize)
    sums: list[Array] = []
    for bucket in filled:
        packed = jnp.concatenate([arrays[i].reshape(-1)[part] for i, part in bucket])
        if sums:  # each waits for the one before: of several at once the compiler makes one, through barriers too
            packed += 0 * lax.pcast(sums[-1][0], AXES, to="varying")
        sums.append(lax.psum(packed, AXES))
    pieces: list[list[Array]] = [[] for _ in arrays]
    for bucket, packed in zip(filled, sums, strict=True):
        ends = np.cumsum([part.stop - part.start for _, part in bucket])
        for (i, _), piece in zip(bucket, jnp.split(packed, ends[:-1]), strict=True):
            pieces[i].append(piece)
    summed = [jnp.concatenate(piece).reshape(array.shape) for piece, array in zip(pieces, arrays, strict=True)]
    packed_loss, parts = jax.tree.unflatten(structure, summed)
    grads = cast(dict(zip(BACKWARD, parts, strict=True)), "float32")
    return packed_loss if whole else lax.psum(loss, AXES), grads


def stack(loss: Array, grads: Weights) -> tuple[Array, Weights]:
    """The sum of the loss; of the gradients each device keeps its share, until compression.py sums them."""
    return lax.psum(loss, AXES), jax.tree.map(lambda grad: grad[None], grads)


def build(config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None = None) -> Step:
    """Build the step. Arguments and errors are those of `Strategy.build`."""
    implementation = Implementation()
    if train.compression != "none":
        optimizer = partial(compressed, train=train, devices=mesh.size)
        implementation = Implementation(
            sum_replicas=stack, optimizer=optimizer, inexact=f"compression={train.compression}"
        )
    elif train.bucket_bytes:
        buckets_of = {"bucket_bytes": train.bucket_bytes, "dtype": train.reduce_dtype}
        implementation = Implementation(sum_replicas=partial(all_reduce_buckets, **buckets_of))
    return assemble(config, mesh.over(AXES, devices), train, LAYOUT, implementation)


OPTIONS = "bucket_bytes", "compression", "compression_warmup", "reduce_dtype"
DATA = Strategy("data", AXES, build, OPTIONS, LAYOUT)
