"""Meshes of devices: which devices a `MeshSpec` takes, and their order.

Chips of a torus become neighbours along the axes of a mesh. On v5e and v6e, which have a two-dimensional torus, an
innermost axis of tensor or fsdp uses rings of neighbours.
"""

import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from strategies.backends.backend import KINDS
from strategies.infeasible import Infeasible
from strategies.mesh import Devices, MeshSpec


def device_mesh(spec: MeshSpec, axes: Sequence[str], devices: Devices | None = None) -> Mesh:
    """Make a `jax.sharding.Mesh` with the given axes, outermost first. An axis that the spec omits has size one.

    Chips of a torus are arranged so that neighbours along an axis are neighbours on the torus if possible
    (`arrange`). By default the mesh has the first of `jax.devices()`.
    """
    if unknown := [name for name in spec.sizes if name not in axes]:
        raise Infeasible(f"mesh {spec} has the axis {unknown[0]}; it can be {', '.join(axes)}")
    if devices is None:
        _require_available(spec)
        devices = first_devices(spec.size)
    if not isinstance(devices, Sequence) or not all(hasattr(device, "device_kind") for device in devices):
        raise Infeasible(f"devices={reprlib.repr(devices)}; pass devices, such as jax.devices()[:{spec.size}]")
    if len(devices) != spec.size:
        problem = f"mesh {spec} needs {spec.size} devices, and got {len(devices)}"
        raise Infeasible(f"{problem}; change the mesh, pass other devices, or set JAX_NUM_CPU_DEVICES for virtual ones")
    if len({id(device) for device in devices}) < len(devices):
        raise Infeasible(f"devices={reprlib.repr(devices)} has a device twice; list each device once")
    shape = tuple(spec.sizes.get(name, 1) for name in axes)
    return Mesh(arrange(devices, shape, axes), tuple(axes), axis_types=(AxisType.Auto,) * len(shape))


def _require_available(spec: MeshSpec) -> None:
    available = jax.devices()
    if len(available) >= spec.size:
        return
    problem = f"mesh {spec} needs {spec.size} devices, and JAX has {len(available)}"
    if available[0].platform == "cpu":
        way_out = f"start Python with JAX_NUM_CPU_DEVICES={spec.size} in the environment, or call"
        call = f'jax.config.update("jax_num_cpu_devices", {spec.size})'
        raise Infeasible(f"{problem}; {way_out} {call} before any other use of JAX, which fixes the number")
    raise Infeasible(f"{problem}; take a smaller mesh")


def first_devices(count: int, devices: Devices | None = None) -> list[Any]:
    """The first `count` devices of `devices`, by default of `jax.devices()`.

    With several processes each contributes the same number, ordered by process. A single device is local, so that it
    computes without the other processes.
    """
    devices = jax.devices() if devices is None else devices
    processes = sorted({device.process_index for device in devices})
    if count == 1:
        return [device for device in devices if device.process_index == jax.process_index()][:1]
    if count % len(processes):
        few = f"{count} devices cannot be divided equally among {len(processes)} processes"
        raise Infeasible(f"{few}; take one device, or a multiple of {len(processes)}")
    each = count // len(processes)
    return [
        device
        for process in processes
        for device in [device for device in devices if device.process_index == process][:each]
    ]


def mark_varying(tree: Any, axes: str | tuple[str, ...]) -> Any:
    """Mark arrays as varying over mesh axes, inside `jax.shard_map`. The values do not change.

    Autodiff sums an array's gradients over the axes along which it does not vary. A marked array's gradients stay
    separate, one per device, until a strategy sums them.
    """
    return jax.tree.map(lambda array: lax.pcast(array, axes, to="varying"), tree)


def mark_missing(array: Any, axes: Sequence[str]) -> Any:
    """Mark an array as varying over the given axes, where it does not vary over them yet."""
    missing = tuple(axis for axis in axes if axis not in jax.typeof(array).manual_axis_type.varying)
    return mark_varying(array, missing) if missing else array


def barrier(tree: Any) -> Any:
    """`lax.optimization_barrier`, one for each set of mesh axes over which arrays vary.

    JAX (0.10) marks all results of a barrier as varying over the axes of all its operands. Arrays that vary over
    different axes are not ordered against each other.
    """
    leaves, structure = jax.tree.flatten(tree)
    axes = [frozenset(jax.typeof(leaf).manual_axis_type.varying) for leaf in leaves]
    for varying in dict.fromkeys(axes):
        places = [place for place, own in enumerate(axes) if own == varying]
        for place, leaf in zip(places, lax.optimization_barrier([leaves[place] for place in places]), strict=True):
            leaves[place] = leaf
    return jax.tree.unflatten(structure, leaves)


TWO_DIMS = tuple(kind for kind, backend in KINDS.items() if backend.two_dim_torus)
"""JAX's names of v5e and v6e, the chips with a two-dimensional torus."""

RINGED = "fsdp", "tensor"
"""Axes whose gathers and reduce-scatters are most of what a step sends."""

RING = 16
"""Number of chips at which a dim of v5e and v6e wraps around (Austin et al. 2025, "How to Scale Your Model", part 2).
"""


def arrange(devices: Sequence[Any], shape: tuple[int, ...], axes: Sequence[str]) -> np.ndarray:
    """Arrange devices in the shape of a mesh, whose `axes` are outermost first.

    On a torus an axis is mapped to whole dims of the torus if possible, otherwise to a part of one dim. `jax.make_mesh`
    (JAX 0.10) maps an axis to a part of a dim only on v5e, and refuses elsewhere.
    """
    types = (AxisType.Auto,) * len(shape)
    try:
        device_array = jax.make_mesh(shape, tuple(axes), axis_types=types, devices=devices).devices
    except NotImplementedError:
        device_array = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    return in_rings(device_array, axes)


def in_rings(devices: np.ndarray, axes: Sequence[str]) -> np.ndarray:
    """Arrange an innermost axis of tensor or fsdp in blocks of two rows instead of parts of one row.

    Chips in a part of a row form a line, whose ends have one link, so a collective along it uses one link per chip. A
    block of two rows has a ring of neighbours, there along one row and back along the other, which uses two:

        0 1 2 3
        7 6 5 4

    Chips along the outer axes are then not neighbours, and groups along these share links. That pays off if the
    innermost axis's collectives are most of what a step sends, as with tensor and fsdp. For gpt3-6.7b with 512
    sequences on v5e:16x16, formulas predict less time for sending on 132 of 133 meshes of three_d with one of these
    innermost, but more on 26 of 61 with pipeline or context innermost, so these keep their parts of a row.

    Devices stay as they are if the innermost axis above one has an odd size or two devices, or already spans a ring of
    16 or several rows, if the chips are not a full rectangle without gaps, and on other kinds than v5e and v6e.
    """
    sizes = [(axis, size) for axis, size in zip(axes, devices.shape, strict=True) if size > 1]
    axis, size = sizes[-1] if sizes else ("", 1)
    if devices.flat[0].device_kind not in TWO_DIMS or axis not in RINGED or size < 4 or size % 2:
        return devices
    grid = _rectangle(devices)
    along = [dim for dim, places in enumerate(positions(devices.reshape(-1, size)[0])) if len(places) > 1]
    if grid is None or len(along) != 1:
        return devices
    rows = grid if along == [1] else grid.T
    half = size // 2
    if size == RING or rows.shape[0] % 2 or rows.shape[1] % half:
        return devices
    blocks = rows.reshape(rows.shape[0] // 2, 2, rows.shape[1] // half, half).transpose(0, 2, 1, 3)
    rings = np.concatenate([blocks[:, :, 0], blocks[:, :, 1, ::-1]], axis=-1)
    return rings.reshape(devices.shape)


def positions(group: Iterable[Any]) -> list[list[int]]:
    """Distinct coordinates of a group of devices in each dim of their torus, in order."""
    return [sorted(set(places)) for places in zip(*(device.coords for device in group), strict=True)]


def _rectangle(devices: np.ndarray) -> np.ndarray | None:
    """The devices by their first two coordinates; None if these are not a full rectangle without gaps."""
    places: dict[tuple[int, ...], Any] = {tuple(device.coords): device for device in devices.flat}
    extents = positions(devices.flat)
    shape = [len(extent) for extent in extents[:2]]
    gaps = any(extent[-1] - extent[0] + 1 != len(extent) for extent in extents)
    if gaps or len(places) != devices.size or np.prod(shape) != devices.size:
        return None
    grid = np.empty(shape, object)
    for coords, device in places.items():
        grid[extents[0].index(coords[0]), extents[1].index(coords[1])] = device
    return grid
