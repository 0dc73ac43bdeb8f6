"""Fully sharded data parallel: ZeRO stage 3 (Rajbhandari et al. 2020, section 5.3).

Weights, gradients, optimizer state and the batch are sharded over the devices (sharding/weight_shards.py). With
`gather="layer"` a layer's full weights exist only while the layer runs, or with `prefetch` the layer before it:

    W[D_fsdp,F] -all_gather(fsdp)-> W[D,F], in the compute dtype: each layer forward, and again backward
    dW[D,F] -reduce_scatter(fsdp)-> dW[D_fsdp,F], in `reduce_dtype`

Vectors (norm weights and biases) are used in float32, and therefore gathered in float32.

For P parameters on n devices, E of them in the embedding and the head, a device sends (3 P - E) (n-1)/n elements for
each microbatch. The embedding is gathered once: its backward pass needs no weights. The head is gathered once, too: its
backward pass follows at once. A tied head uses the token table a second time: the table is gathered, and its gradient
scattered, once more. Vectors that the backward pass does not need are not gathered again. With `regather=False` the
gathered weights are kept for the backward pass. No weight is gathered again, and a device sends 2 P (n-1)/n elements
for each microbatch.

With `prefetch="on"` a layer's weights are gathered while the layer before it runs, and backward the gradients of the
following layer are scattered meanwhile (model/prefetch.py). The last layer's weights are not gathered again.

With `gather="step"` all weights are gathered before the first microbatch and kept until the last:

    W[D_fsdp,F] -all_gather(fsdp)-> W[D,F], each weight, in the compute dtype, once a step
    dW[D,F] -reduce_scatter(fsdp)-> dW[D_fsdp,F], each weight, in `reduce_dtype`, once a step

A device sends 2 P (n-1)/n elements a step, whatever the number of microbatches. During them it holds all weights in
the compute dtype, and all gradients, accumulated in float32.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh
from jaxtyping import Array

from strategies.config import GPTConfig, TrainConfig
from strategies.mesh import Devices, MeshSpec, are_virtual
from strategies.model.hooks import ONE_DEVICE, Hooks
from strategies.model.order import after
from strategies.model.remat import GATHERED
from strategies.model.weights import Weights, used_dtype
from strategies.sharding.layout import Axes, Layout
from strategies.sharding.weight_shards import Shards
from strategies.step import Implementation, Step
from strategies.strategy import Strategy
from strategies.torus import V5E
from strategies.training.train_step import assemble

AXES = ("fsdp",)
LAYOUT = Layout(batch=AXES, shards=AXES)


def implementation(shards: Shards, train: TrainConfig, mesh: Mesh) -> Implementation:
    """The hooks and functions by which devices gather these shards and reduce-scatter their gradients."""

    scatter = partial(shards.scatter, dtype=train.reduce_dtype)

    by_token = mesh.devices.flat[0].device_kind in V5E and shards.count == mesh.size

    def gather(part: Array, dims: Sequence[str], dtype: str) -> Array:
        if by_token and part.ndim == 3:  # [D,3,A], see `by_token_first`
            weight = gather(part.reshape(len(part), -1), dims[:2], dtype)
            return weight.reshape(-1, *part.shape[1:])
        weight = _gather_scatter(shards, train.reduce_dtype, dims, dtype)(part)
        return weight if train.regather else checkpoint_name(weight, GATHERED)

    def gather_cast(part: Array, dims: Sequence[str]) -> Array:
        return shards.gather(part.astype(used_dtype(dims, train.dtype)), dims)

    def gather_all(parts: Weights) -> Weights:
        return shards.map_weights(gather_cast, parts)

    def scatter_all(loss: Array, grads: Weights) -> tuple[Array, Weights]:
        return lax.psum(loss, shards.axes), shards.map_weights(scatter, grads)

    if train.gather == "step":
        return Implementation(prepare_params=gather_all, reduce=scatter_all)
    return Implementation(
        hooks=Hooks(
            gather=gather,
            head=head_first if are_virtual(mesh.devices.ravel()) else ONE_DEVICE.head,
            projected=by_token_first if by_token else ONE_DEVICE.projected,
        ),
        reduce=lambda loss, grads: (lax.psum(loss, shards.axes), grads),
    )


def _gather_scatter(shards: Shards, reduce_dtype: str, dims: Sequence[str], dtype: str) -> Callable[[Array], Array]:
    """A function that gathers a weight in `dtype`, and whose transpose sums the gradients in `reduce_dtype`.

    Autodiff's transpose of a gather sums in the dtype of the gather. It is used where both dtypes are the same.
    """

    def gather(part: Array) -> Array:
        return shards.gather(part.astype(dtype), dims)

    if dtype == reduce_dtype:
        return gather
    function = jax.custom_vjp(gather)
    function.defvjp(lambda part: (gather(part), None), lambda _, grad: (shards.scatter(grad, dims, reduce_dtype),))
    return function


def by_token_first(qkv_BTCA: Array) -> Array:
    """Queries, keys and values unchanged. The projection writes them token by token, before attention takes them.

    Splash attention takes heads first. If the projection writes heads first, libtpu copies its gathered weights for
    that, 100 MB in each pass over a layer of gpt3-6.7b. Instead it copies queries, keys and values, 50 MB with a
    sequence of 2,048 tokens. The weights are gathered as [D,3A]: gathered as [D,3,A], they would be copied again.

    It is used on v5e where all devices shard the weights: a step on v5e:16x16 in bfloat16 with unroll=1 takes 692 ms
    instead of 707 (simulated). hsdp is 1% slower with it, and 4% on v5p, which gathers ahead.
    """
    flat_NF = lax.optimization_barrier(qkv_BTCA.reshape(qkv_BTCA.shape[0] * qkv_BTCA.shape[1], -1))
    return flat_NF.reshape(qkv_BTCA.shape)


@jax.custom_vjp
def head_first(x_BTD: Array, weights: Any) -> tuple[Array, Any]:
    """Return x and the head's norm weights unchanged. Backward, the gradient of x depends on that of the weights.

    So the weight gradients are scattered before the backward pass of the blocks begins. Otherwise XLA's CPU backend may
    scatter them concurrently with the loop over blocks, and virtual devices may deadlock
    (benchmarks/program/deadlock.py). XLA of JAX 0.12 does so where a device has one sequence of 4096 tokens or more.
    """
    return x_BTD, weights


def _head_first_backward(_: None, grads: tuple[Array, Any]) -> tuple[Array, Any]:
    dx_BTD, dweights = grads
    first: Any = sum(grad.reshape(-1)[0] for grad in jax.tree.leaves(dweights))
    return after(first, dx_BTD), dweights


head_first.defvjp(lambda x_BTD, weights: ((x_BTD, weights), None), _head_first_backward)


def build(config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None = None) -> Step:
    """Build the step. Arguments and errors are those of `Strategy.build`."""
    return build_over(AXES, LAYOUT, config, mesh, train, devices)


def build_over(
    axes: Axes, layout: Layout, config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None
) -> Step:
    """Build a step whose weights are sharded over `layout.shards`.

    Args:
        axes: all axes of the device mesh. One that `mesh` leaves out has size one.
        layout: which axes split what.
        config, mesh, train, devices: as in `Strategy.build`.

    Raises:
        Infeasible: model, mesh and batch do not fit together.
    """
    device_mesh = mesh.over(axes, devices)
    shards = layout.shards_of(layout.shards, config, mesh.sizes)
    return assemble(config, device_mesh, train, layout, implementation(shards, train, device_mesh))


OPTIONS = "gather", "regather", "prefetch", "reduce_dtype"
FSDP = Strategy("fsdp", AXES, build, OPTIONS, LAYOUT)
