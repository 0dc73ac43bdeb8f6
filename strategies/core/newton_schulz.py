"""Newton-Schulz iterations on matrices of which devices hold parts.

Equal matrices are orthogonalised together. They have no more rows than columns, unless their Gram matrices are summed:

    G[M,R,C]: M matrices of R rows and C columns; a device has the parts that its shard of the update has

`TrainConfig.matrices` says how n devices along an axis that splits the columns (or the rows) work on them:

    gather      G[M,R,C_axis] -all_gather(axis)-> G[M,R,C]; all orthogonalise all M, and each keeps its own part
    deal        G[M,R,C_axis] -all_to_all(axis)-> G[M_axis,R,C]; each orthogonalises M/n, rounded up;
                O[M_axis,R,C] -all_to_all(axis)-> O[M,R,C_axis]. If n divides M it sends 2/n of the bytes of a gather.
                Both are equal to one device to the bit
    gram        G[M,R,C_axis] G^T[M,C_axis,R] -all_reduce(axis)-> GG^T[M,R,R], in each of the five iterations; an axis
                that splits the rows gathers first
    block       an axis that splits features (tensor) orthogonalises its parts of matrices as if they were whole: not
                the same optimizer ("MuonBP", arXiv 2510.16981). Along other axes matrices are dealt out

Axes that split layers or experts send nothing, and neither do those that replicate a weight: they repeat the work.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from strategies.core.placement import Axes, ShardedDim, size_of
from strategies.core.shards import all_gather, own_part

COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Of Newton-Schulz's polynomial (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks")."""
ITERATIONS = 5
EPSILON = 1e-7
Member = tuple[str, int, bool]
"""Name of a weight, index among its parts (`matrices_of`), and whether its matrices are transposed."""


def newton_schulz(g_MRC: Float[Array, "M R C"], summed: Axes = ()) -> Float[Array, "M R C"]:
    """Orthogonalise matrices approximately: singular values end between about 0.7 and 1.2, and small ones below.

    The iterations run in the dtype of the matrices, their norm in float32. `summed` are axes that split the columns.
    """

    def total(part: Array) -> Array:
        return lax.psum(part, summed) if summed else part

    a, b, c = COEFFICIENTS
    matmul = partial(jnp.matmul, precision="highest" if g_MRC.dtype == jnp.float32 else None)
    squares_M11 = total(jnp.square(g_MRC.astype("float32")).sum((1, 2), keepdims=True))
    x_MRC = (g_MRC / jnp.maximum(jnp.sqrt(squares_M11), EPSILON)).astype(g_MRC.dtype)
    for _ in range(ITERATIONS):
        gram_MRR = total(matmul(x_MRC, x_MRC.mT))
        x_MRC = a * x_MRC + matmul(b * gram_MRR + c * matmul(gram_MRR, gram_MRR), x_MRC)
    return x_MRC


@dataclass(frozen=True)
class Matrices:
    """Equal matrices, and how this device's parts of them are orthogonalised.

    Attributes:
        members: where they come from.
        counts: matrices of each member on this device.
        rows, columns: of a whole matrix.
        row_axes, column_axes: mesh axes that split them.
        sizes: devices along each of these axes, outermost first.
    """

    members: tuple[Member, ...]
    counts: tuple[int, ...]
    rows: int
    columns: int
    row_axes: Axes
    column_axes: Axes
    placement: str
    sizes: Mapping[str, int]

    @property
    def count(self) -> int:
        """Matrices of which this device has parts."""
        return sum(self.counts)

    @property
    def dealers(self) -> int:
        """Devices among which matrices are dealt out; 1 if they are not."""
        return size_of(self.row_axes + self.column_axes, self.sizes) if self.placement == "deal" else 1

    @property
    def dealt(self) -> int:
        """The count, padded with matrices of zeros to a multiple of the devices."""
        return -(-self.count // self.dealers) * self.dealers

    @property
    def part(self) -> int:
        """Elements of a device's part of a matrix."""
        return self.rows * self.columns // size_of(self.row_axes + self.column_axes, self.sizes)

    @property
    def summed(self) -> Axes:
        """Axes over which Gram matrices are summed."""
        return self.column_axes if self.placement == "gram" else ()

    @property
    def split(self) -> list[ShardedDim]:
        """The dims of the parts that are split, in the order of the mesh."""
        order = [*self.sizes]
        dims = (ShardedDim(dim, axes) for dim, axes in ((1, self.row_axes), (2, self.column_axes)) if axes)
        return sorted(dims, key=lambda shard: order.index(shard.axes[0]))

    @property
    def orthogonalised_shape(self) -> tuple[int, int, int]:
        """What a device orthogonalises: the number of matrices, their rows, and its columns of them."""
        return self.dealt // self.dealers, self.rows, self.columns // size_of(self.summed, self.sizes)

    @property
    def flops(self) -> int:
        """FLOPs of a device's matmuls: in each iteration a Gram matrix, its square, and their product with X."""
        count, rows, columns = self.orthogonalised_shape
        return ITERATIONS * count * (4 * rows**2 * columns + 2 * rows**3)

    def orthogonalised(self, g_MRC: Float[Array, "M R C"]) -> Float[Array, "M R C"]:
        """This device's parts of matrices -> the same parts of the orthogonalised matrices."""
        if self.placement == "deal" and self.dealers > 1:
            return self._dealt(g_MRC)
        gathered = [shard for shard in self.split if shard.axes != self.summed]
        for shard in gathered:
            g_MRC = all_gather(g_MRC, shard.axes, shard.dim)
        g_MRC = newton_schulz(g_MRC, self.summed)
        for shard in gathered:
            g_MRC = own_part(g_MRC, shard)
        return g_MRC

    def _dealt(self, g_MRC: Float[Array, "M R C"]) -> Float[Array, "M R C"]:
        # Without the barrier XLA may send the stacked arrays apart, in different layouts, which its verifier refuses.
        padded = lax.optimization_barrier(jnp.pad(g_MRC, ((0, self.dealt - self.count), (0, 0), (0, 0))))
        for dim, axes in self.split:
            padded = lax.all_to_all(padded, axes, 0, dim, tiled=True)
        padded = newton_schulz(padded)
        for dim, axes in reversed(self.split):
            padded = lax.all_to_all(padded, axes, dim, 0, tiled=True)
        return padded[: self.count]
