"""A machine: the specifications of its devices, and what one software stack reaches of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, NamedTuple

from msgspec import Meta

from benchmarks.devices.chips import Chip
from benchmarks.simulate.stack import Precision, Stack
from strategies.infeasible import Infeasible
from strategies.schema import MOST, Positive

Share = Annotated[float, Meta(gt=0, le=1)]
Seconds = Annotated[float, Meta(ge=0, le=1)]


class Range(NamedTuple):
    """Plausible values of a constant, and where a fit starts."""

    low: float
    high: float
    start: float


RANGES: Mapping[str, Range] = {
    "matmul_efficiency": Range(0.5, 1.0, 0.9),
    "matmul_dim": Range(0.0, 800.0, 100.0),
    "attention_efficiency": Range(0.1, 1.0, 0.5),
    "memory_efficiency": Range(0.3, 0.95, 0.8),
    "kernel_seconds": Range(1e-6, 5e-5, 8e-6),
    "link_efficiency": Range(0.5, 0.9, 0.7),
    "link_seconds": Range(1e-6, 5e-5, 1e-5),
    "network_efficiency": Range(0.2, 1.0, 0.7),
    "network_seconds": Range(1e-6, 2e-4, 2e-5),
    "step_seconds": Range(0.0, 0.02, 0.005),
}
"""Plausible ranges of `Constants` for a fit, which says so if it ends at an edge. Calibrated ones may lie outside."""


@dataclass(frozen=True)
class Constants:
    """What a stack reaches on a kind of device. All are fitted to measured steps (fit.py) or calibrated.

    Attributes:
        matmul_efficiency: share of the device's best matmul rate, for a matmul of large dims.
        matmul_dim: a matmul [m,k] x [k,n] takes 1 + matmul_dim / k times as long: each tile of the output starts and
            ends with memory accesses that no multiplication hides.
        attention_efficiency: share of the device's best matmul rate, in a fused attention kernel.
        memory_efficiency: share of the memory bandwidth, in kernels that stream through memory.
        kernel_seconds: time that the host needs to launch a kernel. Devices wait if their kernels are shorter. Where a
            stack's kernels have a latency, it is that, and adds to their work.
        link_efficiency: share of the bandwidth of links inside a host, or of a torus.
        link_seconds: latency of each step of a collective inside a host or a torus.
        network_efficiency: share of the network bandwidth between hosts.
        network_seconds: latency of a collective between hosts, for each doubling of their number.
        step_seconds: fixed overhead per step: data loading, logging, synchronisation.
    """

    matmul_efficiency: Share
    matmul_dim: Annotated[float, Meta(ge=0, le=1e6)]
    attention_efficiency: Positive
    memory_efficiency: Share
    kernel_seconds: Seconds
    link_efficiency: Share
    link_seconds: Seconds
    network_efficiency: Share
    network_seconds: Seconds
    step_seconds: Seconds


MEMORY_FRACTION = 0.85
"""Margin for the error of formulas: a step fits if it needs at most this fraction of a device's memory. Compiled steps
of gpt3-6.7b need 19% less to 2% more on H100, and 3 to 13% more on v5p, except zero2 with 44% more."""
NOT_FITTED = "Not fitted"
"""How the source of a machine begins whose constants and error are not measured, but assumed."""
START = Constants(**{name: range_.start for name, range_ in RANGES.items()})


@dataclass(frozen=True)
class Machine:
    """A kind of device under one software stack.

    Attributes:
        error: mean error of predictions of runs that the constants were not fitted to, as a fraction. If the source
            says that it is in sample, of runs that they were fitted to.
        without: sources of published runs to which constants were fitted -> constants that were fitted without them.
        precision: of the layers' matmuls; None if it is the dtype of the step.
    """

    name: str
    chip: Chip
    stack: Stack
    constants: Constants
    error: float
    source: str
    without: Mapping[str, Mapping[str, float]] = field(default_factory=dict, hash=False)
    precision: Precision | None = None

    @property
    def assumed(self) -> bool:
        """Whether nobody measured what its stack reaches of such devices, nor how far predictions are off."""
        return self.source.startswith(NOT_FITTED)

    @property
    def usable_bytes(self) -> float:
        """Memory that a step may need by formulas, with a margin for their error."""
        return MEMORY_FRACTION * self.chip.memory_bytes

    @cached_property
    def effective_chip(self) -> Chip:
        """The specifications with the rates that the stack reaches."""
        chip, constants = self.chip, self.constants
        return replace(
            chip,
            flops_per_second=self.best_rate(2) * constants.matmul_efficiency,
            link_bytes_per_second=chip.link_bytes_per_second * constants.link_efficiency,
            network_bytes_per_second=chip.network_bytes_per_second * constants.network_efficiency,
            memory_bytes_per_second=chip.memory_bytes_per_second * constants.memory_efficiency,
        )

    def best_rate(self, itemsize: float) -> float:
        """The device's best matmul rate in FLOP/s, by the bytes of an element."""
        return self.chip.flops_per_second * self.chip.matmul_share * self.rate_share(itemsize)

    def rate_share(self, itemsize: float) -> float:
        """Rate of matmuls as a multiple of that of bfloat16, by the bytes of an element; below two: of `precision`."""
        if itemsize < 2 and self.precision:
            return getattr(self.chip, f"{self.precision.rate}_share")
        return self.chip.float32_share if itemsize == 4 else 1

    def with_precision(self, precision: Precision | None) -> "Machine":
        """The machine with a precision of the layers' matmuls."""
        if precision and not getattr(self.chip, f"{precision.rate}_share"):
            raise Infeasible(f"machine {self.name} has no rate of {precision.rate} matmuls")
        return replace(self, precision=precision)

    def leaving_out(self, source: str) -> "Machine":
        """The machine with constants to which a source of published runs did not contribute."""
        return self.with_figures(**self.without.get(source, {}))

    def with_figures(self, **figures: float) -> "Machine":
        """The machine with other values of some fields of its constants and of its chip."""
        constants = {name: figures.pop(name) for name in RANGES if name in figures}
        return replace(self, chip=replace(self.chip, **figures), constants=replace(self.constants, **constants))

    def scaled(self, **factors: float) -> "Machine":
        """The machine with multiples of some fields of its constants and of its chip."""
        return self.with_figures(**{name: factor * self.figure(name) for name, factor in factors.items()})

    def figure(self, name: str) -> float:
        """A field of its constants or of its chip."""
        return getattr(self.constants if name in RANGES else self.chip, name)

    def with_changes(self, changes: Mapping[str, str]) -> "Machine":
        """The machine with other specifications, such as {"inter_host_bandwidth": "2x", "hbm": "141GiB"}."""
        machine = self
        for name, text in changes.items():
            if name not in SPECIFICATIONS:
                raise ValueError(f"{name} cannot be set; what can be is {', '.join(SPECIFICATIONS)}")
            field, unit = SPECIFICATIONS[name]
            machine = machine.with_figures(**{field: changed(machine.figure(field), text, unit)})
        return machine

    def between_hosts(self) -> "Machine":
        """The machine with a latency between hosts, which is assumed if it is not known; its source says so."""
        if not self.chip.network_bytes_per_second:
            problem = f"machine {self.name} does not say how fast the network between hosts is"
            raise ValueError(f"{problem}; pass --set inter_host_bandwidth=10Gbit/s")
        if self.constants.network_seconds:
            return self
        assumed = RANGES["network_seconds"].start
        source = f"{self.source}; the latency between hosts is assumed to be {1e6 * assumed:g} us"
        return replace(self.with_figures(network_seconds=assumed), source=source)


SPECIFICATIONS: Mapping[str, tuple[str, str]] = {
    "flops": ("flops_per_second", "FLOP/s"),
    "hbm": ("memory_bytes", "B"),
    "hbm_bandwidth": ("memory_bytes_per_second", "B/s"),
    "link_bandwidth": ("link_bytes_per_second", "B/s"),
    "inter_host_bandwidth": ("network_bytes_per_second", "B/s"),
    "inter_host_latency": ("network_seconds", "s"),
}
"""Names of what can be set -> field of `Chip` or of `Constants`, and its unit."""
LARGE = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def changed(old: float, text: str, unit: str) -> float:
    """Another value: a multiple such as 2x, or a number with a prefix and the unit; of bytes a second also in bits.

    >>> changed(50e9, "2x", "B/s"), changed(80e9, "141GiB", "B"), changed(50e9, "100GB/s", "B/s")
    (100000000000.0, 151397597184.0, 100000000000.0)
    >>> changed(0.0, "10Gbit/s", "B/s")
    1250000000.0
    """
    bits, prefixes = "|bit(?:/s)?" if unit == "B/s" else "", {"": 1, "u": 1e-6, "m": 1e-3} if unit == "s" else LARGE
    parts = re.fullmatch(rf"([0-9]{{1,30}}(?:\.[0-9]*)?)(?:(x)|({'|'.join(prefixes)})({unit}{bits}))", text.strip())
    if not parts or not float(parts[1]) > 0:
        example = "50us" if unit == "s" else f"100G{unit}"
        raise ValueError(f"{text!r} cannot be read; write a multiple such as 2x, or an amount such as {example}")
    if parts[2] and not old:
        raise ValueError(f"{text!r} is a multiple of what is not known; write an amount with its unit, {unit}")
    factor = old if parts[2] else prefixes[parts[3]] / (8 if parts[4].startswith("bit") else 1)
    if not float(parts[1]) * factor < MOST:
        raise ValueError(f"{text!r} is too large; use less than {MOST:g} {unit}")
    return float(parts[1]) * factor
