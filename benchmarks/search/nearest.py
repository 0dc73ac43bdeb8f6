"""The published training runs nearest to a search: what others reached with such a model on such devices."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from benchmarks.cli.tables import aligned, wrapped
from benchmarks.devices.placement import device_count
from benchmarks.search.candidates import SearchSpace
from benchmarks.simulate.predict import read_rows
from benchmarks.simulate.published import config_of
from benchmarks.simulate.published_row import AXES, Published, TableRow
from strategies.infeasible import Infeasible
from strategies.model.gpt import param_count

FARTHEST = math.log(4)
"""A run is not near if the model is more than four times as large or as small, or the sum of all factors is that."""
SHOWN = 4


@dataclass(frozen=True)
class Run:
    """A published run.

    Attributes:
        row: as published.
        source: where.
        parameters: of the model.
        distance: sum of the logarithms of how many times larger or smaller the model, the number of devices, the
            sequence and the dtype are, all but the first halved.
        tokens_per_second_per_device: measured.
    """

    row: Published
    source: str
    parameters: int
    distance: float
    tokens_per_second_per_device: float

    @property
    def mesh(self) -> str:
        """Its mesh axes of more than one device."""
        sizes = {axis: getattr(self.row, axis) for axis in AXES} | {"expert": self.row.expert or 1}
        return ",".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1) or "data=1"

    def as_row(self) -> dict[str, Any]:
        """What of it a document says, as JSON values."""
        names = "stack", "model", "device", "devices", "sequence", "batch_size", "dtype"
        facts = {name: getattr(self.row, name) for name in names}
        rate = {"tokens_per_second_per_device": self.tokens_per_second_per_device, "source": self.source}
        return facts | {"mesh": self.mesh} | rate


def nearest(space: SearchSpace) -> list[Run]:
    """The nearest runs on such devices, each of another stack, nearest first; of dense models or of mixtures alone."""
    runs = (run for row in published() if (run := _run(row, space)) and run.distance <= FARTHEST)
    of_stack: dict[tuple[str, str], Run] = {}
    for run in sorted(runs, key=lambda run: (run.distance, -run.tokens_per_second_per_device)):
        of_stack.setdefault((run.row.stack, run.row.device), run)
    return [*of_stack.values()][:SHOWN]


def published() -> Iterator[TableRow]:
    """The rows of all published tables."""
    tables = Path(str(files("results"))) / "published"
    return itertools.chain.from_iterable(read_rows(table) for table in sorted(tables.glob("*.csv")))


def _run(row: TableRow, space: SearchSpace) -> Run | None:
    """The run of a row; None if it is of other devices or another kind of model, or has no speed."""
    try:
        published = Published.of(row)
        if published.kind.partition("_")[0] != space.topology.kind.partition("_")[0]:
            return None
        if bool(published.experts) != bool(space.config.experts) or not (seconds := published.measured_seconds):
            return None
        parameters = param_count(config_of(published))
    except Infeasible:
        return None
    ratios = (
        (parameters, param_count(space.config), 1.0),
        (published.devices, device_count(space.topology), 0.5),
        (published.sequence, space.config.sequence, 0.5),
        (dtype_bytes(published.dtype), dtype_bytes(space.dtype), 0.5),
    )
    distance = sum(weight * abs(math.log(theirs / ours)) for theirs, ours, weight in ratios)
    tokens = published.batch_size * published.sequence
    return Run(published, row["source"], parameters, distance, tokens / seconds / published.devices)


def dtype_bytes(dtype: str) -> int:
    """Bytes of the dtype of most matmuls."""
    return 4 if dtype == "float32" else 2 if dtype in ("bf16", "bfloat16", "float16", "fp16") else 1


def table(runs: list[Run]) -> list[str]:
    """The lines of the table of runs, and where they are published."""
    if not runs:
        return ["no published run is near: of such devices, with a model within four times the size"]
    rows = [("published", "model", "devices", "sequence", "batch", "dtype", "mesh", "tokens/s a device", "source")]
    sources = list(dict.fromkeys(run.source for run in runs))
    for run in runs:
        row = run.row
        rows.append(
            (
                row.stack,
                f"{row.model} {run.parameters / 1e9:.1f}B".strip(),
                f"{row.devices} {row.device}",
                f"{row.sequence:,}",
                f"{row.batch_size:,}",
                row.dtype,
                run.mesh,
                f"{run.tokens_per_second_per_device:,.0f}",
                f"[{sources.index(run.source) + 1}]",
            )
        )
    cited = [line for number, source in enumerate(sources, start=1) for line in wrapped(f"[{number}] {source}")]
    return [*aligned(rows, "<<<>><<><"), *cited]
