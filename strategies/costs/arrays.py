"""The arrays that a step keeps or accumulates: their dims, the mesh axes that split them, and their bytes.

Everything follows from the placement and the sizes of model and mesh. No devices are needed, and nothing is allocated.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jax.sharding import PartitionSpec as P

from strategies.config import TrainConfig
from strategies.core.master import held_dtype
from strategies.core.placement import Axes, Placement, Spec, size_of
from strategies.core.plan import Plan
from strategies.core.sizes import BYTES
from strategies.model.gpt import weight_specs


@dataclass(frozen=True)
class HeldArray:
    """One array of a training step, and how a mesh splits it.

    Attributes:
        what: weight, gradient, m or v (AdamW's first and second moment), master (weight), step count, or batch.
        name: of the weight that it is or belongs to, such as "blocks.mlp.up_DF"; of the others "count" and "tokens".
        dims: names of the dims, in the stored order.
        shape: their sizes, with the padding of the vocabulary and the empty slots for layers.
        axes: for each dim the mesh axes that split it, outermost first.
        whole_bytes: bytes of the whole array.
        held_bytes: bytes of the shard of one device.
    """

    what: str
    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    axes: tuple[Axes, ...]
    whole_bytes: int
    held_bytes: int

    @property
    def split(self) -> str:
        """The dims with their sizes, and after a slash the axes that split them."""
        dims = zip(self.dims, self.shape, self.axes, strict=True)
        return " ".join("/".join([f"{name}={size}", *axes]) for name, size, axes in dims) or "-"


def held_arrays(plan: Plan) -> Iterator[HeldArray]:
    """Every weight with its gradient, AdamW's two moments and its master, the step count, and the batch.

    Gradients are those that a device accumulates over microbatches, before any reduce-scatter once a step. They are
    float32 if they are sums over microbatches or devices; otherwise they have the dtype of the weight.
    """
    config, mesh, train, placement = plan.held_config, plan.mesh, plan.train, plan.placement
    sizes = {**config.dim_sizes, "layers": plan.layer_slots, "vocab": plan.padded_vocab}
    moments = placement.update_spec(config, mesh.sizes)
    specs: Mapping[str, Spec] = {
        "weight": placement.spec(config, mesh.sizes),
        "gradient": accumulated(placement, train).spec(config, mesh.sizes),
        "m": moments,
        "v": moments,
    }
    specs = specs if train.master == "none" else {**specs, "master": moments}

    summed = train.microbatches > 1 or placement.reduce_scatter_per_microbatch
    as_held = ("weight",) if summed else ("weight", "gradient")

    def array(
        what: str, name: str, dims: Sequence[str], shape: Sequence[int], spec: P, dtype: str = "float32"
    ) -> HeldArray:
        axes = tuple(() if each is None else (each,) if isinstance(each, str) else tuple(each) for each in spec)
        axes += ((),) * (len(dims) - len(axes))
        whole_bytes = BYTES[dtype] * math.prod(shape)
        parts = math.prod(size_of(each, mesh.sizes) for each in axes)
        return HeldArray(what, name, tuple(dims), tuple(shape), axes, whole_bytes, whole_bytes // parts)

    for weight in weight_specs(config).values():
        shape = [sizes[dim] for dim in weight.dims]
        held = held_dtype(weight, train)
        for what, spec in specs.items():
            dtype = held if what in as_held else "float32"
            if weight.trained or what not in ("m", "v"):
                yield array(what, weight.name, weight.dims, shape, spec(weight.dims), dtype)
    yield array("step count", "count", (), (), P())
    tokens = (train.batch_size, config.sequence + 1)  # their numbers have as many bytes as float32
    yield array("batch", "tokens", ("batch", "sequence"), tokens, P(placement.batch or None))


def accumulated(placement: Placement, train: TrainConfig) -> Placement:
    """The placement that splits weights as gradients are split while they are accumulated over microbatches.

    If weights are gathered once a step, a device accumulates whole gradients, although it holds a shard of the weights.
    If the gradients of each microbatch are reduce-scattered, it accumulates a shard.
    """
    shards = placement.shards if train.gather == "layer" else ()
    if placement.reduce_scatter_per_microbatch:
        shards = placement.updates
    return replace(placement, shards=shards, updates=(), reduce_scatter_per_microbatch=False)
