"""Meshes of devices: which devices a `MeshSpec` takes, and their order."""

import reprlib
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import AxisType, Mesh

from strategies.backends.torus import arrange
from strategies.infeasible import Infeasible
from strategies.mesh import Devices, MeshSpec


def device_mesh(spec: MeshSpec, axes: Sequence[str], devices: Devices | None = None) -> Mesh:
    """Make a `jax.sharding.Mesh` with the given axes, outermost first. An axis that the spec omits has size one.

    Chips of a torus are arranged so that neighbours along an axis are neighbours on the torus if possible
    (backends/torus.py). By default the mesh has the first of `jax.devices()`.
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
