"""The matmuls with weights of a layer's branches, as a device does them."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from strategies.core.plan import Plan
from strategies.costs.layer import costs_of, matmuls_of


class Projection(NamedTuple):
    """Matmuls [m,k] x [k,n] whose second operand is a weight; `batch` of them side by side."""

    m: int
    n: int
    k: int
    batch: int

    @property
    def taken(self) -> int:
        """Elements of the input."""
        return self.m * self.k * self.batch

    @property
    def given(self) -> int:
        """Elements of the result."""
        return self.m * self.n * self.batch


def projections(plan: Plan) -> Iterator[Projection]:
    """The matmuls with weights of all branches of the layer."""
    for branch in plan.block.branches():
        for one in matmuls_of(branch, plan.config):
            rows, side_by_side = costs_of(branch).rows(plan.share, one)
            of, *to = one.weight.dims  # as the device works with the matrix
            k, *columns = (plan.held_config.dim_sizes[dim] // plan.size(*plan.axes_of(dim)) for dim in (of, *to))
            yield Projection(rows, math.prod(columns), k, side_by_side)
