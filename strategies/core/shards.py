"""Shards of weights, gradients and moments, for the ZeRO family (Rajbhandari et al. 2020).

              weights   gradients   optimizer state
    data      whole     whole       whole
    zero1     whole     whole       split               stage 1, section 5.1
    zero2     whole     split       split               stage 2, section 5.2
    fsdp      split     split       split               stage 3, section 5.3
    hsdp      as fsdp in each of several groups of devices, which hold the same

Weight, gradient and moments are split along the same dim, so that a device's shards of them match. A weight without a
dim that the devices divide, such as the scale of a norm of heads, is whole on each, and its gradient is summed once a
step (`Sizes.replicas_of`). An axis that splits a weight already, as `expert` splits experts, does not split it again.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from jax import lax
from jaxtyping import Array

from strategies.config import ReduceDtype
from strategies.core.collectives import all_gather, reduce_scatter
from strategies.gpt_config import GPTConfig
from strategies.infeasible import require_divides
from strategies.model.gpt import map_weights, weight_specs
from strategies.model.weights import STACKS, Weights, WeightSpec

Axes = tuple[str, ...]
WHOLE = *STACKS, "qkv", "qk"
"""Dims that are not split: layers are gathered one by one, and queries and keys are next to each other."""


def size_of(axes: Collection[str], sizes: Mapping[str, int]) -> int:
    """Number of devices along some axes of a mesh with these axis sizes. An absent axis has size one."""
    size = 1
    for axis in axes:
        size *= sizes.get(axis, 1)
    return size


def unsplit(axes: Axes, dims: Sequence[str], split: Mapping[str, Axes]) -> Axes:
    """Those of the axes that do not split a weight with these dims. `split` has the axes that split each dim."""
    splitting = {axis for dim in dims for axis in split.get(dim, ())}
    return tuple(axis for axis in axes if axis not in splitting)


@dataclass(frozen=True)
class Shards:
    """Every weight split along its first dim, other than `WHOLE`, that the devices along its axes divide, if any.

    Attributes:
        axes: mesh axes that together split each weight, but those that `split` it already.
        sizes: of the mesh axes.
        config: the model.
        split: dims -> mesh axes that split them already.
        may_split_dim_twice: whether a dim that is split already may be split again if the weight has no other dim, as a
            bias. Otherwise such a weight is not split.

    Raises:
        Infeasible: the devices do not divide the embed dim, the features of all heads (queries', keys'), or the mlp dim
            if a weight has no other, such as a bias.
    """

    axes: Axes
    sizes: Mapping[str, int]
    config: GPTConfig
    split: Mapping[str, Axes]
    may_split_dim_twice: bool = True

    def __post_init__(self) -> None:
        """Check that the dims can be split of which every weight has one."""
        config, features = self.config, self._parts("head_features")
        sizes = {"embed": (config.embed, features)}
        if any("mlp" in spec.dims and "embed" not in spec.dims for spec in weight_specs(config).values()):
            sizes["mlp"] = config.mlp_dim, self._parts("mlp")
        if config.head_features != config.embed:
            sizes |= {"embed": (config.embed, 1), "heads x head_size": (config.head_features, features)}
        if config.key_heads:
            sizes["key_heads x head_size"] = config.key_features, self._parts("key_features")
        for name, (size, already) in sizes.items():
            parts = already if self.may_split_dim_twice else 1
            left = f"{name}/{parts}" if parts > 1 else name
            require_divides(" x ".join(self.axes), size_of(self.axes, self.sizes), **{left: size // parts})

    def axes_of(self, dims: Sequence[str]) -> Axes:
        """Mesh axes that split a weight with these dims, if it has a dim for them (`find`)."""
        return unsplit(self.axes, dims, self.split)

    def find(self, dims: Sequence[str]) -> int | None:
        """The index of the dim along which a weight is split; None if the weight stays whole."""
        if not (axes := self.axes_of(dims)):
            return None
        sizes = {**self.config.dim_sizes, "vocab": self.config.vocab_rows(self._parts("vocab"))}
        fit = [i for i, name in enumerate(dims) if sizes[name] // self._parts(name) % size_of(axes, self.sizes) == 0]
        allowed = [i for i in fit if dims[i] not in WHOLE and (self.may_split_dim_twice or self._parts(dims[i]) == 1)]
        return min(allowed, key=lambda i: self._parts(dims[i]) > 1, default=None)

    def gather(self, part: Array, spec: WeightSpec, to: Literal["varying", "invarying"] = "varying") -> Array:
        """W[D_axis,F] -> W[D,F]. `to` is the type of the result in `jax.shard_map`: varying over the axes, or not."""
        if (dim := self.find(spec.dims)) is None:
            return part
        if to == "varying":
            return all_gather(part, self.axes_of(spec.dims), dim)
        return lax.all_gather(part, self.axes_of(spec.dims), axis=dim, tiled=True, to=to)

    def scatter(self, grad: Array, spec: WeightSpec, dtype: ReduceDtype) -> Array:
        """dW[D,F] of each device -> this device's shard dW[D_axis,F] of their sum, in float32.

        It is summed in `dtype`, or in the dtype that this weight has instead (`WeightSpec.summed_dtype`).
        """
        if (dim := self.find(spec.dims)) is None:
            return grad.astype("float32")
        return reduce_scatter(grad.astype(spec.summed_dtype(dtype)), self.axes_of(spec.dims), dim).astype("float32")

    def local_part(self, weight: Array, spec: WeightSpec) -> Array:
        """W[D,F] -> W[D_axis,F], the shard of this device."""
        if (dim := self.find(spec.dims)) is None:
            return weight
        axes = self.axes_of(spec.dims)
        size = weight.shape[dim] // size_of(axes, self.sizes)
        return lax.dynamic_slice_in_dim(weight, lax.axis_index(axes) * size, size, dim)

    def _parts(self, dim: str) -> int:
        return size_of(self.split.get(dim, ()), self.sizes)

    def map_weights(self, function: Callable[..., Array], weights: Weights, *others: Weights) -> Weights:
        """Apply a function of an array and its spec, such as `gather`, to weights of a model (`gpt.map_weights`)."""
        return map_weights(function, self.config, weights, *others)
