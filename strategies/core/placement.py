"""Placement: which mesh axes split the batch, the tokens, and which dims of which weights.

The axes of a strategy state it (axis.py). From it follow, for each weight, how it is sharded, over which axes it is
gathered and over which its gradient is summed; and with that the step (train_step.py), the bytes that a step sends and
holds (costs/), and the compiler's sharding rules (auto.py).
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from jax.sharding import PartitionSpec as P

from strategies.core.shards import Axes, Shards, size_of, unsplit
from strategies.gpt_config import GPTConfig
from strategies.model.weights import WeightSpec
from strategies.schema import require_types

DIMS = tuple(GPTConfig(layers=1, embed=1, heads=1).dim_sizes)
"""The names of all dims of weights."""
Spec = Callable[[Sequence[str]], P]
"""The names of the dims of a weight -> the mesh axes that split them."""


@dataclass(frozen=True)
class Placement:
    """Which mesh axes split what. Axes absent from a mesh count as size one.

    Attributes:
        batch: axes that split the batch.
        tokens: axes that split the tokens of each sequence.
        dims: name of a dim of the weights -> the axes that split it, outermost first. They split the work, too.
        shards: axes that together split every weight once more (ZeRO-3), along the first dim that they divide. Weights
            are gathered before use. They are among the axes of `batch`.
        updates: axes that split gradients, optimizer state and updates while weights stay whole (ZeRO-1 and 2). They
            are among the axes of `batch`, too. An axis that splits a weight by `dims` does not split its update again.
        reduce_scatter_per_microbatch: reduce-scatter gradients after every microbatch instead of once a step (ZeRO-2).
        may_split_dim_twice: whether `shards` may split a dim that `dims` splits already, if the weight has no other
            dim. Otherwise such a weight is not split by `shards`.

    Raises:
        ValueError: a field is of another type, such as a text where a tuple of axes is meant; no weight has a dim;
            shards or updates are over axes that do not split the batch; or fields exclude each other.
    """

    batch: Axes = ()
    tokens: Axes = ()
    dims: Mapping[str, Axes] = field(default_factory=dict, hash=False)
    shards: Axes = ()
    updates: Axes = ()
    reduce_scatter_per_microbatch: bool = False
    may_split_dim_twice: bool = True

    def __post_init__(self) -> None:
        """Check that the fields are valid and consistent."""
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
            raise ValueError(f"weights are sharded over {sharded}, and so are their updates; leave out updates")
        if self.reduce_scatter_per_microbatch and not self.updates:
            raise ValueError(
                "reduce_scatter_per_microbatch says when gradients are scattered over updates; give that, too"
            )

    def _require_one_use(self) -> None:
        """Refuse an axis that would split the same thing twice."""
        for name, axes in {"batch and tokens": (*self.batch, *self.tokens), **self.dims}.items():
            if twice := [axis for axis in axes if axes.count(axis) > 1]:
                raise ValueError(f"{name} have the axis {twice[0]} twice; leave one of them out")

    @property
    def axes(self) -> frozenset[str]:
        """All axes that split anything."""
        return frozenset({*self.batch, *self.tokens, *(axis for axes in self.dims.values() for axis in axes)})

    @property
    def replicas(self) -> Axes:
        """Axes along which tokens are split and weights are replicated, but for those weights whose dims they split."""
        return tuple(axis for axis in (*self.batch, *self.tokens) if axis not in (*self.shards, *self.updates))

    def replicas_of(self, dims: Sequence[str]) -> Axes:
        """Axes over which the gradient of a weight with these dims is summed: along them it is replicated."""
        return unsplit(self.replicas, dims, self.dims)

    def updates_of(self, dims: Sequence[str]) -> Axes:
        """Axes of `updates` that split the update of a weight with these dims, if it has a dim for them."""
        return unsplit(self.updates, dims, self.dims)

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

    def shards_of(self, axes: Axes, config: GPTConfig, sizes: Mapping[str, int]) -> Shards:
        """Shards of each weight along `axes`, such as `shards` or `updates`, after `dims` has split the weight.

        Raises:
            Infeasible: the axes do not divide the embed or mlp dim.
        """
        return Shards(axes, sizes, config, self.dims, self.may_split_dim_twice)

    def spec(self, config: GPTConfig, sizes: Mapping[str, int]) -> Spec:
        """How each weight is stored: a function from the names of its dims to its `PartitionSpec`.

        Examples:
            >>> placement = Placement(dims={"mlp": ("tensor",)}, shards=("fsdp",), batch=("fsdp",))
            >>> placement.spec(GPTConfig(layers=2, embed=8, heads=2), {})(["embed", "mlp"])
            P('fsdp', 'tensor')

        Raises:
            Infeasible: `shards` do not divide the embed or mlp dim.
        """
        return self._spec(self.shards, config, sizes)

    def update_spec(self, config: GPTConfig, sizes: Mapping[str, int]) -> Spec:
        """How the gradients that a device applies, their moments and their updates are split; see `spec`.

        Raises:
            Infeasible: `updates` or `shards` do not divide the embed or mlp dim.
        """
        return self._spec(self.updates or self.shards, config, sizes)

    def _spec(self, axes: Axes, config: GPTConfig, sizes: Mapping[str, int]) -> Spec:
        split = self.split(axes, config, sizes)

        def spec(dims: Sequence[str]) -> P:
            split_by = split(dims)
            while split_by and not split_by[-1]:
                split_by.pop()
            return P(*(each or None for each in split_by))

        return spec

    def split(self, axes: Axes, config: GPTConfig, sizes: Mapping[str, int]) -> Callable[[Sequence[str]], list[Axes]]:
        """How each weight is split along `axes`, such as `shards`, and `dims`: mesh axes of each of its dims.

        Raises:
            Infeasible: `axes` do not divide the embed or mlp dim.
        """
        shards = self.shards_of(axes, config, sizes) if axes else None

        def split(dims: Sequence[str]) -> list[Axes]:
            split_by = [self.dims.get(dim, ()) for dim in dims]
            if shards and (dim := shards.find(dims)) is not None:
                split_by[dim] = (*split_by[dim], *shards.axes_of(dims))
            return split_by

        return split

    def splits(
        self, config: GPTConfig, mesh: Mapping[str, int]
    ) -> Callable[[WeightSpec, Mapping[str, int], Axes], "Weight"]:
        """Split weights on a mesh: a function of a weight, the sizes of its dims, and the axes of its replicas.

        Raises:
            Infeasible: `updates` or `shards` do not divide the embed or mlp dim.
        """
        split, update = self.split(self.shards, config, mesh), self.split(self.updates or self.shards, config, mesh)

        def weight(spec: WeightSpec, sizes: Mapping[str, int], replicas: Axes) -> Weight:
            by_dim, elements = split(spec.dims), math.prod(sizes[dim] for dim in spec.dims)
            axes, update_axes = tuple(chain(*by_dim)), tuple(chain(*update(spec.dims)))
            parts = elements // size_of(axes, mesh), elements // size_of(update_axes, mesh)
            return Weight(spec, axes, replicas, by_dim[-1], update_axes, *parts)

        return weight


@dataclass(frozen=True)
class Weight:
    """An array of weights.

    Attributes:
        spec: what the model says of it.
        axes: mesh axes that split it.
        replicas: mesh axes over which its gradient is summed.
        last_axes: those that split its last dim.
        update_axes: mesh axes that split its update.
        elements: number of its elements on one device.
        updated: number of those that the device updates.
    """

    spec: WeightSpec
    axes: Axes
    replicas: Axes
    last_axes: Axes
    update_axes: Axes
    elements: int
    updated: int

    @property
    def shared_by(self) -> Axes:
        """Mesh axes along which its update is split while the weight is whole."""
        return tuple(axis for axis in self.update_axes if axis not in self.axes)
