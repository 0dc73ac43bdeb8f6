"""The row that every case ends in: what was run, how it ended, and what it cost, with units in the names."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import jax

from benchmarks.cases import Case, CompilerOptions, spelled
from benchmarks.cluster import processes
from benchmarks.explain.estimate import ROW_KEYS as ESTIMATE_KEYS
from benchmarks.explain.estimate import Estimate
from benchmarks.explain.explanations import KEYS as EXPLAINED_KEYS
from benchmarks.explain.memory import Memory
from benchmarks.explain.predicted import predicted
from benchmarks.failures import Status
from benchmarks.program.compiled import BETWEEN_KEYS, ROW_KEYS
from benchmarks.row import Row, Scalar
from benchmarks.timing.attribution import Attribution
from benchmarks.timing.turns import Interval, Turns
from strategies.model.gpt import param_count

SCHEMA_VERSION = 4

COMPILED_KEYS = (*ROW_KEYS, "compiled.bytes_accessed", "compiled.compilations")

NOISE = 0.05
"""A run is noisy where the same step, timed twice, may differ by more than this: its interval reaches so far."""


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
        compiled: what the compiled program does, by the names of the row.
        timed: the blocks of its turns.
        relative_to_single: its time over that of `single` on the same work, from blocks of the same rounds.
        single_in_own_process: `single` and the matmul alone were timed in a process with one device (solo.py).
        relative_to_twin: and over that of its twin by hand, if its own step is partitioned by the compiler.
        canary: the time of a step over that of its own twin, which took turns beside this case: 1 but for the noise.
        attribution: where its time goes.
        compiler_options: what the compiler was told, if it came so far.
        compile_only: the compiler was asked, and nothing timed.
        estimate: what it takes of a chip that is not there.
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
    compiled: Mapping[str, Scalar] = field(default_factory=dict)
    timed: Turns | None = None
    relative_to_single: Interval | None = None
    single_in_own_process: bool | None = None
    relative_to_twin: Interval | None = None
    canary: Interval | None = None
    attribution: Attribution | None = None
    compiler_options: CompilerOptions = ()
    compile_only: bool = False
    estimate: Estimate | None = None

    @classmethod
    def begin(cls, case: Case, *, compile_only: bool = False) -> "Record":
        """A case of which nothing is known but where it will run; it counts as interrupted until it has ended."""
        device = (case.topology.devices() if case.topology else jax.devices())[0]
        virtual = device.platform == "cpu"
        return cls(case, device.platform, device.device_kind, virtual, compile_only=compile_only)

    @property
    def samples(self) -> tuple[float, ...]:
        """Seconds per step, one for each block."""
        return tuple(self.timed.seconds) if self.timed else ()

    @property
    def step_seconds_median(self) -> float | None:
        """Seconds per step; half of the blocks were faster."""
        return statistics.median(self.samples) if self.samples else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of the global batch per second."""
        return _over(self.case.batch_size * self.case.config.sequence, self.step_seconds_median)

    @property
    def model_flops_utilization(self) -> float | None:
        """The model's FLOPs per second, as a fraction of what the devices do on a matmul alone."""
        if self.matmul_flops_per_second is None:
            return None
        machines = 1 if self.virtual_devices else self.case.mesh.size
        return _over(
            _over(self.model_flops_per_step, self.step_seconds_median), machines * self.matmul_flops_per_second
        )

    @property
    def noisy(self) -> bool | None:
        """Whether the canary may have been off by more than `NOISE`."""
        return None if self.canary is None else self.canary.low < 1 - NOISE or self.canary.high > 1 + NOISE

    def as_row(self) -> Row:
        """The row that this ends in."""
        steps_per_block = self.timed.steps_per_block if self.timed else None
        return Row(str(self.case), self.as_extra_info(), self.samples, steps_per_block)

    def as_extra_info(self) -> dict[str, Scalar]:
        """The row as pytest-benchmark keeps it: the same keys always, plain scalars, None for missing or NaN."""
        case, timed, parts = self.case, self.timed, self.attribution
        row: dict[str, Scalar] = {
            "schema_version": SCHEMA_VERSION,
            "kind": "compiled" if self.compile_only else "timed",
            "status": self.status,
            "reason": self.reason,
            "strategy": case.strategy,
            "mesh": str(case.mesh),
            "devices": case.mesh.size,
            "processes": min(processes.count(), case.mesh.size),
            "platform": self.platform,
            "device_kind": self.device_kind,
            "virtual_devices": self.virtual_devices,
            "topology": str(case.topology) if case.topology else None,
            "preset": case.preset,
            "param_count": param_count(case.config),
            "global_batch_sequences": case.batch_size,
            "sequence_tokens": case.config.sequence,
            "microbatches": case.microbatches,
            "dtype": case.dtype,
            "remat": case.remat,
            "options": ",".join(spelled(case.options)),
            "compiler_options": " ".join(spelled(self.compiler_options or case.compiler_options)),
            "step_seconds_median": self.step_seconds_median,
            **_ends("step_seconds", Interval.of(self.samples)),
            "tokens_per_second": self.tokens_per_second,
            "tokens_per_second_per_device": _over(self.tokens_per_second, case.mesh.size),
            "dispatch_seconds_median": statistics.median(timed.dispatch_seconds) if timed and timed.seconds else None,
            "steps_timed": timed.steps if timed else None,
            **_interval("relative_to_single", self.relative_to_single),
            "single_in_own_process": self.single_in_own_process,
            **_interval("relative_to_twin", self.relative_to_twin),
            **_interval("canary_ratio", self.canary),
            "noisy": self.noisy,
            **{f"attribution.{part.name}": getattr(parts, part.name, None) for part in fields(Attribution)},
            "attribution.total_over_step": _over(parts and parts.total_seconds, self.step_seconds_median),
            "model_flops_per_step": self.model_flops_per_step,
            "model_flops_utilization": self.model_flops_utilization,
            "matmul_flops_per_second": self.matmul_flops_per_second,
            "compile_seconds": self.compile_seconds,
            **{f"memory.{item.name}": getattr(self.memory, item.name) for item in fields(Memory)},
            "memory.total_bytes": self.memory.total_bytes,
            **{key: self.compiled.get(key) for key in (*COMPILED_KEYS, *BETWEEN_KEYS, *EXPLAINED_KEYS)},
            **predicted(case, self.compiled),
            **self._estimated(),
            "loss_first": self.loss_first,
            "loss_last": self.loss_last,
            "matches_single": self.matches_single,
        }
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()
        }

    def _estimated(self) -> Mapping[str, Scalar]:
        case, devices = self.case, self.case.mesh.size
        if self.estimate is None or self.model_flops_per_step is None:
            return dict.fromkeys(ESTIMATE_KEYS)
        tokens = case.batch_size * case.config.sequence
        return self.estimate.as_row(self.model_flops_per_step / devices, tokens / devices)


def _interval(name: str, ratio: Interval | None) -> dict[str, float | None]:
    """The columns of a ratio: its median, and what encloses it."""
    return {name: ratio and ratio.median, **_ends(name, ratio)}


def _ends(name: str, interval: Interval | None) -> dict[str, float | None]:
    return {f"{name}_low": interval and interval.low, f"{name}_high": interval and interval.high}


def _over(amount: float | None, per: float | None) -> float | None:
    return None if amount is None or per is None else amount / per
