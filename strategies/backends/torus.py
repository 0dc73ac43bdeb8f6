"""Order of devices in a mesh that makes chips of a torus neighbours along its axes.

On v5e and v6e, which have a two-dimensional torus, an innermost axis of tensor or fsdp uses rings of neighbours.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType

from strategies.backends.backend import KINDS

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
