"""The table of weights: which mesh axes split each while it is used, while it is stored, and while it is updated.

              used      stored    updated
    data      whole     whole     whole
    zero1, 2  whole     whole     split     stages 1 and 2 of ZeRO (Rajbhandari et al. 2020, sections 5.1 and 5.2)
    fsdp      whole     split     split     stage 3, section 5.3
    tensor    split     split     split     the features, and with them the work

All else follows. A weight is gathered before use if it is stored in more parts than it is used in, and after the update
if it is updated in more parts than it is stored in. Its gradient is scattered if it is updated in more parts than it is
used in, and summed over the axes that split tokens and not the weight.

The ZeRO family splits a weight once more, along the first dim, other than `WHOLE`, that its devices divide. Gradient
and moments are split along the same dim, so that a device's parts of them match. A weight without such a dim, such as
the scale of a norm of heads, stays whole. An axis that splits a weight already, as `expert` splits experts, does not
split it again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from jax.sharding import PartitionSpec as P

from strategies.core.placement import Axes, Placement, size_of
from strategies.gpt_config import GPTConfig
from strategies.infeasible import require_divides
from strategies.model.gpt import weight_specs
from strategies.model.weights import STACKS, WeightSpec

Split = tuple[Axes, ...]
"""The mesh axes that split each dim of an array, outermost first."""
WHOLE = *STACKS, "qkv", "qk"
"""Dims that are not split: layers are gathered one by one, and queries and keys are next to each other."""


class Part(NamedTuple):
    """A dim of an array that is split, and the mesh axes that split it."""

    dim: int
    axes: Axes


@dataclass(frozen=True)
class Placed:
    """Where the parts of a weight are.

    Attributes:
        used: how it is split while a layer computes with it. The work is split alike.
        stored: between steps.
        updated: its gradient, moments and update.
        summed: mesh axes over which its gradient remains to be summed: they split tokens, and not the weight.
        gathered: what is gathered before use, and scattered of the gradient; None if it is stored as it is used.
        shared: what is scattered of the gradient, and gathered after the update; None if it is updated as it is stored.
    """

    used: Split
    stored: Split
    updated: Split
    summed: Axes
    gathered: Part | None = None
    shared: Part | None = None


@dataclass(frozen=True, kw_only=True)
class Weight(Placed):
    """A row of the table: a weight of the model, and where its parts are.

    Attributes:
        spec: what the model says of it.
        elements: that one device stores.
        updated_elements: that one device updates.
    """

    spec: WeightSpec
    elements: int
    updated_elements: int

    @cached_property
    def axes(self) -> Axes:
        """Mesh axes that split it between steps."""
        return tuple(chain(*self.stored))

    @cached_property
    def updated_axes(self) -> Axes:
        """Mesh axes that split its update."""
        return tuple(chain(*self.updated))


def placed(placement: Placement, config: GPTConfig, sizes: Mapping[str, int], dims: Sequence[str]) -> Placed:
    """Where the parts of a weight are.

    Args:
        placement: what the axes split.
        config: the model, as devices hold it.
        sizes: of the mesh axes.
        dims: of the weight.
    """
    used, further = tuple(placement.dims.get(dim, ()) for dim in dims), placement.shards or placement.updates
    axes, summed = placement.not_splitting(dims, further), placement.not_splitting(dims, placement.replicas)
    dim = _dim_for(size_of(axes, sizes), used, config, sizes, dims, placement.may_split_dim_twice) if axes else None
    if dim is None:
        return Placed(used, used, used, (*summed, *axes))
    split = tuple((*each, *axes) if i == dim else each for i, each in enumerate(used))
    part = Part(dim, axes)
    if placement.shards:
        return Placed(used, split, split, summed, gathered=part)
    return Placed(used, used, split, summed, shared=part)


def _dim_for(
    parts: int, used: Split, config: GPTConfig, sizes: Mapping[str, int], dims: Sequence[str], may_split_twice: bool
) -> int | None:
    """The dim along which a weight is split into more parts; None if there is none."""
    already = [size_of(axes, sizes) for axes in used]
    whole = {**config.dim_sizes, "vocab": config.vocab_rows(already[dims.index("vocab")] if "vocab" in dims else 1)}
    fit = [i for i, name in enumerate(dims) if whole[name] // already[i] % parts == 0 and name not in WHOLE]
    allowed = [i for i in fit if may_split_twice or already[i] == 1]
    return min(allowed, key=lambda i: already[i] > 1, default=None)


def require_parts(placement: Placement, config: GPTConfig, sizes: Mapping[str, int], axes: Axes) -> None:
    """Check that devices along some axes divide the dims of which every weight has one.

    Raises:
        Infeasible: they do not divide the embed dim, the features of all heads (queries', keys'), or the mlp dim if a
            weight has no other, such as a bias.
    """

    def already(dim: str) -> int:
        return size_of(placement.dims.get(dim, ()), sizes)

    features = already("head_features")
    dims = {"embed": (config.embed, features)}
    if any("mlp" in spec.dims and "embed" not in spec.dims for spec in weight_specs(config).values()):
        dims["mlp"] = config.mlp_dim, already("mlp")
    if config.head_features != config.embed:
        dims |= {"embed": (config.embed, 1), "heads x head_size": (config.head_features, features)}
    if config.key_heads:
        dims["key_heads x head_size"] = config.key_features, already("key_features")
    for name, (size, parts) in dims.items():
        parts = parts if placement.may_split_dim_twice else 1
        left = f"{name}/{parts}" if parts > 1 else name
        require_divides(" x ".join(axes), size_of(axes, sizes), **{left: size // parts})


def partition(split: Split) -> P:
    """The `PartitionSpec` of an array that is split so.

    >>> partition((("fsdp",), (), ()))
    P('fsdp',)
    """
    last = max((i for i, axes in enumerate(split, 1) if axes), default=0)
    return P(*(axes or None for axes in split[:last]))
