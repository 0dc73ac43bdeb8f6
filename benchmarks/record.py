"""The row that every case ends in: what was run, how it ended, and what it cost, with units in the names."""

import math
import statistics
from dataclasses import dataclass, field, fields
from typing import Literal

import jax

from benchmarks.cases import Case

SCHEMA_VERSION = 1

Status = Literal["ok", "infeasible", "oom", "compile_error", "timeout", "nan_loss", "mismatch", "interrupted", "error"]
Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Memory:
    """Bytes per device; None where they are not known.

    Attributes:
        argument_bytes, temp_bytes, output_bytes, alias_bytes: of the compiled step, as its compiler plans them; an
            alias is an output that takes the place of an argument.
        parameter_bytes, optimizer_bytes: the part of the arguments that is the model, and the optimizer's state.
        device_peak_bytes: the most that any of the devices has held since the process began.
        host_peak_rss_bytes: the most that the process has held on the host since it began.
    """

    argument_bytes: int | None = None
    parameter_bytes: int | None = None
    optimizer_bytes: int | None = None
    temp_bytes: int | None = None
    output_bytes: int | None = None
    alias_bytes: int | None = None
    device_peak_bytes: int | None = None
    host_peak_rss_bytes: int | None = None

    @property
    def total_bytes(self) -> int | None:
        """What a step needs at once: arguments, temporaries and outputs, but an alias only once."""
        parts = (self.argument_bytes, self.temp_bytes, self.output_bytes)
        if self.alias_bytes is None or None in parts:
            return None
        return sum(part for part in parts if part is not None) - self.alias_bytes


@dataclass(frozen=True)
class Record:
    """One case, measured as far as it came. Facts that are missing are None; `status` and `reason` say why.

    Attributes:
        virtual_devices: the devices are shares of one CPU: the ideal is constant work, not linear speed-up.
        preset: its name, and the sizes that were overridden.
        model_flops_per_step: for all devices, nothing recomputed.
        matmul_flops_per_second: what one device reaches on a matmul alone, in this run and this dtype; where devices
            are virtual, what all of them reach together.
        loss_first, loss_last: nats per token, of the first and the last checked step. These are on the same tokens, and
            the same for every case of a batch size.
        matches_single: losses and gradient norms of these steps equal one device's; None where that cannot be said.
        steps_per_block: steps that are timed as one, and blocked on once.
        samples: seconds per step, one for each block.
        single_seconds_median: seconds per step of `single` on the same work in the same run.
    """

    case: Case
    platform: str
    device_kind: str
    virtual_devices: bool
    status: Status = "interrupted"
    reason: str | None = None
    model_flops_per_step: int | None = None
    matmul_flops_per_second: float | None = None
    compile_seconds: float | None = None
    memory: Memory = field(default=Memory())
    loss_first: float | None = None
    loss_last: float | None = None
    matches_single: bool | None = None
    steps_per_block: int | None = None
    samples: tuple[float, ...] = ()
    single_seconds_median: float | None = None

    @classmethod
    def begin(cls, case: Case) -> "Record":
        """A case of which nothing is known but where it will run; it counts as interrupted until it has ended."""
        device = jax.devices()[0]
        return cls(case, device.platform, device.device_kind, virtual_devices=device.platform == "cpu")

    @property
    def step_seconds_median(self) -> float | None:
        """Seconds per step; half of the blocks were faster."""
        return statistics.median(self.samples) if self.samples else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of the global batch per second."""
        return _over(self.case.batch_size * self.case.config.sequence, self.step_seconds_median)

    @property
    def relative_to_single(self) -> float | None:
        """Step time over that of one device on the same work."""
        return _over(self.step_seconds_median, self.single_seconds_median)

    @property
    def model_flops_utilization(self) -> float | None:
        """The model's FLOPs per second, as a fraction of what the devices do on a matmul alone."""
        if self.matmul_flops_per_second is None:
            return None
        machines = 1 if self.virtual_devices else self.case.mesh.size
        return _over(
            _over(self.model_flops_per_step, self.step_seconds_median), machines * self.matmul_flops_per_second
        )

    def as_extra_info(self) -> dict[str, Scalar]:
        """The row as pytest-benchmark keeps it: the same keys always, plain scalars, None for missing or NaN."""
        case = self.case
        row: dict[str, Scalar] = {
            "schema_version": SCHEMA_VERSION,
            "status": self.status,
            "reason": self.reason,
            "strategy": case.strategy,
            "mesh": str(case.mesh),
            "devices": case.mesh.size,
            "platform": self.platform,
            "device_kind": self.device_kind,
            "virtual_devices": self.virtual_devices,
            "preset": case.preset,
            "param_count": case.config.param_count,
            "global_batch_sequences": case.batch_size,
            "sequence_tokens": case.config.sequence,
            "microbatches": case.microbatches,
            "dtype": case.dtype,
            "remat": case.remat,
            "step_seconds_median": self.step_seconds_median,
            "tokens_per_second": self.tokens_per_second,
            "tokens_per_second_per_device": _over(self.tokens_per_second, case.mesh.size),
            "relative_to_single": self.relative_to_single,
            "model_flops_per_step": self.model_flops_per_step,
            "model_flops_utilization": self.model_flops_utilization,
            "matmul_flops_per_second": self.matmul_flops_per_second,
            "compile_seconds": self.compile_seconds,
            **{f"memory.{item.name}": getattr(self.memory, item.name) for item in fields(Memory)},
            "memory.total_bytes": self.memory.total_bytes,
            "loss_first": self.loss_first,
            "loss_last": self.loss_last,
            "matches_single": self.matches_single,
        }
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()
        }


def _over(amount: float | None, per: float | None) -> float | None:
    return None if amount is None or per is None else amount / per
