"""The order of chips on a torus of two dims."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.devices.chips import CHIPS
from benchmarks.devices.topology import DEVICE_KINDS
from strategies.backends.device_mesh import TWO_DIMS, in_rings
from strategies.mesh import all_axes

Coords = tuple[int, ...]
V5E = "TPU v5 lite"


def chips(extents: Coords, shape: Coords, kind: str = V5E) -> np.ndarray:
    """Chips of a torus in the shape of a mesh, row by row."""
    found = np.empty(int(np.prod(extents)), object)
    found[:] = [SimpleNamespace(coords=(*coords, 0)[:3], device_kind=kind) for coords in np.ndindex(extents)]
    return found.reshape(shape)


def chips_where(wanted: Callable[[int, int], bool], shape: Coords) -> np.ndarray:
    """Those chips of v5e:16x16 whose row and column are wanted, in the shape of a mesh."""
    return np.array([chip for chip in chips((16, 16), (256,)) if wanted(*chip.coords[:2])]).reshape(shape)


def places(devices: np.ndarray) -> list[Coords]:
    """Coordinates of the devices, in order."""
    return [device.coords for device in devices.flat]


@pytest.mark.parametrize(
    ("extents", "axes", "shape", "size"),
    [
        ((16, 16), ("fsdp", "tensor"), (32, 8), 8),
        ((16, 16), ("data", "pipeline", "tensor"), (8, 4, 8), 8),
        ((16, 16), ("data", "fsdp", "tensor"), (64, 4, 1), 4),
        ((4, 4), ("data", "fsdp", "pipeline", "tensor"), (1, 4, 1, 4), 4),
        ((4, 8), ("fsdp", "tensor"), (4, 8), 8),
    ],
)
@pytest.mark.parametrize("turned", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("kind", [V5E, "TPU v6 lite"])
def test_chips_along_the_innermost_axis_form_a_ring(
    extents: Coords, axes: tuple[str, ...], shape: Coords, size: int, turned: bool, kind: str
) -> None:
    """Each chip is a neighbour of the next along the innermost axis, and the last of the first; each is there once."""
    devices = chips(extents, shape, kind)
    if turned:
        for device in devices.flat:
            device.coords = (device.coords[1], device.coords[0], 0)
    found = in_rings(devices, axes)
    assert found.shape == shape
    assert sorted(places(found)) == sorted(places(devices))
    for ring in found.reshape(-1, size):
        for device, following in zip(ring, np.roll(ring, -1), strict=True):
            assert sum(abs(a - b) for a, b in zip(device.coords, following.coords, strict=True)) == 1


@pytest.mark.parametrize(
    "devices",
    [
        pytest.param(chips((16, 16), (16, 16)), id="a whole ring"),
        pytest.param(chips((16, 16), (8, 32)), id="two rows already"),
        pytest.param(chips((16, 16), (128, 2)), id="two chips"),
        pytest.param(chips((3, 6), (3, 6)), id="three rows"),
        pytest.param(chips((4, 4, 4), (16, 4), "TPU v5"), id="three dims"),
        pytest.param(chips((4, 4, 1), (4, 4), "TPU v5"), id="a plane of three dims"),
        pytest.param(chips((16, 16), (32, 8), "NVIDIA H100 80GB HBM3"), id="no TPUs"),
        pytest.param(chips_where(lambda x, y: x < 3 or (x == 3 and y < 8), (7, 8)), id="a part of a rectangle"),
        pytest.param(chips_where(lambda x, y: x < 4 and y % 2 == 0, (8, 4)), id="every second column"),
    ],
)
def test_other_meshes_stay_as_they_are(devices: np.ndarray) -> None:
    """An axis that is a ring, or that no block of two rows can hold, keeps its chips."""
    assert places(in_rings(devices, ("fsdp", "tensor"))) == places(devices)


@pytest.mark.parametrize("innermost", all_axes())
def test_only_tensor_and_fsdp_take_rings(innermost: str) -> None:
    """Other innermost axes keep their parts of a row, also with an axis of size one inside of them."""
    devices = chips((16, 16), (64, 4, 1))
    ringed = in_rings(devices, ("outer", innermost, "tensor" if innermost != "tensor" else "inner"))
    assert (places(ringed) != places(devices)) == (innermost in ("fsdp", "tensor"))


def test_kinds_with_a_torus_of_two_dims() -> None:
    """Rings of two rows are for the kinds of chips whose torus has two dims."""
    assert {kind for name, kind in DEVICE_KINDS.items() if CHIPS[name].torus_dims == 2} <= {*TWO_DIMS}
    assert not {kind for name, kind in DEVICE_KINDS.items() if CHIPS[name].torus_dims == 3} & {*TWO_DIMS}
