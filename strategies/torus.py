"""Order of chips on a torus of two dims, such as v5e and v6e: the innermost mesh axis takes rings of neighbours."""

from typing import Any

import numpy as np

RING = 16
"""Chips along which a dim of v5e and v6e wraps around (Austin et al. 2025, "How to Scale Your Model", part 2)."""


def in_rings(devices: np.ndarray) -> np.ndarray:
    """Arrange the innermost axis of a mesh in blocks of two rows instead of parts of one row.

    Chips in a part of a row form a line, whose ends have one link, so a collective along it uses one link of each chip.
    A block of two rows has a ring of neighbours, there along one row and back along the other, which uses two:

        0 1 2 3
        7 6 5 4

    Chips along the outer axes are then not neighbours, but the inner axes communicate most. Nothing is changed where
    the innermost axis above one has an odd size or two devices, where it spans a ring of 16 or several rows already,
    on a torus of three dims, and if the chips are no full rectangle or not TPUs.

    Args:
        devices: `jax.Device`s in the shape of a mesh, innermost axis last.

    Returns:
        The same devices in the same shape.
    """
    size = next((size for size in reversed(devices.shape) if size > 1), 1)
    if devices.flat[0].platform != "tpu" or size < 4 or size % 2:
        return devices
    grid = _rectangle(devices)
    group = {tuple(device.coords) for device in devices.reshape(-1, size)[0]}
    along = [dim for dim in range(len(next(iter(group)))) if len({coords[dim] for coords in group}) > 1]
    if grid is None or len(along) != 1:
        return devices
    rows = grid if along == [1] else grid.T
    half = size // 2
    if size == RING or rows.shape[0] % 2 or rows.shape[1] % half:
        return devices
    blocks = rows.reshape(rows.shape[0] // 2, 2, rows.shape[1] // half, half).transpose(0, 2, 1, 3)
    rings = np.concatenate([blocks[:, :, 0], blocks[:, :, 1, ::-1]], axis=-1)
    return rings.reshape(devices.shape)


def _rectangle(devices: np.ndarray) -> np.ndarray | None:
    """The devices by their first two coordinates; None if they are no full rectangle in these."""
    places: dict[tuple[int, ...], Any] = {tuple(device.coords): device for device in devices.flat}
    extents = [sorted({coords[dim] for coords in places}) for dim in range(len(next(iter(places))))]
    shape = [len(extent) for extent in extents[:2]]
    if len(places) != devices.size or len(shape) < 2 or np.prod(shape) != devices.size:
        return None
    grid = np.empty(shape, object)
    for coords, device in places.items():
        grid[extents[0].index(coords[0]), extents[1].index(coords[1])] = device
    return grid
