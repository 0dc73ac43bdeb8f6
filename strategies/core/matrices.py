"""Muon's matrices: which weights have them, and the kinds of equal ones, which newton_schulz.py orthogonalises.

A matrix is one linear map: of each layer and each expert its own; queries, keys and values apart, or with
`TrainConfig.by_head` those of each head. Equal matrices of all weights are one stack, transposed if they have more rows
than columns.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, groupby, starmap
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from strategies.config import Dtype, ReduceDtype, TrainConfig
from strategies.core.newton_schulz import Matrices, Member
from strategies.core.placement import Axes, Weight, matrix_dims
from strategies.core.plan import Plan
from strategies.infeasible import Infeasible
from strategies.model.weights import WeightSpec, spec_of, split_of


def matrices_of(array: Array, dims: Sequence[str], head_dim: int | None) -> list[Array]:
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
    """The inverse of `matrices_of`."""
    if "qkv" not in dims:
        return parts[0].reshape(shape)
    *_, embed, rows, features = shape
    if head_dim:
        heads = parts[0].reshape(-1, rows, features // head_dim, embed, head_dim)
        return jnp.moveaxis(heads, -2, 1).reshape(shape)
    queries, keys, values = parts
    queries = queries.reshape(-1, embed, rows - 2, features)
    return jnp.concatenate([queries, keys[:, :, None], values[:, :, None]], 2).reshape(shape)


GroupKey = tuple[tuple[int, int], tuple[Axes, Axes], Axes]
"""Rows and columns of whole matrices, the mesh axes that split each, and those that split their number."""


@dataclass(frozen=True)
class Muon:
    """The matrices of a plan's weights. In a step on whole arrays (`whole`) a device has all parts."""

    plan: Plan
    whole: bool = False

    @cached_property
    def weights(self) -> Mapping[str, Weight]:
        """The weights with matrices, by name; none with another optimizer."""
        named = self.plan.weights.items() if self.plan.train.optimizer == "muon" else ()
        return {name: weight for name, weight in named if has_matrices(weight.spec)}

    @property
    def head_dim(self) -> int | None:
        """Features of a head, if each head has its own matrices."""
        return self.plan.config.head_dim if self.plan.train.by_head else None

    @cached_property
    def groups(self) -> tuple[Matrices, ...]:
        """Equal matrices together."""
        found = sorted(chain.from_iterable(starmap(self._kinds, self.weights.items())))
        return tuple(starmap(self._group, groupby(found, itemgetter(0))))

    def _kinds(self, name: str, weight: Weight) -> Iterator[tuple[GroupKey, Member, int]]:
        """The kinds of a weight's matrices, where they come from, and how many this device has."""
        plan, dims = self.plan, weight.spec.dims
        found = jax.eval_shape(partial(matrices_of, dims=dims, head_dim=self.head_dim), self._local(weight))
        inner = matrix_dims(dims) or (0, 0)
        of_rows, of_columns = (self._splitting(weight.updated[dim]) for dim in inner)
        of_number = plan.over(chain(*(axes for dim, axes in enumerate(weight.updated) if dim not in inner)))
        for index, (count, rows, columns) in enumerate(part.shape for part in found):
            axes = of_rows, () if self.head_dim and "qkv" in dims else of_columns  # no device has a part of a head
            sizes = rows * plan.size(*axes[0]), columns * plan.size(*axes[1])
            turned = sizes[0] > sizes[1]
            if plan.train.matrices == "gram" and any(axes):  # Gram matrices are of the rows, so columns must be split
                turned = not axes[1]
            if turned:
                sizes, axes = (sizes[1], sizes[0]), (axes[1], axes[0])
            yield (sizes, axes, of_number), (name, index, turned), count

    def _group(self, kind: GroupKey, found: Iterable[tuple[GroupKey, Member, int]]) -> Matrices:
        _, members, counts = zip(*found, strict=True)
        sizes, axes, _ = kind
        placement = {"auto": "deal", "block": "deal"}.get(self.plan.train.matrices, self.plan.train.matrices)
        devices = {axis: size for axis, size in self.plan.mesh.axes if axis in chain(*axes)}
        return Matrices(members, counts, *sizes, *axes, placement, devices)

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
        train, dims = self.plan.train, {name: self.weights[name].spec.dims for name in arrays}
        narrow = {name: unsplit(array.astype(matrix_dtype(train)), dims[name]) for name, array in arrays.items()}
        parts = {name: matrices_of(narrow[name], dims[name], self.head_dim) for name in arrays}
        for group in self.groups:
            stacked = [parts[name][i].mT if turned else parts[name][i] for name, i, turned in group.members]
            updates = group.orthogonalised(jnp.concatenate(stacked)).astype("float32")
            starts = np.cumsum(group.counts)[:-1]
            for (name, i, turned), update in zip(group.members, jnp.split(updates, starts), strict=True):
                inputs, outputs = (group.columns, group.rows) if turned else (group.rows, group.columns)
                scaled = scale(train, inputs, outputs) * update
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


def scale(train: TrainConfig, inputs: int, outputs: int) -> float:
    """The factor of orthogonalised matrices, which map inputs to outputs.

    "rms" gives updates the root mean square that AdamW's have, so that its learning rate and weight decay serve both
    (Liu et al. 2025, "Muon is Scalable for LLM Training", equation 4). "original" is that of Jordan et al. 2024.
    """
    if train.matrix_scale == "rms":
        return 0.2 * math.sqrt(max(inputs, outputs))
    return math.sqrt(max(1, outputs / inputs))


def moments_of(spec: WeightSpec, train: TrainConfig) -> Mapping[str, Dtype | ReduceDtype]:
    """The optimizer's moments of a weight, and their dtypes: two of AdamW, or a momentum; none of a router's bias."""
    if not spec.trained:
        return {}
    if train.optimizer == "sgd" or (train.optimizer == "muon" and has_matrices(spec)):
        return {"m": train.momentum_dtype}
    return {"m": "float32", "v": "float32"}


def has_matrices(spec: WeightSpec) -> bool:
    """Whether Muon updates a weight. AdamW updates vectors, tables, the head and the router."""
    return spec.is_matrix and matrix_dims(spec.dims) is not None


def resolve_gather(plan: Plan) -> Mapping[str, Any]:
    """Resolve `matrices` under explicit sharding, which gathers them: a reshard to whole matrices says so in types."""
    if plan.train.matrices not in ("auto", "gather"):
        raise Infeasible(f"explicit gathers matrices, and has no rule for matrices={plan.train.matrices}; use gather")
    if plan.train.by_head and plan.tensors > 1:
        raise Infeasible(f"explicit has no rule for by_head=True over tensor={plan.tensors}; use tensor or three_d")
    return {"matrices": "gather"} if plan.train.optimizer == "muon" else {}
