"""Placement: which mesh axes split what, and from it the table of weights: how each is used, stored and updated.

A strategy's axes state a `Placement` (axis.py). The step (train_step.py), the bytes that it sends and holds (costs/),
and the compiler's sharding rules (auto.py) follow from the table.

              used      stored    updated
    data      whole     whole     whole
    zero1, 2  whole     whole     split     stages 1 and 2 of ZeRO (Rajbhandari et al. 2020, sections 5.1 and 5.2)
    fsdp      whole     split     split     stage 3, section 5.3
    tensor    split     split     split     the features, and with them the work

A weight is gathered before use if it is stored in more parts than it is used in, and after the update if it is updated
in more parts than it is stored in. Its gradient is scattered if it is updated in more parts than it is used in, and
summed over the axes that split tokens but not the weight.

ZeRO also splits a weight along its first dim, other than `WHOLE`, that its devices divide. Gradient and moments are
split along the same dim, so that a device's parts match. A weight without such a dim, such as the scale of a head norm,
stays whole. An axis that already splits a weight, as `expert` splits experts, does not split it again. With Muon it
splits matrices by layer or by expert, if its devices divide them (`by_layer`), so that each device updates whole ones.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from jax.sharding import PartitionSpec as P

from strategies.config import TrainConfig
from strategies.gpt_config import GPTConfig
from strategies.infeasible import Infeasible, require_divides
from strategies.model.gpt import weight_specs
from strategies.model.weights import STACKS, WeightSpec
from strategies.schema import require_types

Axes = tuple[str, ...]
DIMS = tuple(GPTConfig(layers=1, embed=1, heads=1).dim_sizes)
"""Names of all weight dims."""


def size_of(axes: Collection[str], sizes: Mapping[str, int]) -> int:
    """Number of devices along some axes of a mesh. An absent axis has size one."""
    size = 1
    for axis in axes:
        size *= sizes.get(axis, 1)
    return size


@dataclass(frozen=True)
class Placement:
    """Which mesh axes split what. Axes absent from a mesh count as size one.

    Attributes:
        batch: axes that split the batch.
        tokens: axes that split the tokens of each sequence.
        dims: name of a weight dim -> the axes that split it, outermost first. They split the work, too.
        shards: axes that together also split every weight (ZeRO-3), along the first dim that they divide. Weights are
            gathered before use. These axes must be in `batch`.
        updates: axes that split gradients, optimizer state and updates while weights stay whole (ZeRO-1 and 2). These
            axes must be in `batch`. An axis that splits a weight by `dims` does not split its update again.
        reduce_scatter_per_microbatch: reduce-scatter gradients after every microbatch instead of once a step (ZeRO-2).
        may_split_dim_twice: whether `shards` may split a dim that `dims` already splits, if the weight has no other
            dim. Otherwise `shards` does not split such a weight.
    """

    batch: Axes = ()
    tokens: Axes = ()
    dims: Mapping[str, Axes] = field(default_factory=dict, hash=False)
    shards: Axes = ()
    updates: Axes = ()
    reduce_scatter_per_microbatch: bool = False
    may_split_dim_twice: bool = True

    def __post_init__(self) -> None:
        require_types(self)
        single = {"batch": self.batch, "tokens": self.tokens, "shards": self.shards, "updates": self.updates}
        if unknown := [dim for dim in self.dims if dim not in DIMS]:
            raise ValueError(f"no weight has the dim {unknown[0]!r}; dims are {', '.join(DIMS)}")
        self._require_one_use()
        for name in ("shards", "updates"):
            if unsplit := [axis for axis in single[name] if axis not in self.batch]:
                raise ValueError(f"{name} has the axis {unsplit[0]}, which does not split the batch; add it to batch")
        if self.shards and self.updates:
            sharded = " and ".join(self.shards)
            raise ValueError(f"weights are sharded over {sharded}, and so are their updates; omit updates")
        if self.reduce_scatter_per_microbatch and not self.updates:
            raise ValueError(
                "reduce_scatter_per_microbatch says when gradients are scattered over updates; set updates, too"
            )

    def _require_one_use(self) -> None:
        """Refuse an axis that would split the same thing twice."""
        for name, axes in {"batch and tokens": (*self.batch, *self.tokens), **self.dims}.items():
            if twice := [axis for axis in axes if axes.count(axis) > 1]:
                raise ValueError(f"{name} have the axis {twice[0]} twice; omit one of them")

    @property
    def axes(self) -> frozenset[str]:
        """All axes that split anything."""
        return frozenset({*self.batch, *self.tokens, *(axis for axes in self.dims.values() for axis in axes)})

    @property
    def replicas(self) -> Axes:
        """Axes that split tokens and replicate weights, except weights whose dims they split."""
        return tuple(axis for axis in (*self.batch, *self.tokens) if axis not in (*self.shards, *self.updates))

    @property
    def further(self) -> Axes:
        """Axes of `shards` or `updates`, which also split every weight or its update."""
        return self.shards or self.updates

    def not_splitting(self, dims: Sequence[str], axes: Axes) -> Axes:
        """The given axes that do not split a weight with these dims by `dims`."""
        splitting = {axis for dim in dims for axis in self.dims.get(dim, ())}
        return tuple(axis for axis in axes if axis not in splitting)

    def along(self, axes: Collection[str]) -> "Placement":
        """This placement restricted to the given axes."""

        def restrict(names: Axes) -> Axes:
            return tuple(axis for axis in names if axis in axes)

        return replace(
            self,
            batch=restrict(self.batch),
            tokens=restrict(self.tokens),
            dims={dim: restricted for dim, names in self.dims.items() if (restricted := restrict(names))},
            shards=restrict(self.shards),
            updates=restrict(self.updates),
            reduce_scatter_per_microbatch=self.reduce_scatter_per_microbatch and bool(restrict(self.updates)),
        )


Split = tuple[Axes, ...]
"""The mesh axes that split each dim of an array, outermost first."""
WHOLE = *STACKS, "qkv", "qk"
"""Dims that are never split: layers are gathered one by one, and queries and keys must stay together."""


def matrix_dims(dims: Sequence[str]) -> tuple[int, int] | None:
    """The rows and columns of a weight's matrices, if it has one for each layer (and expert, or queries, keys, values).

    >>> matrix_dims(("layers", "embed", "qkv", "key_features")), matrix_dims(("layers", "embed", "routes"))
    ((1, 3), None)
    """
    inner = [i for i, dim in enumerate(dims) if dim not in (*WHOLE, "experts")]
    layered = dims[0] in STACKS and "routes" not in dims
    return (inner[0], inner[1]) if layered and len(inner) == 2 else None


class ShardedDim(NamedTuple):
    """A dim of an array that is split, and the mesh axes that split it."""

    dim: int
    axes: Axes


@dataclass(frozen=True)
class Placed:
    """How a weight is split.

    Attributes:
        used: while a layer computes with it. The work is split in the same way.
        stored: between steps.
        updated: its gradient, moments and update.
        summed: mesh axes over which its gradient remains to be summed: they split tokens but not the weight.
        stored_shard: the dim along which it is gathered before use and its gradient is scattered; None if stored as
            used.
        update_shard: the dim along which its gradient is scattered and it is gathered after the update; None if updated
            as stored.
    """

    used: Split
    stored: Split
    updated: Split
    summed: Axes
    stored_shard: ShardedDim | None = None
    update_shard: ShardedDim | None = None


@dataclass(frozen=True, kw_only=True)
class Weight(Placed):
    """A row of the table: a weight, how it is split, and its elements that a device stores (`elements`) and updates."""

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


def placed(
    placement: Placement, config: GPTConfig, sizes: Mapping[str, int], dims: Sequence[str], *, by_layer: bool = False
) -> Placed:
    """How a weight with these dims is split. `config` is the model as devices hold it, `sizes` the mesh axes'.

    `by_layer` is whether ZeRO splits matrices by layer or expert where it can.
    """
    used = tuple(placement.dims.get(dim, ()) for dim in dims)
    axes, summed = (placement.not_splitting(dims, each) for each in (placement.further, placement.replicas))
    dim = _dim_for(size_of(axes, sizes), used, config, sizes, dims, placement.may_split_dim_twice) if axes else None
    if by_layer and placement.updates and axes and matrix_dims(dims):
        stacked = (i for i, name in enumerate(dims) if name in (*STACKS, "experts") and not used[i])
        fitting = (i for i in stacked if config.dim_sizes[dims[i]] % size_of(axes, sizes) == 0)
        dim = next(fitting, dim)
    if dim is None:
        return Placed(used, used, used, (*summed, *axes))
    split = tuple((*each, *axes) if i == dim else each for i, each in enumerate(used))
    shard = ShardedDim(dim, axes)
    if placement.shards:
        return Placed(used, split, split, summed, stored_shard=shard)
    return Placed(used, used, split, summed, update_shard=shard)


def _dim_for(
    parts: int, used: Split, config: GPTConfig, sizes: Mapping[str, int], dims: Sequence[str], may_split_twice: bool
) -> int | None:
    """The dim along which a weight is split into more parts; None without one."""
    already = [size_of(axes, sizes) for axes in used]
    whole = {**config.dim_sizes, "vocab": config.vocab_rows(already[dims.index("vocab")] if "vocab" in dims else 1)}
    fit = [i for i, name in enumerate(dims) if whole[name] // already[i] % parts == 0 and name not in WHOLE]
    allowed = [i for i in fit if may_split_twice or already[i] == 1]
    return min(allowed, key=lambda i: already[i] > 1, default=None)


def require_parts(placement: Placement, config: GPTConfig, sizes: Mapping[str, int]) -> None:
    """Check that the devices along `Placement.further` divide the dims of which every weight has one."""

    axes = placement.further
    if not axes:
        return

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
    """The `PartitionSpec` of an array.

    >>> partition((("fsdp",), (), ()))
    P('fsdp',)
    """
    last = max((i for i, axes in enumerate(split, 1) if axes), default=0)
    return P(*(axes or None for axes in split[:last]))


def require_master(placement: Placement, train: TrainConfig) -> None:
    """Refuse `master` where it has no effect."""
    if train.master == "none":
        return
    asked = f"master={train.master}"
    if placement.shards:
        problem = f"{asked} changes nothing where weights are sharded over {' x '.join(placement.shards)}"
        raise Infeasible(f"{problem}: the shards are float32 already, and are gathered in dtype; omit it")
    if not placement.updates:
        raise Infeasible(f"{asked} needs devices that update shards of weights; omit it, or use zero1 or zero2")
    if train.dtype == "float32":
        raise Infeasible(f"{asked} changes nothing with dtype=float32; omit it, or use dtype=bfloat16 or float16")
