"""Shards of weights, gradients and moments, for the ZeRO family (Rajbhandari et al. 2020).

              weights   gradients   optimizer state
    data      whole     whole       whole
    zero1     whole     whole       split               stage 1, section 5.1
    zero2     whole     split       split               stage 2, section 5.2
    fsdp      split     split       split               stage 3, section 5.3
    hsdp      as fsdp in each of several groups of devices, which hold the same

Weight, gradient and moments are split along the same dim, so that a device's shards of them match.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import jax
from jax import lax
from jaxtyping import Array

from strategies.config import GPTConfig, require_divides
from strategies.model.gpt import weight_dims
from strategies.model.weights import Weights
from strategies.sharding.collectives import all_gather, reduce_scatter


@dataclass(frozen=True)
class Shards:
    """Every weight split into `count` parts along its first dim, other than layers, that `count` divides.

    Attributes:
        axes: mesh axes that together split the weights.
        count: number of devices along these axes.
        config: the model.
        cut: dims that other axes split already -> into how many parts.
        again: whether a dim that is split already may be split again if the weight has no other dim, as a bias.
            Otherwise such a weight is not split.

    Raises:
        Infeasible: `count` does not divide the embed dim, the heads' features and the mlp dim; every weight has one.
    """

    axes: tuple[str, ...]
    count: int
    config: GPTConfig
    cut: Mapping[str, int] = field(default_factory=dict)
    again: bool = True

    def __post_init__(self) -> None:
        """Check that the dims can be split of which every weight has one."""
        config, features = self.config, self._parts("head_features")
        sizes = {"embed": (config.embed, features), "mlp": (config.mlp_dim, self._parts("mlp"))}
        if config.head_features != config.embed:
            sizes |= {"embed": (config.embed, 1), "heads x head_size": (config.head_features, features)}
        for name, (size, split) in sizes.items():
            parts = split if self.again else 1
            left = f"{name}/{parts}" if parts > 1 else name
            require_divides(" x ".join(self.axes), self.count, **{left: size // parts})

    def dim(self, dims: Sequence[str]) -> int:
        """The index of the dim along which a weight is split."""
        found = self.find(dims)
        assert found is not None, f"{dims} stay whole: they have no dim that {self.axes} may cut"
        return found

    def find(self, dims: Sequence[str]) -> int | None:
        """The index of the dim along which a weight is split; None if the weight stays whole."""
        sizes = {**self.config.dim_sizes, "vocab": self.config.vocab_rows(self._parts("vocab"))}
        fit = [i for i, name in enumerate(dims) if sizes[name] // self._parts(name) % self.count == 0]
        allowed = [i for i in fit if dims[i] != "layers" and (self.again or self._parts(dims[i]) == 1)]
        return min(allowed, key=lambda i: self._parts(dims[i]) > 1, default=None)

    def gather(self, part: Array, dims: Sequence[str], to: Literal["varying", "invarying"] = "varying") -> Array:
        """W[D_axis,F] -> W[D,F]. `to` is the type of the result in `jax.shard_map`: varying over the axes, or not."""
        if to == "varying":
            return all_gather(part, self.axes, self.dim(dims))
        return lax.all_gather(part, self.axes, axis=self.dim(dims), tiled=True, to=to)

    def scatter(self, grad: Array, dims: Sequence[str], dtype: str) -> Array:
        """dW[D,F] of each device -> this device's shard dW[D_axis,F] of their sum, in float32; summed in `dtype`."""
        return reduce_scatter(grad.astype(dtype), self.axes, self.dim(dims)).astype("float32")

    def local_part(self, weight: Array, dims: Sequence[str]) -> Array:
        """W[D,F] -> W[D_axis,F], the shard of this device."""
        size = weight.shape[self.dim(dims)] // self.count
        return lax.dynamic_slice_in_dim(weight, lax.axis_index(self.axes) * size, size, self.dim(dims))

    def _parts(self, dim: str) -> int:
        return self.cut.get(dim, 1)

    def map_weights(self, function: Callable[..., Array], weights: Weights, *others: Weights) -> Weights:
        """Apply a function of an array and its dims, such as `gather`, to weights of a model, or of parts of it.

        If there are other weights, it also takes those.
        """
        dims = weight_dims(self.config)
        return jax.tree.map(function, weights, {part: dims[part] for part in weights}, *others)
