"""Fully sharded data parallel: ZeRO stage 3 (Rajbhandari et al. 2020, section 5.3).

Weights, gradients and optimizer state are split over the devices, each weight along its first dim that divides; a
layer's weights are whole only while the layer runs. So is the batch split.

    W[D_fsdp,F] -all_gather(fsdp)-> W[D,F], in the compute dtype: each layer forward, and again backward
    dW[D,F] -reduce_scatter(fsdp)-> dW[D_fsdp,F], the transpose that autodiff makes of the gather

For P parameters on n devices, of which E in the embedding, a device sends (3 P - E) (n-1)/n elements for each
microbatch, all in the compute dtype: the embedding is gathered once, for its backward pass needs no weights. A tied
head uses the table of tokens a second time: it is gathered two times more and its gradient scattered once more.
Vectors that the backward pass does not need are not gathered again.
"""

from collections.abc import Mapping, Sequence

from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from strategies.assemble import assemble
from strategies.config import GPTConfig, TrainConfig
from strategies.gpt import Hooks, Weights
from strategies.mesh import Devices, MeshSpec
from strategies.step import Spread, Step, Strategy, require_divides

AXES = ("fsdp",)


def split_dim(dims: Sequence[str], sizes: Mapping[str, int], shards: int) -> int:
    """Which dim of a weight is split: the first that divides, layers apart. Every weight has one where embed has."""
    return next(i for i, name in enumerate(dims) if name != "layers" and sizes[name] % shards == 0)


def build(config: GPTConfig, mesh: MeshSpec, train: TrainConfig, devices: Devices | None = None) -> Step:
    """See `Strategy`."""
    device_mesh = mesh.over(AXES, devices)
    shards, sizes = mesh.size, config.dim_sizes
    require_divides("fsdp", shards, embed=config.embed, mlp=config.mlp_dim)

    def spec(dims: Sequence[str]) -> P:
        return P(*[None] * split_dim(dims, sizes, shards), "fsdp")

    def gather(weight: Array, dims: Sequence[str]) -> Array:
        return lax.all_gather(weight, "fsdp", axis=split_dim(dims, sizes, shards), tiled=True)

    def reduce(loss: Array, grads: Weights) -> tuple[Array, Weights]:
        return lax.psum(loss, "fsdp"), grads

    spread = Spread(
        spec=spec, batch_axes=AXES, hooks=Hooks(gather=gather), microbatches=train.microbatches, reduce=reduce
    )
    return assemble(config, device_mesh, train, spread)


FSDP = Strategy("fsdp", AXES, build)
