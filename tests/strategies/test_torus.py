"""The order of chips on a torus of two dims."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from strategies.torus import in_rings

Coords = tuple[int, ...]


def chips(extents: Coords, shape: Coords, platform: str = "tpu") -> np.ndarray:
    """Chips of a torus in the shape of a mesh, row by row."""
    found = np.empty(int(np.prod(extents)), object)
    found[:] = [SimpleNamespace(coords=(*coords, 0)[:3], platform=platform) for coords in np.ndindex(extents)]
    return found.reshape(shape)


def places(devices: np.ndarray) -> list[Coords]:
    """Coordinates of the devices, in order."""
    return [device.coords for device in devices.flat]


@pytest.mark.parametrize(
    ("extents", "shape", "size"),
    [
        ((16, 16), (32, 8), 8),
        ((16, 16), (8, 4, 8), 8),
        ((16, 16), (64, 4, 1), 4),
        ((4, 4), (1, 4, 1, 4), 4),
        ((4, 8), (4, 8), 8),
    ],
)
@pytest.mark.parametrize("turned", [False, True], ids=["rows", "columns"])
def test_chips_along_the_innermost_axis_form_a_ring(extents: Coords, shape: Coords, size: int, turned: bool) -> None:
    """Each chip is a neighbour of the next along the innermost axis, and the last of the first; each is there once."""
    devices = chips(extents, shape)
    if turned:
        for device in devices.flat:
            device.coords = (device.coords[1], device.coords[0], 0)
    found = in_rings(devices)
    assert found.shape == shape
    assert sorted(places(found)) == sorted(places(devices))
    for ring in found.reshape(-1, size):
        for device, following in zip(ring, np.roll(ring, -1), strict=True):
            assert sum(abs(a - b) for a, b in zip(device.coords, following.coords, strict=True)) == 1


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        (chips((16, 16), (16, 16)), "a whole ring"),
        (chips((16, 16), (8, 32)), "two rows already"),
        (chips((16, 16), (128, 2)), "two chips"),
        (chips((3, 6), (3, 6)), "three chips in a row of six, and three rows"),
        (chips((4, 4, 4), (16, 4)), "three dims"),
        (chips((16, 16), (32, 8), "gpu"), "no TPUs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_meshes_stay_as_they_are(devices: np.ndarray, why: Any) -> None:
    """An axis that is a ring, or that no block of two rows can hold, keeps its chips."""
    assert why
    assert places(in_rings(devices)) == places(devices)
