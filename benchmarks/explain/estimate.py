"""What a step takes of a chip that is not there: whether it fits, and how long it takes at least."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.devices.chips import GIB, Chip
from benchmarks.explain.memory import Memory
from benchmarks.explain.roofline import Roofline, roofline
from benchmarks.failures import HBM, CaseFailure, Status, exhausted
from benchmarks.program.compiled import Program
from strategies import Step

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class DoesNotFit(CaseFailure):
    """A step takes more memory than a chip has: a result, with a number."""

    status: Status = "oom"


@dataclass(frozen=True)
class Estimate:
    """Of one device.

    Attributes:
        needed_bytes: of its memory, as its compiler plans it; at least, where it gave up.
        capacity_bytes: that it has.
        roofline: the least time of a step; none of a program that its compiler gave up.
        flops_per_second: that it can do.
    """

    needed_bytes: int
    capacity_bytes: int
    roofline: Roofline | None = None
    flops_per_second: float | None = None

    @property
    def fits(self) -> bool:
        """Whether the memory is enough."""
        return self.needed_bytes <= self.capacity_bytes

    def __str__(self) -> str:
        """In a few words.

        >>> print(Estimate(45 * GIB, 16 * GIB))
        needs 45.0 GiB of 16.0 GiB, 29.0 GiB too much
        """
        needed, capacity = self.needed_bytes / GIB, self.capacity_bytes / GIB
        over = "" if self.fits else f", {needed - capacity:.1f} GiB too much"
        return f"needs {needed:.1f} GiB of {capacity:.1f} GiB{over}"

    def as_row(self, flops: float, tokens: float) -> Mapping[str, str | float | bool | None]:
        """The columns of a record, always `ROW_KEYS`; a device does so many of the model's FLOPs, on so many tokens."""
        least = self.roofline or Roofline(0, 0, 0)
        seconds = least.step_seconds or None
        rate = seconds and flops / seconds
        return {
            "chip.needed_bytes": self.needed_bytes,
            "chip.capacity_bytes": self.capacity_bytes,
            "chip.fits": self.fits,
            "roofline.compute_seconds": seconds and least.compute_seconds,
            "roofline.memory_seconds": seconds and least.memory_seconds,
            "roofline.network_seconds": seconds and least.network_seconds,
            "roofline.step_seconds": seconds,
            "roofline.bound": seconds and least.bound,
            "roofline.tokens_per_second_per_device": seconds and tokens / seconds,
            "roofline.model_flops_utilization": rate and self.flops_per_second and rate / self.flops_per_second,
        }


ROW_KEYS = tuple(Estimate(0, 0).as_row(0, 0))
"""The columns of `Estimate.as_row`, for a record that has none."""


def estimate(chip: Chip, step: Step, program: Program, memory: Memory) -> Estimate:
    """Of a step that was compiled."""
    sent = [(each.kind, each.axes, each.times * each.sent_bytes) for each in program.collectives]
    least = roofline(chip, step.mesh, program.flops, program.memory_bytes, sent)
    return Estimate(memory.total_bytes or 0, chip.memory_bytes, least, chip.flops_per_second)


def refused(error: Exception) -> Estimate | None:
    """What a TPU's compiler says of a step that does not fit into HBM; None where it says something else.

    >>> said = "RESOURCE_EXHAUSTED: memory required for HLO temporaries (129.78G) exceeds available HBM (15.75G)."
    >>> print(refused(ValueError(said)))
    needs 129.8 GiB of 15.8 GiB, 114.0 GiB too much
    """
    if exhausted(error) != HBM:
        return None
    sizes = [int(float(size) * UNITS[unit]) for size, unit in re.findall(r"\b([0-9.]+)([KMGT])\b", str(error))][:2]
    return Estimate(max(sizes), min(sizes)) if len(sizes) == 2 else None
