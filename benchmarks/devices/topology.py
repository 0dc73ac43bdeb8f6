"""Topologies of devices that need not be present: steps are compiled for them ahead of time and never run."""

import functools
import math
import os
import re
import signal
import threading
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.devices.chips import CHIPS, GPU_KINDS, GPU_TARGET, GPUS, Chip
from strategies.mesh import Devices
from strategies.names import did_you_mean

CPU = "cpu"
COMPILERS = {"tpu": ("tpu", "libtpu"), "cuda": ("gpu", "jax-cuda13-plugin")}
"""By platform: the extra of this project that installs the compiler, and the package that contains it."""

REQUIRED = {"tpu": "jax[tpu]", "gpu": "jax[cuda13]"}
"""What each of these extras installs."""
DEVICE_KINDS = {"v4": "TPU v4", "v5e": "TPU v5 lite", "v5p": "TPU v5", "v6e": "TPU v6 lite", "tpu7x": "TPU7x"}
"""Our names of kinds -> JAX's, on which defaults of a step (strategies/backends/backend.py) and the order of devices in
a mesh depend."""
OUR_KINDS = {**GPU_KINDS, **{name: kind for kind, name in DEVICE_KINDS.items()}}
"""JAX's names of kinds of devices -> ours."""
CLOUD_NAMES = {"v5litepod": "v5e", "v5lite": "v5e", "a100": "a100_80gb"}
"""Other names of kinds: Cloud TPU's, and the A100 with the larger memory."""
EXAMPLES = "v5p:4x4x4, h100:16x8 or cpu:1024; what Cloud TPU calls v5e-16 is v5e:4x4, and v4-8 is v4:2x2x1"
MAX_DEVICES = 65_536
"""Limit for kinds without a largest slice. With more devices, the search takes too long to wait for."""

NO_TPU_HOST = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v4-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_MIN_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""Environment of a TPU host. Without it, libtpu looks for TPUs on this machine and reports that there are none. The
last entry lets several processes compile at once: by default libtpu takes a lock, as if each process used the TPUs."""


@dataclass(frozen=True)
class Topology:
    """Devices of one kind in a shape.

    Attributes:
        kind: a name in `CHIPS`, or "cpu" for virtual CPU devices.
        shape: extents of the mesh or torus of TPU chips; (hosts, devices per host) of GPUs and CPUs; or (number of
            virtual devices,) of one host.

    Raises:
        ValueError: the kind is unknown, or does not come in this shape.
    """

    kind: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        """Validate the kind and the shape."""
        if self.kind != CPU and self.kind not in CHIPS:
            raise ValueError(f"topology {self}: {self.kind!r} is not known; known kinds are {', '.join((*CHIPS, CPU))}")
        dims = {CPU: (1, 2), "cuda": (2,), "gpu": (2,)}.get(self.platform) or (CHIPS[self.kind].torus_dims,)
        if len(self.shape) not in dims or min(self.shape) < 1:
            problem = f"topology {self}: the shape of {self.kind} has {' or '.join(map(str, dims))} dims of at least 1"
            raise ValueError(f"{problem}; write one as {self._example}")
        chips, most = math.prod(self.shape), self.chip.slice_chips if self.chip else 0
        if not most and chips > MAX_DEVICES:
            raise ValueError(f"topology {self} has {chips:,} devices; take {MAX_DEVICES:,} or fewer")
        if most and chips > most:
            problem = f"topology {self} has {chips:,} chips, and a slice of {self.kind} has at most {most:,}"
            raise ValueError(f"{problem}; take a smaller one, as {self._example}, or virtual devices, as cpu:1024")

    @classmethod
    def parse(cls, text: str) -> "Topology":
        """Parse the string that `str` gives, in any case.

        >>> str(Topology.parse("v5p:4x4x4")), Topology.parse("h100:16x8").platform
        ('v5p:4x4x4', 'cuda')
        """
        if not (parts := re.fullmatch(r"([a-z0-9_]+):([0-9]{1,6}(?:x[0-9]{1,6})*)", text.lower())):
            meant = did_you_mean([near] if (near := _meant(text)) else [])
            raise ValueError(f"topology {text!r} cannot be read; write one as {EXAMPLES}{meant}")
        return cls(CLOUD_NAMES.get(parts[1], parts[1]), tuple(map(int, parts[2].split("x"))))

    def __str__(self) -> str:
        """The string that `parse` reads."""
        return f"{self.kind}:{'x'.join(map(str, self.shape))}"

    @property
    def chip(self) -> Chip | None:
        """Specifications of a device; None for virtual devices."""
        return CHIPS.get(self.kind)

    @property
    def platform(self) -> str:
        """Platform whose compiler is used: "tpu", "cuda" or "cpu"."""
        return self.chip.platform if self.chip else CPU

    @property
    def hosts(self) -> int:
        """Number of hosts; 1 of a torus, whose links do not end at a host."""
        torus = self.chip and self.chip.torus_dims
        return 1 if torus or len(self.shape) == 1 else self.shape[0]

    @property
    def is_virtual(self) -> bool:
        """Whether several devices share the cores of a CPU host."""
        return self.kind == CPU and self.shape[-1] > 1

    @property
    def device_kind(self) -> str:
        """JAX's name of the kind where it is known without a compiler, otherwise ours."""
        return DEVICE_KINDS.get(self.kind, self.kind)

    def devices(self) -> Devices:
        """Devices to compile for, in the topology's order. Virtual devices exist only after `prepare`."""
        if self.platform == "cuda":
            from strategies.model.attention.cudnn import answer_for  # late, as in `prepare`

            answer_for(GPUS[self.kind]["compute_capability"], GPUS[self.kind]["compute_capability_minor"])
        return _devices(self)

    def prepare(self) -> None:
        """Configure JAX for this topology. Must be called before any backend starts.

        Only the CPU backend is enabled, because nothing is run on the topology itself.
        """
        import jax  # late: reading a topology needs no JAX

        jax.config.update("jax_platforms", CPU)
        if self.platform == CPU:
            jax.config.update("jax_num_cpu_devices", math.prod(self.shape))
        else:
            self.require_compiler()

    def require_compiler(self) -> None:
        """Check that the compiler for this topology is installed."""
        if self.platform not in COMPILERS:
            raise ValueError(f"topology {self}: steps for {self.kind} are predicted, but not compiled here")
        extra, _ = COMPILERS[self.platform]
        if self.compiler_version is None:
            problem = f"topology {self} needs a compiler that is not installed"
            install = f"in the checkout, pip install -e '.[{extra}]'; elsewhere, pip install '{REQUIRED[extra]}'"
            raise ValueError(f"{problem} (but no {extra.upper()}): {install}")

    @property
    def compiler_version(self) -> str | None:
        """Package and version of the compiler for this topology; None if it is not installed, or there is none."""
        package = "jaxlib" if self.platform == CPU else COMPILERS.get(self.platform, ("", ""))[1]
        found = package and installed(package)
        return f"{package} {found}" if found else None

    @property
    def _example(self) -> str:
        shape = {CPU: "1024 or cpu:4x1", "cuda": "16x8", "gpu": "16x8"}.get(self.platform)
        return f"{self.kind}:{shape or 'x'.join(CHIPS[self.kind].torus_dims * '4')}"


def installed(package: str) -> str | None:
    """Version of an installed package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def balanced_factors(number: int, dims: int) -> tuple[int, ...]:
    """Factor a number into `dims` factors that are as equal as possible, in increasing order of size where they differ.

    >>> balanced_factors(32, 2), balanced_factors(64, 3)
    ((4, 8), (4, 4, 4))
    """
    if dims == 1:
        return (number,)
    first = max(size for size in range(1, number + 1) if number % size == 0 and size**dims <= number)
    return first, *balanced_factors(number // first, dims - 1)


@functools.cache
def _devices(topology: Topology) -> Devices:
    import jax  # late, as in `prepare`
    from jax.experimental import topologies

    chip = topology.chip
    if chip is None:
        wanted, available = math.prod(topology.shape), jax.devices(CPU)
        if wanted > len(available):
            raise ValueError(
                f"topology {topology}: JAX has started with {len(available)} virtual devices; restart the process"
            )
        return available[:wanted]
    topology.require_compiler()
    if chip.platform == "tpu":
        for name, value in NO_TPU_HOST.items():
            os.environ.setdefault(name, value)
        arguments: dict[str, Any] = {"topology_name": str(topology)}
        if topology.kind == "v4":
            arguments["chip_config_name"] = "megacore"  # both cores of a chip form one device, as in JAX
    else:
        hosts, gpus = topology.shape
        shape = f"1x{hosts}x{gpus}"
        target = GPU_TARGET.format(memory_bytes=chip.memory_bytes, **GPUS[topology.kind])
        arguments = {"topology_name": shape, "topology": shape, "target_config": target}
    # libtpu installs a handler that prints a C++ stack when SIGTERM ends the process.
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        return topologies.get_topology_desc(platform=chip.platform, **arguments).devices
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"topology {topology}: {str(error).partition(chr(10))[0]}") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, terminated if terminated is not None else signal.SIG_DFL)


def _meant(text: str) -> str:
    """The topology that is meant by a number of devices and their kind; empty if that is unclear.

    >>> _meant("8xh100"), _meant("H100x16"), _meant("64 v5p"), _meant("eight")
    ('h100:1x8', 'h100:2x8', 'v5p:4x4x4', '')
    """
    first = re.fullmatch(r"([0-9]{1,6})[ x*-]?([a-z][a-z0-9_]*)", text.lower().strip())
    last = re.fullmatch(r"([a-z][a-z0-9_]*?)[ x*-]([0-9]{1,6})", text.lower().strip())
    count, kind = first.groups() if first else last.groups()[::-1] if last else ("0", "")
    kind, devices = CLOUD_NAMES.get(kind, kind), int(count)
    if kind not in CHIPS or not devices:
        return ""
    if dims := CHIPS[kind].torus_dims:
        return str(Topology(kind, balanced_factors(devices, dims)))
    inside = min(devices, 8)
    return "" if devices % inside else str(Topology(kind, (devices // inside, inside)))
