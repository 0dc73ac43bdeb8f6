"""The matmuls with weights of a layer's branches, as a device does them."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from strategies.core.plan import Plan
from strategies.model.part import Part

PARTS = {"qkv": 3, "qk": 2}
"""Dims of a matrix of several projections that PyTorch's stacks multiply one by one."""


class Projection(NamedTuple):
    """Matmuls [m,k] x [k,n] side by side, whose second operand is a weight.

    Attributes:
        m: rows of the input.
        n: columns of the weight.
        k: columns of the input.
        batch: how many there are side by side.
        from_dim: of the input's columns, such as "embed".
        to_dim: of the result's columns.
        all_tokens: whether the rows are all tokens of the tensor axis, and not those of experts.
        parts: matrices that PyTorch's stacks multiply one by one.
    """

    m: int
    n: int
    k: int
    batch: int
    from_dim: str
    to_dim: str
    all_tokens: bool
    parts: int

    @property
    def takes_stream(self) -> bool:
        """Whether the input is the residual stream."""
        return self.all_tokens and self.from_dim == "embed"

    @property
    def gives_stream(self) -> bool:
        """Whether the result is added to the residual stream."""
        return self.all_tokens and self.to_dim == "embed"

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
            all_tokens = rows == plan.share.tokens and side_by_side == 1
            parts = PARTS.get(to[0], 1)
            yield Projection(rows, math.prod(columns), k, side_by_side, of, to[-1], all_tokens, parts)
