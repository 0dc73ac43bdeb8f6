"""Estimates for a chip that need not be present: whether a step fits into its memory, and its least time."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.cases.failures import HBM, CaseFailure, Status, exhausted_memory
from benchmarks.devices.chips import GIB
from benchmarks.program.compiled import Program
from benchmarks.simulate.program import Priced, Roofline, ideal, replay
from benchmarks.simulate.queues import DEVICE_LANES, Timeline
from strategies import Step

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class DoesNotFit(CaseFailure):
    """The step needs more memory than the chip has. This is a result with a number, not an error of the run."""

    status: Status = "oom"


@dataclass(frozen=True)
class ChipEstimate:
    """Memory and least time of a step on one device.

    Attributes:
        needed_bytes: memory that the step needs as planned by the compiler; a lower bound if the compiler gave up.
        capacity_bytes: memory of the device.
        roofline: least time of the step; None if the compiler gave up or its program was not read.
        flops_per_second: peak of the device.
        replay: the step, simulated from the compiled schedule; None if there is no compiled program in schedule order.
    """

    needed_bytes: int
    capacity_bytes: int
    roofline: Roofline | None = None
    flops_per_second: float | None = None
    replay: Timeline | None = None

    @property
    def fits(self) -> bool:
        """Whether the step fits into memory."""
        return self.needed_bytes <= self.capacity_bytes

    def __str__(self) -> str:
        """Needed and available memory in words.

        >>> print(ChipEstimate(45 * GIB, 16 * GIB))
        needs 45.0 GiB of 16.0 GiB, 29.0 GiB too much
        """
        needed, capacity = self.needed_bytes / GIB, self.capacity_bytes / GIB
        over = "" if self.fits else f", {needed - capacity:.1f} GiB too much"
        return f"needs {needed:.1f} GiB of {capacity:.1f} GiB{over}"

    def as_row(self, flops: float, tokens: float) -> Mapping[str, str | float | bool | None]:
        """The columns of a record, always the same ones, by the model FLOPs and the tokens of one device per step."""
        least = self.roofline or Roofline(0, 0, 0)
        seconds = least.step_seconds or None
        replayed = self.replay
        return {
            "chip.needed_bytes": self.needed_bytes,
            "chip.capacity_bytes": self.capacity_bytes,
            "chip.fits": self.fits,
            **{f"roofline.{name}": seconds and value for name, value in vars(least).items()},
            "roofline.bound": seconds and least.bound,
            **self._rates("roofline", seconds, flops, tokens),
            **{f"replay.{part}_seconds": replayed and replayed.parts.get(part, 0.0) for part in DEVICE_LANES},
            **self._rates("replay", replayed and replayed.step_seconds, flops, tokens),
        }

    def _rates(self, source: str, seconds: float | None, flops: float, tokens: float) -> Mapping[str, float | None]:
        """Columns of a step that takes so many seconds."""
        rate = flops / seconds if seconds else None
        return {
            f"{source}.step_seconds": seconds,
            f"{source}.tokens_per_second_per_device": tokens / seconds if seconds else None,
            f"{source}.model_flops_utilization": rate and self.flops_per_second and rate / self.flops_per_second,
        }


def estimate(kind: str, step: Step, program: Program, needed_bytes: int, bubble: float) -> ChipEstimate:
    """The planned memory of a compiled step, and the roofline and the replay of its program if it was read."""
    machine, dtype = ideal(kind), step.train.dtype
    chip = machine.chip
    if program.unread:
        return ChipEstimate(needed_bytes, chip.memory_bytes)
    roofline = Priced(step.mesh, machine, dtype).roofline(program)
    replayed = replay(program, step.mesh, machine, dtype, bubble)
    return ChipEstimate(needed_bytes, chip.memory_bytes, roofline, chip.flops_per_second, replayed)


def estimate_from_error(error: Exception) -> ChipEstimate | None:
    """The estimate in a TPU compiler's error for a step that does not fit into HBM; None for other errors.

    >>> message = "RESOURCE_EXHAUSTED: memory required for HLO temporaries (129.78G) exceeds available HBM (15.75G)."
    >>> print(estimate_from_error(ValueError(message)))
    needs 129.8 GiB of 15.8 GiB, 114.0 GiB too much
    """
    if exhausted_memory(error) != HBM:
        return None
    sizes = [int(float(size) * UNITS[unit]) for size, unit in re.findall(r"\b([0-9.]+)([KMGT])\b", str(error))][:2]
    return ChipEstimate(max(sizes), min(sizes)) if len(sizes) == 2 else None
