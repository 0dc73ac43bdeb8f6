"""The layout of a strategy: which mesh axes split what. It is stated once, and all else is derived from it.

From a layout come the sharding of weights, gradients, moments and batch (training/train_step.py), the bytes that a step
sends and holds (costs/), and the rules that the compiler gets (auto.py).
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from jax.sharding import PartitionSpec as P

from strategies.config import GPTConfig
from strategies.sharding.weight_shards import Shards

Axes = tuple[str, ...]
Spec = Callable[[Sequence[str]], P]
"""The names of the dims of a weight -> the mesh axes that split them."""


@dataclass(frozen=True)
class Layout:
    """Which mesh axes split what. An axis that a mesh leaves out has size one there, and splits nothing.

    Attributes:
        batch: axes that split the batch.
        tokens: axes that split the tokens of each sequence.
        dims: name of a dim of the weights -> the axes that split it, outermost first. They split the work, too.
        shards: the axis that splits every weight besides, along a dim that is found for each weight (`Shards`). What it
            splits is gathered to be used.
        updates: the axis that splits gradients, moments and updates of weights that it does not split, likewise.
        scatters_each: whether `updates` splits the gradients of each microbatch, and not only their sum.
        cuts_again: whether `shards` may split a dim that `dims` splits, where a weight has no other that it divides.
            Else such a weight is left as it is.
    """

    batch: Axes = ()
    tokens: Axes = ()
    dims: Mapping[str, Axes] = field(default_factory=dict, hash=False)
    shards: str | None = None
    updates: str | None = None
    scatters_each: bool = False
    cuts_again: bool = True

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
        """What is left of it where only these axes split anything."""

        def kept(names: Axes) -> Axes:
            return tuple(axis for axis in names if axis in axes)

        return Layout(
            batch=kept(self.batch),
            tokens=kept(self.tokens),
            dims={dim: left for dim, names in self.dims.items() if (left := kept(names))},
            shards=self.shards if self.shards in axes else None,
            updates=self.updates if self.updates in axes else None,
            scatters_each=self.scatters_each,
            cuts_again=self.cuts_again,
        )

    def parts(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """Into how many parts each dim of the weights is split, on a mesh of these sizes."""
        return {dim: size_of(axes, sizes) for dim, axes in self.dims.items()}

    def shards_of(self, axis: str, config: GPTConfig, sizes: Mapping[str, int]) -> Shards:
        """The parts of each weight that `shards` or `updates` makes of what `dims` has left.

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
