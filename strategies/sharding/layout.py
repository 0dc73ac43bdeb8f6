"""The layout of a strategy: which mesh axes split what. It is stated once, and all else is derived from it.

From a layout come the sharding of weights, gradients, moments and batch (training/train_step.py), the bytes that a step
sends and holds (costs/), and the rules that the compiler gets (auto.py).
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jax.sharding import PartitionSpec as P

from strategies.config import GPTConfig
from strategies.sharding.weight_shards import Shards

Axes = tuple[str, ...]
DIMS = tuple(GPTConfig(layers=1, embed=1, heads=1).dim_sizes)
"""The names of all dims of weights."""
Spec = Callable[[Sequence[str]], P]
"""The names of the dims of a weight -> the mesh axes that split them."""


@dataclass(frozen=True)
class Layout:
    """Which mesh axes split what. Axes absent from a mesh count as size one.

    Attributes:
        batch: axes that split the batch.
        tokens: axes that split the tokens of each sequence.
        dims: name of a dim of the weights -> the axes that split it, outermost first. They split the work, too.
        shards: axis that additionally splits every weight (ZeRO-3), along the first dim that it divides. Weights are
            gathered before use.
        updates: axis that splits gradients, optimizer state and updates while weights stay whole (ZeRO-1 and 2).
        scatters_each: reduce-scatter gradients after every microbatch instead of once a step (ZeRO-2).
        cuts_again: whether `shards` may split a dim that `dims` splits already, if the weight has no other dim.
            Otherwise such a weight is not split by `shards`.

    Raises:
        ValueError: a dim that no weight has, a text where axes are wanted, or fields that exclude each other.
    """

    batch: Axes = ()
    tokens: Axes = ()
    dims: Mapping[str, Axes] = field(default_factory=dict, hash=False)
    shards: str | None = None
    updates: str | None = None
    scatters_each: bool = False
    cuts_again: bool = True

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        for name, axes in {"batch": self.batch, "tokens": self.tokens, **self.dims}.items():
            if isinstance(axes, str):
                raise ValueError(f"the axes of {name} are the text {axes!r}; give a tuple, ({axes!r},)")
        if unknown := [dim for dim in self.dims if dim not in DIMS]:
            raise ValueError(f"no weight has the dim {unknown[0]!r}; dims are {', '.join(DIMS)}")
        if self.shards and self.updates:
            raise ValueError(f"weights are sharded over {self.shards}, and so are their updates; leave out updates")
        if self.scatters_each and not self.updates:
            raise ValueError("scatters_each says when gradients are scattered over updates; give that, too")

    @property
    def axes(self) -> frozenset[str]:
        """All axes that split anything."""
        single = {axis for axis in (self.shards, self.updates) if axis}
        return frozenset({*self.batch, *self.tokens, *single, *(axis for axes in self.dims.values() for axis in axes)})

    @property
    def replicas(self) -> Axes:
        """Axes along which devices hold the same weights, each for its own tokens: they sum their gradients."""
        return tuple(axis for axis in (*self.batch, *self.tokens) if axis not in (self.shards, self.updates))

    def along(self, axes: Collection[str]) -> "Layout":
        """This layout restricted to some axes."""

        def kept(names: Axes) -> Axes:
            return tuple(axis for axis in names if axis in axes)

        return replace(
            self,
            batch=kept(self.batch),
            tokens=kept(self.tokens),
            dims={dim: left for dim, names in self.dims.items() if (left := kept(names))},
            shards=self.shards if self.shards in axes else None,
            updates=self.updates if self.updates in axes else None,
            scatters_each=self.scatters_each and self.updates in axes,
        )

    def parts(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """Into how many parts each dim of the weights is split, on a mesh of these sizes."""
        return {dim: size_of(axes, sizes) for dim, axes in self.dims.items()}

    def shards_of(self, axis: str, config: GPTConfig, sizes: Mapping[str, int]) -> Shards:
        """The part of each weight along an axis, `shards` or `updates`, after `dims` has split the weight.

        Raises:
            Infeasible: as `Shards`.
        """
        return Shards(axis, sizes.get(axis, 1), config, self.parts(sizes), again=self.cuts_again)

    def spec(self, config: GPTConfig, sizes: Mapping[str, int]) -> Spec:
        """How each weight is stored.

        >>> layout = Layout(dims={"mlp": ("tensor",)}, shards="fsdp")
        >>> layout.spec(GPTConfig(layers=2, embed=8, heads=2), {})(["embed", "mlp"])
        P('fsdp', 'tensor')

        Raises:
            Infeasible: as `Shards`.
        """
        return self._spec(self.shards, config, sizes)

    def update_spec(self, config: GPTConfig, sizes: Mapping[str, int]) -> Spec:
        """How the gradient that a device applies, its moments and its update are split.

        Raises:
            Infeasible: as `Shards`.
        """
        return self._spec(self.updates or self.shards, config, sizes)

    def _spec(self, axis: str | None, config: GPTConfig, sizes: Mapping[str, int]) -> Spec:
        shards = self.shards_of(axis, config, sizes) if axis else None

        def spec(dims: Sequence[str]) -> P:
            axes = [list(self.dims.get(dim, ())) for dim in dims]
            if shards and (cut := shards.find(dims)) is not None:
                axes[cut].append(shards.axis)
            while axes and not axes[-1]:
                axes.pop()
            return P(*(tuple(each) or None for each in axes))

        return spec


def size_of(axes: Collection[str], sizes: Mapping[str, int]) -> int:
    """Devices along some axes of a mesh of these sizes."""
    return math.prod(sizes.get(axis, 1) for axis in axes)
