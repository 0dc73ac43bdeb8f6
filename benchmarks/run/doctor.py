"""Describe this installation and machine in about ten lines, to paste into an issue.

meshmark doctor
"""

import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.cases.selection import available_devices
from benchmarks.cli.main import installed_version
from benchmarks.cli.tables import aligned
from benchmarks.devices.attached import SET_BY_JAX
from benchmarks.devices.topology import COMPILERS, REQUIRED, installed
from benchmarks.run.machine import use_virtual_devices
from strategies.backends.backend import are_virtual

LIBRARIES = "jax", "jaxlib", "flax", "optax", "pytest-benchmark"
VARIABLES = "JAX_", "XLA_", "LIBTPU_", "TPU_", "CUDA_", "NCCL_", "MESHMARK_"
"""Beginnings of the environment variables that change what is compiled or run."""
BUSY = 0.2
"""Load for each core from which other work is likely to disturb timings."""
UNUSABLE = 1
"""Exit code if the devices cannot be used, or do not sum correctly."""


def main(_: object = None) -> int:
    """Print the description; 0, or `UNUSABLE` if JAX cannot start or a sum over all devices is wrong."""
    lines = [*software(), *host()]
    use_virtual_devices()
    try:
        lines += [*devices_and_links(), ("check", checked_sum())]
    except Exception as error:  # whatever the backend raises is what the reader must see
        print("\n".join(aligned([*lines, ("check", f"failed: {error or type(error).__name__}")])))
        return UNUSABLE
    print("\n".join(aligned(lines)))
    return 0


def software() -> Iterator[tuple[str, str]]:
    """Yield the lines about versions, compilers, extras and the environment."""
    yield "meshmark", ", ".join(filter(None, [installed_version(), commit()]))
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.release()} {platform.machine()}"
    yield "libraries", ", ".join(f"{name} {installed(name) or 'missing'}" for name in LIBRARIES)
    for extra, package in COMPILERS.values():
        missing = f"not installed; to compile for {extra.upper()}s, pip install '{REQUIRED[extra]}'"
        found = installed(package)
        yield f"{extra} compiler", f"{package} {found}" if found else missing
    named = {name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)}
    changed = [f"{name}={value}" for name, value in named.items() if name not in SET_BY_JAX]
    yield "environment", " ".join(changed) or "none of " + " ".join(f"{name}*" for name in VARIABLES)


def commit() -> str:
    """Return the commit of this checkout, marked if files differ from it; empty where there is no checkout or git."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():  # an installed package may lie inside another project's checkout
        return ""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return f"commit {done.stdout.strip()}" if done.returncode == 0 else ""


def host() -> Iterator[tuple[str, str]]:
    """Yield the line about cores, load and memory."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    busy = "busy: timings will be noisy" if load > BUSY * cores else "quiet"
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield "host", f"{cores} cores, load {load:.1f} ({busy}), {gib:.1f} GiB of memory"


def devices_and_links() -> Iterator[tuple[str, str]]:
    """Yield the lines about devices, their memory and their links. Starts the backend."""
    available_devices()
    found = jax.devices()
    shared = ", virtual: they share the host's cores and memory" if are_virtual(found) else ""
    yield "devices", f"{len(found)} x {found[0].device_kind} ({found[0].platform}{shared})"
    stats = [device.memory_stats() or {} for device in jax.local_devices()]  # None for CPUs
    if limits := [of_one["bytes_limit"] for of_one in stats if "bytes_limit" in of_one]:
        yield "memory", f"{min(limits) / 2**30:.1f} GiB a device for JAX"
    places = [getattr(device, "coords", None) for device in found]  # in a TPU's torus; other devices have none
    yield "links", links(jax.process_count(), len(jax.local_devices()), places)


def links(processes: int, local: int, places: Sequence[tuple[int, ...] | None]) -> str:
    """Say how many processes there are, and what is known of how devices are linked, by their places in a torus.

    >>> links(2, 8, [None] * 16)
    '2 processes, 8 devices in this one'
    >>> links(1, 4, [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)])
    '1 process, 4 devices in this one, a torus of 2x2x1'
    """
    said = f"{processes} process{'es' if processes > 1 else ''}, {local} devices in this one"
    known = [place for place in places if place is not None]
    extents = [max(dim) - min(dim) + 1 for dim in zip(*known, strict=True)]
    return said + (f", a torus of {'x'.join(map(str, extents))}" if extents else "")


def checked_sum() -> str:
    """Sum one number of each device over all devices, which needs every device and link."""
    mesh = jax.make_mesh((len(jax.devices()),), ("all",))
    numbers = np.arange(len(jax.devices()), dtype=np.float32)
    spread = jax.make_array_from_callback(
        numbers.shape, NamedSharding(mesh, PartitionSpec("all")), lambda part: numbers[part]
    )
    total = float(jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(spread))
    if total != numbers.sum():
        raise ValueError(f"the sum over all devices is {total}, not {numbers.sum()}")
    return f"a sum over {len(numbers)} devices is right"
