"""The arrays that a step keeps or accumulates: their dims, the mesh axes that split them, and their bytes.

Everything follows from the layout and the sizes of model and mesh. No devices are needed, and nothing is allocated.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jax.sharding import PartitionSpec as P

from strategies.config import GPTConfig, TrainConfig
from strategies.costs.plan import BYTES
from strategies.mesh import MeshSpec
from strategies.model.gpt import weight_specs
from strategies.sharding.layout import Axes, Layout, Spec, size_of
from strategies.training.sharded_update import held_dtype


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


def held_arrays(
    config: GPTConfig, mesh: MeshSpec, train: TrainConfig, layout: Layout, layer_slots: int
) -> Iterator[HeldArray]:
    """Every weight with its gradient, AdamW's two moments and its master, the step count, and the batch.

    Gradients are those that a device accumulates over microbatches, before any reduce-scatter once a step. They are
    float32 if they are sums over microbatches or devices; otherwise they have the dtype of the weight.

    Args:
        config: the model.
        mesh: the mesh.
        train: training options.
        layout: the strategy's layout, along the mesh axes of more than one device.
        layer_slots: number of slots for layers on all stages together, empty ones included.

    Raises:
        Infeasible: the axes do not divide the embed or mlp dim.
    """
    sizes = {**config.dim_sizes, "layers": layer_slots}
    sizes["vocab"] = config.vocab_rows(layout.parts(mesh.sizes).get("vocab", 1))
    moments = layout.update_spec(config, mesh.sizes)
    specs: Mapping[str, Spec] = {
        "weight": layout.spec(config, mesh.sizes),
        "gradient": accumulated(layout, train).spec(config, mesh.sizes),
        "m": moments,
        "v": moments,
    }
    specs = specs if train.master == "none" else {**specs, "master": moments}

    as_held = ("weight",) if train.microbatches > 1 or layout.scatters_each else ("weight", "gradient")

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
            yield array(what, weight.name, weight.dims, shape, spec(weight.dims), dtype)
    yield array("step count", "count", (), (), P())
    tokens = (train.batch_size, config.sequence + 1)  # their numbers have as many bytes as float32
    yield array("batch", "tokens", ("batch", "sequence"), tokens, P(layout.batch or None))


def accumulated(layout: Layout, train: TrainConfig) -> Layout:
    """The layout that splits weights as gradients are split while they are accumulated over microbatches.

    If weights are gathered once a step, a device accumulates whole gradients, although it holds a shard of the weights.
    If the gradients of each microbatch are reduce-scattered, it accumulates a shard.
    """
    shards = layout.shards if train.gather == "layer" else ()
    return replace(layout, shards=layout.updates if layout.scatters_each else shards, updates=(), scatters_each=False)
