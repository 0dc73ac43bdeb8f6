"""Data of the figures: from all rows of a run to the points that each figure draws. Nothing here draws.

Each function returns all rows. Those that a figure does not draw say why in `left_out`, so that it can count them.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pandas as pd

from results.records.rows import COMPILED_ONLY, WORKLOAD, is_counted

# Parts of a device's memory, in the order in which bars are stacked. They add up to `memory.total_bytes`.
PARTS = {
    "parameters": "memory.parameter_bytes",
    "optimizer state": "memory.optimizer_bytes",
    "other arguments (batch)": "other_argument_bytes",
    "temporaries (gradients, activations)": "memory.temp_bytes",
    "other outputs": "new_output_bytes",
}

# Parts of the step time, in the order in which bars are stacked.
TIMES = {
    "compute": "attribution.compute_seconds",
    "recomputation": "attribution.recomputation_seconds",
    "optimizer": "attribution.optimizer_seconds",
    "exposed communication": "attribution.exposed_communication_seconds",
    "schedule bubble": "attribution.schedule_bubble_seconds",
    "lockstep bubble": "attribution.lockstep_bubble_seconds",
    "dispatch": "attribution.dispatch_seconds",
}

DRAWABLE = "", COMPILED_ONLY
"""Values of `left_out` of the rows that some figure draws."""
ANOTHER_BATCH, ANOTHER_WORKLOAD = "of another batch", "of another workload"
POINT = ["strategy", "devices", "global_batch_sequences"]
"""Of the rows with the same values of these, curves show the fastest: the others differ by mesh or microbatches."""
Scaling = Literal["strong", "weak"]
Batch = int | Literal["all"] | None
"""Global batch in sequences of the figures that show one; by default the one of most rows."""


def leave_out(rows: pd.DataFrame, others: pd.Series | np.ndarray, why: str) -> pd.DataFrame:
    """Return all rows; the others no longer count. Rows that did not count keep their reason."""
    return rows.assign(left_out=rows["left_out"].mask(others & rows["left_out"].isin(DRAWABLE), why))


def with_compiled(rows: pd.DataFrame) -> pd.DataFrame:
    """Return all rows; those that were only compiled count, too."""
    return rows.assign(left_out=rows["left_out"].replace(COMPILED_ONLY, ""))


def not_drawn(rows: pd.DataFrame) -> str:
    """Say how many of all rows a figure does not draw, and why; "" if it draws all."""
    others = (~is_counted(rows)).sum()
    return f"{others} of {len(rows)} rows not drawn: {reasons(rows)}." if others else ""


def reasons(rows: pd.DataFrame) -> str:
    """Count the rows that do not count by reason."""
    why = Counter(rows.loc[~is_counted(rows), "left_out"])
    return ", ".join(f"{count} {reason}" for reason, count in why.items())


def workloads(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield a label and the rows of each workload. A figure shows a single workload."""
    for values, part in rows.groupby(WORKLOAD, sort=False, dropna=False):
        yield "-".join(filter(None, map(str, values))), part


def one_batch(rows: pd.DataFrame, batch: Batch, kind: Scaling = "strong") -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield each workload at one batch, or at all batches: a label, and all rows, others marked as left out.

    In weak scaling the batch is that of a device.
    """
    column = "global_batch_sequences" if kind == "strong" else "per_device"
    for label, marked in all_batches(rows, batch):
        chosen = widest_batch(marked, column) if batch is None else batch
        yield label, marked if chosen == "all" else leave_out(marked, marked[column].ne(chosen), ANOTHER_BATCH)


def all_batches(rows: pd.DataFrame, batch: Batch = None) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield each workload: a label, and all rows, those of other workloads marked as left out."""
    for label, part in workloads(rows):
        if part["left_out"].isin(DRAWABLE).any():
            yield label, leave_out(rows, pd.Series(~rows.index.isin(part.index), rows.index), ANOTHER_WORKLOAD)


def widest_batch(rows: pd.DataFrame, column: str = "global_batch_sequences") -> float:
    """Return the batch in sequences at which the most rows count, and the largest of these if several tie.

    If some batches were measured on several numbers of devices, one of them `single`, it is one of those.
    """
    counted = rows[is_counted(rows)] if is_counted(rows).any() else rows[rows["left_out"].isin(DRAWABLE)]
    several = counted.groupby(column)["devices"].transform("nunique") > 1
    compared = counted["strategy"].eq("single").groupby(counted[column]).transform("any")
    wanted = next((wanted for wanted in (several & compared, several) if wanted.any()), several | True)
    batches = counted.loc[wanted, column].value_counts()
    return float(batches[batches == batches.max()].index.max())


def fastest(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Keep the fastest row of each strategy, number of devices and batch, of those whose metric is known.

    Of rows that were only compiled it is the one that needs the least memory.
    """
    batch = "the batch of one device" if metric.startswith("weak_") else "its batch"
    lacking = f"single at {batch}" if metric.endswith(("speedup", "efficiency")) else metric.replace("_", " ")
    rows = leave_out(rows, rows[[metric, *POINT]].isna().any(axis="columns"), f"without {lacking}")
    order = rows[is_counted(rows)].sort_values(["throughput", "memory"], ascending=[False, True])
    kept = order.drop_duplicates([*POINT, *WORKLOAD]).index
    return leave_out(rows, ~rows.index.isin(kept), "slower than another row of its strategy")


def with_several(rows: pd.DataFrame, column: str, same: list[str], why: str) -> pd.DataFrame:
    """Keep the rows that count for which a column has several values where the columns `same` are equal."""
    counts = rows[is_counted(rows)].groupby(same, dropna=False)[column].transform("nunique")
    return leave_out(rows, ~rows.index.isin(counts[counts > 1].index), why)


def scaling(rows: pd.DataFrame, metric: str, kind: Scaling = "strong") -> pd.DataFrame:
    """Keep the points of a metric against devices, where there are several numbers of devices.

    `facet` is what is the same in a panel: the global batch (strong scaling), or the batch of a device (weak scaling).
    `value`, `low`, `high` and `ideal` are of the metric.
    """
    weak = "weak_" if kind == "weak" else ""
    column = f"{weak}{metric}" if f"{weak}{metric}" in rows else metric
    rows = fastest(with_compiled(rows) if metric == "memory" else rows, column)
    rows = rows.assign(facet=rows["per_device" if weak else "global_batch_sequences"])
    rows = with_several(rows, "devices", ["facet"], "without another number of devices")
    found = {"value": column, "low": f"{column}_low", "high": f"{column}_high", "ideal": f"{weak}{metric}_ideal"}
    return rows.assign(**{name: rows.get(each, np.nan) for name, each in found.items()})


def memory_columns(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the parts of a device's memory that are differences of recorded sizes, so that all of `PARTS` are columns."""
    inputs = rows[["memory.parameter_bytes", "memory.optimizer_bytes"]].sum(axis="columns", skipna=False)
    return rows.assign(
        other_argument_bytes=rows["memory.argument_bytes"] - inputs,
        new_output_bytes=rows["memory.output_bytes"] - rows["memory.alias_bytes"],
    )


def case_labels(rows: pd.DataFrame) -> list[str]:
    """Name each row's case as a figure does: what all rows share is left out, but for strategy and mesh.

    >>> case_labels(pd.DataFrame([{"strategy": "fsdp", "mesh": "fsdp=8", "name": "test_step[fsdp-fsdp=8-b16]"}]))
    ['fsdp fsdp=8']
    """
    starts = [f"test_step[{strategy}-{mesh}-" for strategy, mesh in zip(rows["strategy"], rows["mesh"], strict=True)]
    others = [name.removeprefix(start).rstrip("]").split("-") for name, start in zip(rows["name"], starts, strict=True)]
    shared = set(others[0]).intersection(*others) if others else set()
    cases = zip(rows["strategy"], rows["mesh"], others, strict=True)
    return [" ".join([strategy, mesh, *(o for o in own if o not in shared)]) for strategy, mesh, own in cases]


def attributed(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows that have the parts of their step time, the fewest devices first."""
    rows = leave_out(rows, rows[list(TIMES.values())].isna().any(axis="columns"), "without parts of their time")
    return rows.sort_values("devices", kind="stable")


def by_devices(points: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Split points by number of devices, each part under its title. Each part has `single`, to compare with."""
    single = points["strategy"] == "single"
    several = sorted(points.loc[~single, "devices"].unique()) or sorted(points["devices"].unique())
    return {f"{devices:.0f} devices": points[(points["devices"] == devices) | single] for devices in several}
