"""Placement: which mesh axes split the batch, the tokens, and which dims of which weights.

The axes of a strategy state it (axis.py). From it follows the table of weights (table.py); and with that the step
(train_step.py), the bytes that a step sends and holds (costs/), and the compiler's sharding rules (auto.py).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from strategies.config import TrainConfig
from strategies.gpt_config import GPTConfig
from strategies.infeasible import Infeasible
from strategies.schema import require_types

Axes = tuple[str, ...]
DIMS = tuple(GPTConfig(layers=1, embed=1, heads=1).dim_sizes)
"""The names of all dims of weights."""


def size_of(axes: Collection[str], sizes: Mapping[str, int]) -> int:
    """Number of devices along some axes of a mesh with these axis sizes. An absent axis has size one."""
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

    def not_splitting(self, dims: Sequence[str], axes: Axes) -> Axes:
        """Those of some axes that do not split a weight with these dims by `dims`."""
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


def require_master(placement: Placement, train: TrainConfig) -> None:
    """Refuse `master` where it changes nothing.

    Raises:
        Infeasible: weights are sharded already, every device updates all weights, or the compute dtype is float32.
    """
    if train.master == "none":
        return
    asked = f"master={train.master}"
    if placement.shards:
        problem = f"{asked} changes nothing where weights are sharded over {' x '.join(placement.shards)}"
        raise Infeasible(f"{problem}: the shards are float32 already, and are gathered in dtype; leave it out")
    if not placement.updates:
        raise Infeasible(f"{asked} needs devices that update shards of weights; leave it out, or use zero1 or zero2")
    if train.dtype == "float32":
        raise Infeasible(f"{asked} changes nothing with dtype=float32; leave it out, or use dtype=bfloat16 or float16")
