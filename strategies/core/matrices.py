"""Muon's matrices: which weights have them, and how devices that hold parts of a matrix orthogonalise it.

A matrix is one linear map: of each layer and each expert its own; queries, keys and values apart, or with
`TrainConfig.by_head` those of each head. Equal matrices of all weights are orthogonalised together, transposed if they
have more rows than columns:

    G[M,R,C]: M matrices of R rows and C columns; a device has the parts that its shard of the update has

`TrainConfig.matrices` says how n devices along an axis that splits the columns (or the rows) work on them:

    gather      G[M,R,C_axis] -all_gather(axis)-> G[M,R,C]; all orthogonalise all M, and each keeps its own part
    deal        G[M,R,C_axis] -all_to_all(axis)-> G[M_axis,R,C]; each orthogonalises M/n, rounded up;
                O[M_axis,R,C] -all_to_all(axis)-> O[M,R,C_axis]. 2/n of the bytes of a gather, and equal to the bit
    gram        G[M,R,C_axis] G^T[M,C_axis,R] -all_reduce(axis)-> GG^T[M,R,R], in each of the five iterations; an axis
                that splits the rows gathers first
    block       an axis that splits features (tensor) orthogonalises its parts of matrices as if they were whole: not
                the same optimizer ("MuonBP", arXiv 2510.16981). Along other axes matrices are dealt out

Axes that split layers or experts send nothing, and neither do those that replicate a weight: they repeat the work.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, groupby, starmap
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from strategies.config import Dtype, TrainConfig
from strategies.core.placement import Axes, ShardedDim, Weight, matrix_dims
from strategies.core.plan import Plan
from strategies.core.shards import all_gather, own_part
from strategies.model.weights import WeightSpec, spec_of, split_of

COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Of Newton-Schulz's polynomial (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks")."""
ITERATIONS = 5
EPSILON = 1e-7


class Kind(NamedTuple):
    """Rows and columns of whole matrices, and the mesh axes that split them; and those that split their number."""

    rows: int
    columns: int
    row_axes: Axes
    column_axes: Axes
    number_axes: Axes

    def is_turned(self, placement: str) -> bool:
        """Whether they are orthogonalised transposed: with more rows than columns. Gram matrices are of the rows, so
        where these are summed the columns are split.
        """
        if placement == "gram" and (self.row_axes or self.column_axes):
            return not self.column_axes
        return self.rows > self.columns

    def turned(self) -> "Kind":
        """The kind of the transposed matrices."""
        return Kind(self.columns, self.rows, self.column_axes, self.row_axes, self.number_axes)


Member = tuple[str, int, bool]
"""Name of a weight, index among its parts (`parts_of`), and whether its matrices are transposed."""


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

    def size(self, axes: Axes) -> int:
        """Devices along some axes."""
        return math.prod(self.sizes[axis] for axis in axes)

    @property
    def count(self) -> int:
        """Matrices of which this device has parts."""
        return sum(self.counts)

    @property
    def dealers(self) -> int:
        """Devices among which matrices are dealt out; 1 if they are not."""
        return self.size(self.row_axes + self.column_axes) if self.placement == "deal" else 1

    @property
    def dealt(self) -> int:
        """Matrices, with those of zeros that make all devices have the same number."""
        return -(-self.count // self.dealers) * self.dealers

    @property
    def part(self) -> tuple[int, int]:
        """Rows and columns of a device's part."""
        return self.rows // self.size(self.row_axes), self.columns // self.size(self.column_axes)

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
    def flops(self) -> int:
        """FLOPs of a device's matmuls: in each iteration a Gram matrix, its square, and their product with X."""
        columns = self.columns // self.size(self.summed)
        each = 4 * self.rows**2 * columns + 2 * self.rows**3
        return ITERATIONS * self.dealt // self.dealers * each

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


def parts_of(array: Array, dims: Sequence[str], head_dim: int | None) -> list[Array]:
    """A weight [L,..,R,..,C] -> its kinds of matrices [M,R,C]: queries, keys and values apart; with a `head_dim` those
    of each head.
    """
    if "qkv" not in dims:
        return [array.reshape(-1, *array.shape[-2:])]
    *_, embed, rows, features = array.shape
    array = array.reshape(-1, embed, rows, features)
    if head_dim:
        heads = array.reshape(-1, embed, rows, features // head_dim, head_dim)
        return [jnp.moveaxis(heads, 1, -2).reshape(-1, embed, head_dim)]
    return [array[:, :, :-2].reshape(-1, embed, (rows - 2) * features), array[:, :, -2], array[:, :, -1]]


def joined(parts: Sequence[Array], shape: Sequence[int], dims: Sequence[str], head_dim: int | None) -> Array:
    """The inverse of `parts_of`."""
    if "qkv" not in dims:
        return parts[0].reshape(shape)
    *_, embed, rows, features = shape
    if head_dim:
        heads = parts[0].reshape(-1, rows, features // head_dim, embed, head_dim)
        return jnp.moveaxis(heads, -2, 1).reshape(shape)
    queries, keys, values = parts
    queries = queries.reshape(-1, embed, rows - 2, features)
    return jnp.concatenate([queries, keys[:, :, None], values[:, :, None]], 2).reshape(shape)


@dataclass(frozen=True)
class Muon:
    """The matrices of a plan's weights. In a step on whole arrays (`whole`) a device has all parts."""

    plan: Plan
    whole: bool = False

    @cached_property
    def weights(self) -> Mapping[str, Weight]:
        """The weights with matrices, by name."""
        return {name: weight for name, weight in self.plan.weights.items() if has_matrices(weight.spec)}

    @property
    def head_dim(self) -> int | None:
        """Features of a head, if each head has its own matrices."""
        return self.plan.config.head_dim if self.plan.train.by_head else None

    @cached_property
    def groups(self) -> tuple[Matrices, ...]:
        """Equal matrices together."""
        kinds = chain.from_iterable(starmap(self._kinds, self.weights.items()))
        return tuple(
            self._group(key, [each for _, each in of]) for key, of in groupby(sorted(kinds), lambda kind: kind[0])
        )

    def _kinds(self, name: str, weight: Weight) -> Iterator[tuple[Kind, tuple[Member, int]]]:
        """The kinds of a weight's matrices, where they come from, and how many this device has."""
        plan, dims, placement = self.plan, weight.spec.dims, self.plan.train.matrices
        found = jax.eval_shape(partial(parts_of, dims=dims, head_dim=self.head_dim), self._local(weight))
        of_rows, of_columns = (self._splitting(weight.updated[dim]) for dim in matrix_dims(dims) or (0, 0))
        others = [axes for dim, axes in enumerate(weight.updated) if dim not in (matrix_dims(dims) or ())]
        of_number = plan.over(chain(*others))
        for index, part in enumerate(found):
            count, rows, columns = part.shape
            column_axes = () if self.head_dim and "qkv" in dims else of_columns  # no device has a part of a head
            sizes = rows * plan.size(*of_rows), columns * plan.size(*column_axes)
            kind = Kind(*sizes, of_rows, column_axes, of_number)
            turned = kind.is_turned(placement)
            yield kind.turned() if turned else kind, ((name, index, turned), count)

    def _group(self, kind: Kind, found: Sequence[tuple[Member, int]]) -> Matrices:
        members, counts = zip(*found, strict=True)
        placement = {"auto": "deal", "block": "deal"}.get(self.plan.train.matrices, self.plan.train.matrices)
        sizes = {axis: size for axis, size in self.plan.mesh.axes if axis in kind.row_axes + kind.column_axes}
        return Matrices(members, counts, *kind[:4], placement, sizes)

    def _splitting(self, axes: Axes) -> Axes:
        """Those of a dim's axes along which devices have parts of one matrix."""
        by_block = self.plan.train.matrices == "block"
        further = self.plan.placement.further
        return tuple(axis for axis in self.plan.over(axes) if not self.whole and (axis in further or not by_block))

    def _local(self, weight: Weight) -> jax.ShapeDtypeStruct:
        """What a device updates of a weight."""
        plan, dims = self.plan, weight.spec.dims
        sizes = {**plan.held_config.dim_sizes, "layers": plan.layer_slots}
        parts = [1 if self.whole else plan.size(*axes) for axes in weight.updated]
        return jax.ShapeDtypeStruct([sizes[dim] // n for dim, n in zip(dims, parts, strict=True)], "float32")

    def orthogonalised(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The momentum of weights by name -> their updates before the learning rate, scaled (`scale`), in float32."""
        dims = {name: self.weights[name].spec.dims for name in arrays}
        narrow = {name: array.astype(matrix_dtype(self.plan.train)) for name, array in arrays.items()}
        parts = {name: parts_of(unsplit(narrow[name], dims[name]), dims[name], self.head_dim) for name in arrays}
        for group in self.groups:
            stacked = [parts[name][i].mT if turned else parts[name][i] for name, i, turned in group.members]
            updates = group.orthogonalised(jnp.concatenate(stacked)).astype("float32")
            starts = np.cumsum(group.counts)[:-1]
            for (name, i, turned), update in zip(group.members, jnp.split(updates, starts), strict=True):
                scaled = scale(self.plan.train, group, turned) * update
                parts[name][i] = scaled.mT if turned else scaled
        updated = {name: joined(parts[name], array.shape, dims[name], self.head_dim) for name, array in arrays.items()}
        return {name: split_as(array, updated[name]) for name, array in arrays.items()}


def unsplit(array: Array, dims: Sequence[str]) -> Array:
    """With explicit mesh axes: gather the matrices of a weight, along one axis after the other."""
    order = jax.typeof(array).sharding.mesh.axis_names
    split = [dim for dim in matrix_dims(dims) or () if split_of(array)[dim]]
    for dim in sorted(split, key=lambda dim: order.index(split_of(array)[dim][0])):
        array = jax.reshard(array, P(*(() if i == dim else axes for i, axes in enumerate(split_of(array)))))
    return array


def split_as(like: Array, update: Array) -> Array:
    """With explicit mesh axes: this device's part of an update."""
    return jax.reshard(update, spec_of(like)) if any(split_of(like)) else update


def matrix_dtype(train: TrainConfig) -> Dtype:
    """The dtype in which matrices are sent and orthogonalised. Momentum may be too small for float16."""
    return "bfloat16" if train.dtype == "float16" else train.dtype


def scale(train: TrainConfig, group: Matrices, turned: bool) -> float:
    """The factor of orthogonalised matrices, which map rows to columns, or are `turned`.

    "rms" gives updates the root mean square that AdamW's have, so that its learning rate and weight decay serve both
    (Liu et al. 2025, "Muon is Scalable for LLM Training", equation 4). "original" is that of Jordan et al. 2024.
    """
    if train.matrix_scale == "rms":
        return 0.2 * math.sqrt(max(group.rows, group.columns))
    ratio = group.columns / group.rows
    return math.sqrt(max(1, 1 / ratio if turned else ratio))


def moments_of(spec: WeightSpec, train: TrainConfig) -> tuple[str, ...]:
    """The optimizer's moments of a weight: AdamW has two, a momentum is one, and a router's bias has none."""
    if not spec.trained:
        return ()
    return ("m",) if train.optimizer == "sgd" or (train.optimizer == "muon" and has_matrices(spec)) else ("m", "v")


def has_matrices(spec: WeightSpec) -> bool:
    """Whether Muon updates a weight. AdamW updates vectors, tables, the head and the router."""
    return spec.is_matrix and matrix_dims(spec.dims) is not None
