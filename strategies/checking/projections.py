"""The numbers compared for each weight, layer and unit: a norm, and a projection on random signs.

    norm         sqrt(sum of squares)
    projection   sum of elements, each times its sign (positions.py)

If two arrays differ by e, their projections differ by a random number whose root mean square is |e|, wherever e lies.
So two numbers show almost any difference (Alon, Matias & Szegedy 1996, "The Space Complexity of Approximating the
Frequency Moments"). Each device reduces its own shard and sends nothing. The host adds up the shards in float64, and
compares replicas. CPU devices' shards are in host memory, so the host reduces them: compiling a program takes longer
for all but large models.
"""

import math
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

from strategies.checking.positions import Places, key_share, places_on_device, places_on_host, signs
from strategies.checkpoints.canonical import Index, Leaf, full

ROLES = "queries", "keys", "values"
"""Units of a projection of queries, keys and values. Only keys have a bias whose gradient is zero."""


@dataclass(frozen=True)
class Projection:
    """Norms and projections of an array by layer (L; 1 if not stacked) and unit (U).

    The units are experts, or queries, keys and values; other arrays have one.

    Attributes:
        units: names of the units; empty if there is one.
        differing: mesh axis -> largest difference of norms or projections between replicas along it, relative to their
            shard's norm; only axes along which replicas differ.
    """

    units: tuple[str, ...]
    norm_LU: np.ndarray
    signed_LU: np.ndarray
    differing: Mapping[str, float]


def project(
    mesh: Mesh, leaves: Sequence[Leaf], arrays: Sequence[Array], minus: Sequence[Array | None]
) -> list[Projection]:
    """Norms and projections of `arrays - minus` (None: 0), which are sharded as the leaves say, in their order."""
    sums = (_sums_on_host if is_on_host(mesh) else _sums_on_devices)(mesh, leaves, arrays, minus)
    by_device, start = sums.astype(np.float64).reshape(*mesh.devices.shape, -1), 0
    projections = []
    for leaf in leaves:
        shape = (2, *_shard_shape(leaf)[:-1])
        stop = start + int(np.prod(shape))
        projections.append(_combined(leaf, mesh, by_device[..., start:stop].reshape(*mesh.devices.shape, *shape)))
        start = stop
    return projections


def is_on_host(mesh: Mesh) -> bool:
    """Whether arrays are in host memory."""
    return mesh.devices.flat[0].platform == "cpu"


def _sums_on_host(
    mesh: Mesh, leaves: Sequence[Leaf], arrays: Sequence[Array], minus: Sequence[Array | None]
) -> np.ndarray:
    """Each device's sums [devices, sums of all leaves], by NumPy."""
    of_device: dict[Any, list[np.ndarray]] = {device: [] for device in mesh.devices.flat}
    factors = dict[Any, tuple[Any, Any]]()  # shared by replicas, and by a weight and its moment
    for leaf, array, other in zip(leaves, arrays, minus, strict=True):
        others = {shard.device: shard.data for shard in other.addressable_shards} if other is not None else {}
        for shard in array.addressable_shards:
            index = full(shard.index, array.shape)
            part = leaf.name.rpartition("/")[2], *((dim.start, dim.stop) for dim in index)
            if part not in factors:
                factors[part] = _factors(leaf, places_on_host(index))
            x = np.asarray(shard.data, np.float32)
            x = x - np.asarray(others[shard.device], np.float32) if others else x
            of_device[shard.device].append(_sums(x, *factors[part]).reshape(-1))
    sums = np.zeros((len(of_device), sum(2 * math.prod(_shard_shape(leaf)[:-1]) for leaf in leaves)), np.float32)
    for row, parts in zip(sums, of_device.values(), strict=True):
        if parts:  # other shards are in another process
            row[:] = np.concatenate(parts)
    return sums if all(of_device.values()) else np.asarray(process_allgather(sums)).sum(0)


def _sums_on_devices(
    mesh: Mesh, leaves: Sequence[Leaf], arrays: Sequence[Array], minus: Sequence[Array | None]
) -> np.ndarray:
    """The same, by one program in which each device reduces its own shards."""

    def sums(arrays: Sequence[Array], minus: Sequence[Array | None]) -> Array:
        def of_leaf(leaf: Leaf, shard: Array, other: Array | None) -> Array:
            x = shard.astype("float32") - (0.0 if other is None else other.astype("float32"))
            return _sums(x, *_factors(leaf, places_on_device(leaf, x.shape))).reshape(-1)

        return jnp.concatenate([of_leaf(*each) for each in zip(leaves, arrays, minus, strict=True)])

    specs = tuple(leaf.stored.sharding.spec for leaf in leaves)
    subtracted = tuple(None if x is None else spec for x, spec in zip(minus, specs, strict=True))
    # Replicas may differ, and this looks for it, so no array counts as replicated.
    program = jax.shard_map(
        sums, mesh=mesh, in_specs=(specs, subtracted), out_specs=P(mesh.axis_names), check_vma=False
    )
    found = jax.jit(program)(tuple(arrays), tuple(minus))
    return np.asarray(found if found.is_fully_addressable else process_allgather(found, tiled=True))


def _factors(leaf: Leaf, places: Places) -> tuple[Any, Any]:
    """Factors of squares and of elements before they are summed."""
    share = key_share(leaf, places)
    return share, signs(leaf, places) * share


def _sums(x: Any, share: Any, signs: Any) -> Any:
    """Sums of squares and of signed elements over the last dim of a shard [2, all but the last dim]."""
    return x.__array_namespace__().stack([(x * x * share).sum(-1), (x * signs).sum(-1)])


def _shard_shape(leaf: Leaf) -> tuple[int, ...]:
    return leaf.stored.sharding.shard_shape(leaf.stored.shape)


def _combined(leaf: Leaf, mesh: Mesh, sums: np.ndarray) -> Projection:
    """The projection of an array from all devices' sums [mesh, 2, all but the last dim of a shard]."""
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
    """Largest relative difference of `sums` [mesh, 2, layers, units] between devices along one of `before`
    mesh axes.
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
        if not by_expert(leaf):  # all rows but the last are queries
            units = np.maximum(units - leaf.stored.shape[dim] + len(units_of(leaf)), 0)
    return layers, units


def kept_dims(leaf: Leaf) -> tuple[int, ...]:
    """The dims of an array that its projection keeps: layers and units."""
    return ((0,) if leaf.is_stacked else ()) + _unit_dims(leaf)


def _unit_dims(leaf: Leaf) -> tuple[int, ...]:
    """The dim of an array's units, if it has several."""
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
