"""The record of a case: what was run, how it ended and what it cost. Column names contain units."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import jax

from benchmarks.cases.case import Case, CompilerOptions, attention_of, option_texts, options_of
from benchmarks.cases.columns import COLUMNS, SCHEMA_VERSION, column_of
from benchmarks.cases.failures import ERRORS, Status
from benchmarks.cases.row import Row, Scalar
from benchmarks.cluster import processes
from benchmarks.program.compiled import BETWEEN_KEYS, ROW_KEYS
from benchmarks.program.explanations import predicted_columns
from benchmarks.run.measure import BlockTimes, Interval
from benchmarks.simulate.program import ChipEstimate
from strategies import Step
from strategies.model.gpt import param_count

RESOLVED = "reduce", "prefetch", "halves", "unroll", "context_attention"
"""Options whose "auto" depends on the devices."""
PER_AXIS = [key for key in (*ROW_KEYS, *BETWEEN_KEYS) if key not in COLUMNS]
"""Columns of a compiled program by kind of collective and by mesh axis."""

NOISE = 0.05
"""A run is noisy if the interval of the canary's ratio reaches further than this from 1."""


@dataclass(frozen=True)
class Record:
    """The record of one case, with what is known of it. Missing facts are None; `status` and `reason` say why.

    Every stage of a case makes a new one. Facts that are columns have their meaning in benchmarks/cases/columns.csv.

    Attributes:
        status: how the case ended; "interrupted" until then.
        columns: further columns by name: of compilation, memory, first steps, experts and attribution.
        relative_to_single, relative_to_twin, canary: ratios of times, from blocks of the same rounds. The canary is a
            duplicate of the group's baseline: 1 except for noise.
        compiler_options: options that XLA was given, once it is compiled.
        estimate: memory and least time on a chip that need not be present.
    """

    schema_version: ClassVar[int] = SCHEMA_VERSION

    case: Case
    platform: str
    device_kind: str
    virtual_devices: bool
    status: Status = "interrupted"
    reason: str | None = None
    model_flops_per_step: int | None = None
    matmul_flops_per_second: float | None = None
    columns: Mapping[str, Scalar] = field(default_factory=dict)
    timed: BlockTimes | None = None
    relative_to_single: Interval | None = None
    relative_to_twin: Interval | None = None
    canary: Interval | None = None
    compiler_options: CompilerOptions = ()
    compile_only: bool = False
    estimate: ChipEstimate | None = None
    predicted_seconds: float | None = None
    step: Step | None = None
    program: Any = None

    @classmethod
    def begin(cls, case: Case, *, compile_only: bool = False) -> "Record":
        """The record of a case that has just begun. It counts as interrupted until it ends."""
        device = (case.topology.devices() if case.topology else jax.devices())[0]
        virtual = device.platform == "cpu"
        return cls(case, device.platform, device.device_kind, virtual, compile_only=compile_only)

    def adding(self, columns: Mapping[str, Scalar] = MappingProxyType({}), **facts: Any) -> "Record":
        """The record with further columns and other fields."""
        for name in columns:
            if (column := column_of(name)) is None or column.source != "columns":
                raise ValueError(f"{name} is not a column of source `columns`; add it to benchmarks/cases/columns.csv")
        return replace(self, columns={**self.columns, **columns}, **facts)

    @property
    def samples(self) -> tuple[float, ...]:
        """Seconds per step, one entry per block."""
        return tuple(self.timed.seconds) if self.timed else ()

    @property
    def kind(self) -> str:
        """Whether it is timed, or only compiled."""
        return "compiled" if self.compile_only else "timed"

    @property
    def processes(self) -> int:
        """Number of processes that the step spans."""
        return min(processes.count(), self.case.mesh.size)

    @property
    def param_count(self) -> int:
        """Parameters of the model, without padding."""
        return param_count(self.case.config)

    def held_bytes(self, part: Literal["argument", "temp"]) -> int:
        """Memory of its arguments or temporaries: on one device, or on the host for all virtual devices together."""
        devices = self.case.mesh.size if self.virtual_devices else 1
        return devices * int(self.columns.get(f"memory.{part}_bytes") or 0)

    @property
    def step_seconds(self) -> Interval | None:
        """Seconds per step, as the median of blocks with its interval; None for too few blocks."""
        return Interval.of(self.samples)

    @property
    def dispatch_seconds_median(self) -> float | None:
        """Median seconds of the host per step, until it was dispatched."""
        return statistics.median(self.timed.dispatch_seconds) if self.timed and self.timed.seconds else None

    @property
    def step_seconds_median(self) -> float | None:
        """Median seconds per step."""
        return statistics.median(self.samples) if self.samples else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of the global batch per second."""
        return _quotient(self.case.batch_size * self.case.config.sequence, self.step_seconds_median)

    @property
    def tokens_per_second_per_device(self) -> float | None:
        """Tokens per second and device of the mesh."""
        return _quotient(self.tokens_per_second, self.case.mesh.size)

    @property
    def model_flops_utilization(self) -> float | None:
        """Model FLOPs per second as a fraction of the devices' matmul throughput."""
        if self.matmul_flops_per_second is None:
            return None
        machines = 1 if self.virtual_devices else self.case.mesh.size
        return _quotient(
            _quotient(self.model_flops_per_step, self.step_seconds_median), machines * self.matmul_flops_per_second
        )

    @property
    def noisy(self) -> bool | None:
        """Whether noise may exceed `NOISE`, by the canary's interval."""
        return None if self.canary is None else self.canary.low < 1 - NOISE or self.canary.high > 1 + NOISE

    @property
    def predicted_ratio(self) -> float | None:
        """Predicted over measured seconds of a step."""
        return _quotient(self.predicted_seconds, self.step_seconds_median)

    @property
    def routing(self) -> str | None:
        """How tokens choose experts; None for a model without experts."""
        return self.case.config.routing if self.case.config.experts else None

    @property
    def resolved(self) -> Mapping[str, Any]:
        """The options in `RESOLVED` that the strategy has, as the step has them; none before it is built."""
        if not self.step:
            return {}
        options = options_of(self.case.strategy)
        values = {name: getattr(self.step.train, name) for name in RESOLVED if name in options}
        return {name: value for name, value in values.items() if value != "auto"}

    @property
    def options(self) -> str:
        """The case's strategy options, as text."""
        return ",".join(option_texts(self.case.options))

    @property
    def xla_options(self) -> str:
        """The options that XLA was given, or will be, as text."""
        return " ".join(option_texts(self.compiler_options or self.case.compiler_options))

    def as_row(self) -> Row:
        """The row of this record."""
        steps_per_block = self.timed.steps_per_block if self.timed else None
        return Row(str(self.case), self.as_extra_info(), self.samples, steps_per_block)

    def as_extra_info(self) -> dict[str, Scalar]:
        """The columns (benchmarks/cases/columns.csv), stored by pytest-benchmark as `extra_info`: always the same keys,
        but for those of kernels; plain scalars, None for missing or NaN.
        """
        mappings: dict[str, Mapping[str, Any]] = {
            "attention": attention_of(self.case.config),
            "columns": {**dict.fromkeys(PER_AXIS), **self.columns},
            "formulas": self._by_formula(),
            "chip": self._estimated(),
            "resolved": self.resolved,
        }
        row: dict[str, Any] = {}
        for name, column in COLUMNS.items():
            if column.is_family:
                # All families of a compiled program at once, in its order: by kind, and then by axis.
                group, mapping = name.partition(".")[0], mappings[column.source]
                row |= {key: mapping[key] for key in mapping if key not in COLUMNS and key.partition(".")[0] == group}
            elif column.source in mappings:
                row[name] = mappings[column.source].get(name)
            else:
                value = _at(self, column.source or name)
                row[name] = str(value) if column.type == "text" and value is not None else value
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()
        }

    def _by_formula(self) -> Mapping[str, Scalar]:
        """Columns by formula. A case whose formulas raise an error has failed by it, and leaves a row without them."""
        try:
            return predicted_columns(self.case, self.columns)
        except ERRORS:
            if self.status == "ok":
                raise
            return {}

    def _estimated(self) -> Mapping[str, Scalar]:
        case, devices = self.case, self.case.mesh.size
        if self.estimate is None or self.model_flops_per_step is None:
            return {}
        tokens = case.batch_size * case.config.sequence
        return self.estimate.as_row(self.model_flops_per_step / devices, tokens / devices)


def _at(value: Any, path: str) -> Any:
    """The value at the end of a path of attributes; None where one of them is."""
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value


def _quotient(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or denominator is None else numerator / denominator
