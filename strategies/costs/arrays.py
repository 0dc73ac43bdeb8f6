"""The arrays that a step keeps or accumulates: their dims, the mesh axes that split them, and their bytes.

Everything follows from the placement and the sizes of model and mesh; nothing is allocated.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from strategies.core.matrices import moments_of
from strategies.core.placement import Axes, Split, size_of
from strategies.core.plan import Plan
from strategies.core.sizes import BYTES, held_dtype


@dataclass(frozen=True)
class HeldArray:
    """One array of a training step, and how a mesh splits it.

    Attributes:
        what: weight, gradient, m or v (the optimizer's first and second moment), master (weight), step count, or batch.
        name: of its weight, such as "blocks.mlp.up_DF"; otherwise "count" or "tokens".
        dims: names of the dims, in the stored order.
        shape: with padding of the vocabulary and empty layer slots.
        axes: for each dim the mesh axes that split it, outermost first.
        held_bytes: bytes of one device's shard.
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
    """Every weight with its gradient, moments and master, the step count, and the batch.

    Gradients are as accumulated over microbatches, before any reduce-scatter once a step. They are float32 if they are
    sums over microbatches or devices; otherwise they have the weight's dtype.
    """
    config, mesh, train = plan.held_config, plan.mesh, plan.train
    per_microbatch = plan.scatters_microbatches
    sizes = {**config.dim_sizes, "layers": plan.layer_slots, "vocab": plan.padded_vocab}
    as_held = ("weight",) if train.microbatches > 1 or per_microbatch else ("weight", "gradient")

    def array(
        what: str, name: str, dims: Sequence[str], shape: Sequence[int], axes: Split, dtype: str = "float32"
    ) -> HeldArray:
        whole_bytes = BYTES[dtype] * math.prod(shape)
        parts = math.prod(size_of(each, mesh.sizes) for each in axes)
        return HeldArray(what, name, tuple(dims), tuple(shape), axes, whole_bytes, whole_bytes // parts)

    for name, weight in plan.weights.items():
        spec, whole = weight.spec, weight.used if train.gather == "step" else weight.stored
        moments = moments_of(spec, train)
        splits = {"weight": weight.stored, "gradient": weight.updated if per_microbatch else whole}
        splits |= dict.fromkeys(moments, weight.updated)
        splits |= {"master": weight.updated} if train.master != "none" else {}
        shape = [sizes[dim] for dim in spec.dims]
        for what, axes in splits.items():
            dtype = held_dtype(spec, train) if what in as_held else moments.get(what, "float32")
            yield array(what, name, spec.dims, shape, axes, dtype)
    yield array("step count", "count", (), (), ())
    tokens = (train.batch_size, config.sequence + 1)  # int32 has the size of float32
    yield array("batch", "tokens", ("batch", "sequence"), tokens, (plan.placement.batch, ()))
