"""The matmuls with weights of a layer's branches, as a device does them."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from strategies.core.plan import Plan
from strategies.model.part import Part

PARTS = {"qkv": 3, "qk": 2}
"""Dims of a matrix of several projections that other stacks multiply one by one."""


class Projection(NamedTuple):
    """Matmuls [m,k] x [k,n] side by side, whose second operand is a weight.

    Attributes:
        m: rows of the input.
        n: columns of the weight.
        k: columns of the input.
        batch: how many there are side by side.
        takes_stream: whether the input has the features of the residual stream.
        gives_stream: whether the result has.
        parts: matrices that other stacks multiply one by one.
    """

    m: int
    n: int
    k: int
    batch: int
    takes_stream: bool
    gives_stream: bool
    parts: int

    @property
    def taken(self) -> int:
        """Elements of the input."""
        return self.m * self.k * self.batch

    @property
    def given(self) -> int:
        """Elements of the result."""
        return self.m * self.n * self.batch

    @property
    def weights(self) -> int:
        """Elements of the weight."""
        return self.k * self.n * self.batch


def projections(plan: Plan, *branches: type[Part]) -> Iterator[Projection]:
    """The matmuls of branches with weights; by default of all branches of the layer."""
    for branch in branches or plan.block.branches():
        for one in branch.matmuls(plan.config):
            rows, side_by_side = branch.rows(plan.share, one)
            of, *to = one.weight.dims  # as the device works with the matrix
            k, *columns = (plan.held_config.dim_sizes[dim] // plan.size(*plan.axes_of(dim)) for dim in (of, *to))
            parts = PARTS.get(to[0], 1)
            yield Projection(rows, math.prod(columns), k, side_by_side, of == "embed", to[-1] == "embed", parts)
