"""What is compared of arrays: for each weight, layer and unit a norm, and a projection on random signs.

    norm         sqrt(sum of squares)
    projection   sum of elements, each times its sign (positions.py)

If two arrays differ by e, their projections differ by a random number whose root mean square is |e|, wherever e lies.
So two numbers show almost any difference (Alon, Matias & Szegedy 1996, "The Space Complexity of Approximating the
Frequency Moments"). Each device reduces its own shard, and sends nothing to other devices. The host adds the shards up
in float64, and compares replicas.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from strategies.checking.positions import key_share, signs
from strategies.checkpoints.canonical import Index, Leaf, full

ROLES = "queries", "keys", "values"
"""Units of a projection of queries, keys and values. Keys alone have a bias whose gradient is zero."""


@dataclass(frozen=True)
class Projection:
    """Norms and projections of an array by layer (L; 1 if it is not stacked) and unit (U).

    The units are experts, or queries, keys and values; other arrays have one.

    Attributes:
        units: names of the units; empty if there is one.
        norm_LU: norms.
        signed_LU: projections on random signs.
        differing: mesh axis -> largest difference of norms or projections between replicas along it, relative to the
            norm of their shard; only axes along which replicas differ.
    """

    units: tuple[str, ...]
    norm_LU: np.ndarray
    signed_LU: np.ndarray
    differing: Mapping[str, float]


def project(
    mesh: Mesh, leaves: Sequence[Leaf], arrays: Sequence[Array], minus: Sequence[Array | None]
) -> list[Projection]:
    """Norms and projections of `arrays - minus`, in the order of the leaves.

    Args:
        mesh: of the step.
        leaves: where each array lies in the model.
        arrays: sharded as the leaves say.
        minus: what to subtract from each, sharded alike; None subtracts nothing.
    """
    sums = _program(mesh, leaves)(tuple(arrays), tuple(minus))
    sums = np.asarray(sums if sums.is_fully_addressable else process_allgather(sums, tiled=True), np.float64)
    by_device, start = sums.reshape(*mesh.devices.shape, -1), 0
    projections = []
    for leaf in leaves:
        shape = (2, *_shard_shape(leaf)[:-1])
        stop = start + int(np.prod(shape))
        projections.append(_combined(leaf, mesh, by_device[..., start:stop].reshape(*mesh.devices.shape, *shape)))
        start = stop
    return projections


def _program(mesh: Mesh, leaves: Sequence[Leaf]) -> Any:
    """The jitted function (arrays, arrays to subtract) -> the sums of each device, flat."""

    def sums(arrays: Sequence[Array], minus: Sequence[Array | None]) -> Array:
        by_leaf = [_sums(leaf, x, other) for leaf, x, other in zip(leaves, arrays, minus, strict=True)]
        return jnp.concatenate([each.reshape(-1) for each in by_leaf])

    specs = tuple(leaf.stored.sharding.spec for leaf in leaves)

    @jax.jit
    def sums_of_all(arrays: tuple[Array, ...], minus: tuple[Array | None, ...]) -> Array:
        subtracted = tuple(None if x is None else spec for x, spec in zip(minus, specs, strict=True))
        # Replicas may differ, which is looked for here, so no array counts as replicated.
        return jax.shard_map(
            sums, mesh=mesh, in_specs=(specs, subtracted), out_specs=P(mesh.axis_names), check_vma=False
        )(arrays, minus)

    return sums_of_all


def _sums(leaf: Leaf, shard: Array, minus: Array | None) -> Array:
    """Sums of squares, and of signed elements, over the last dim of a shard [2, all but the last dim]."""
    x = shard.astype("float32") - (0.0 if minus is None else minus.astype("float32"))
    share = key_share(leaf, x.shape)
    return jnp.stack([(x * x * share).sum(-1), (x * signs(leaf, x.shape) * share).sum(-1)])


def _shard_shape(leaf: Leaf) -> tuple[int, ...]:
    return leaf.stored.sharding.shard_shape(leaf.stored.shape)


def _combined(leaf: Leaf, mesh: Mesh, sums: np.ndarray) -> Projection:
    """The projection of an array, from the sums of all devices [mesh, 2, all but the last dim of a shard]."""
    axes = mesh.axis_names
    sums = _by_unit(leaf, sums, len(axes) + 1)
    sharding = {axis for names in leaf.stored.sharding.spec for axis in _axes(names)}
    replicated = [i for i, axis in enumerate(axes) if axis not in sharding]
    differing = {axes[i]: _difference(sums, len(axes), i) for i in replicated}
    total = np.zeros((2, leaf.shape[0] if leaf.is_stacked else 1, len(units_of(leaf)) or 1))
    indices = leaf.stored.sharding.devices_indices_map(leaf.stored.shape)
    for place in np.ndindex(mesh.devices.shape):
        if not any(place[i] for i in replicated):
            layers, units = _rows(leaf, full(indices[mesh.devices[place]], leaf.stored.shape))
            held = layers >= 0
            np.add.at(total, np.ix_(np.arange(2), layers[held], units), sums[place][:, held])
    return Projection(units_of(leaf), np.sqrt(total[0]), total[1], {axis: by for axis, by in differing.items() if by})


def _difference(sums: np.ndarray, before: int, axis: int) -> float:
    """The largest relative difference of norms or projections between devices along a mesh axis.

    Args:
        sums: [mesh, 2, layers, units] of each device's shard.
        before: number of mesh axes.
        axis: which of them.
    """
    squares, signed = np.moveaxis(sums, before, 0)
    norms = np.sqrt(squares)
    largest = norms.max(axis)
    spread = np.maximum(np.ptp(norms, axis=axis), np.ptp(signed, axis=axis))
    return float(np.divide(spread, largest, out=np.zeros_like(spread), where=largest != 0).max())


def _by_unit(leaf: Leaf, sums: np.ndarray, before: int) -> np.ndarray:
    """Sums [before, all but the last dim of a shard] -> [before, layers or 1, positions along the unit dim or 1]."""
    kept = {before + dim for dim in kept_dims(leaf)}
    sums = sums.sum(tuple(dim for dim in range(before, sums.ndim) if dim not in kept))
    return sums.reshape(*sums.shape[:before], sums.shape[before] if leaf.is_stacked else 1, -1)


def _rows(leaf: Leaf, index: Index) -> tuple[np.ndarray, np.ndarray]:
    """The layer of each of a shard's slots, -1 for none, and the unit of each of its positions along that dim."""
    layers, units = np.zeros(1, int), np.zeros(1, int)
    if leaf.is_stacked:
        layers = np.arange(leaf.stored.shape[0])[index[0]]
        layers = np.array(leaf.slots)[layers] if leaf.slots else layers
    for dim in _unit_dims(leaf):
        units = np.arange(leaf.stored.shape[dim])[index[dim]]
        if not by_expert(leaf):  # all rows but the last are of queries
            units = np.maximum(units - leaf.stored.shape[dim] + len(units_of(leaf)), 0)
    return layers, units


def kept_dims(leaf: Leaf) -> tuple[int, ...]:
    """The dims of an array along which its projection is not summed: of layers and of units."""
    return ((0,) if leaf.is_stacked else ()) + _unit_dims(leaf)


def _unit_dims(leaf: Leaf) -> tuple[int, ...]:
    """The dim along which the units of an array lie, if it has several."""
    return (1 if by_expert(leaf) else len(leaf.dims) - 2,) if units_of(leaf) else ()


def by_expert(leaf: Leaf) -> bool:
    """Whether each expert has its own array."""
    return leaf.dims[1:2] == ("experts",) and len(leaf.dims) > 2


def units_of(leaf: Leaf) -> tuple[str, ...]:
    """Names of the units of an array; empty if it has one."""
    if by_expert(leaf):
        return tuple(f"expert {number}" for number in range(leaf.shape[1]))
    return {"qkv": ROLES, "qk": ROLES[:2]}.get(leaf.dims[-2] if len(leaf.dims) > 1 else "", ())


def _axes(names: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Mesh axes of one dim of a `PartitionSpec`."""
    return (names,) if isinstance(names, str) else names or ()
