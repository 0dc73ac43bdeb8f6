"""Data of the figures: pure functions from the rows of one workload to tables.

A row counts if its status is ok, its step was found equal to that of one device, and it has the numbers that every
figure needs. Other rows are not drawn. Each figure states their number.
"""

from collections import Counter
from collections.abc import Iterator

import pandas as pd

from results.records.rows import WORKLOAD

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


def workloads(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield a label and the rows of each workload. A figure shows a single workload."""
    for values, part in rows.groupby(WORKLOAD, sort=False, dropna=False):
        yield "-".join(filter(None, map(str, values))), part


NEEDED = ["strategy", "devices", "global_batch_sequences", "tokens_per_second"]
"""The columns that a row must have to be drawn in any figure."""


def is_counted(rows: pd.DataFrame) -> pd.Series:
    """Return for each row whether it counts."""
    return rows["status"].eq("ok") & rows["matches_single"].eq(True) & rows[NEEDED].notna().all(axis="columns")


def left_out(rows: pd.DataFrame) -> dict[str, int]:
    """Return the number of rows that do not count, by reason."""
    rows = rows[~is_counted(rows)]
    words = {False: "not equal to single", True: f"without {' or '.join(NEEDED)}"}
    unequal = rows["matches_single"].map(words).fillna("not compared with single")
    return dict(Counter(rows["status"].where(rows["status"] != "ok", unequal)))


def widest_batch(rows: pd.DataFrame) -> int:
    """Return the global batch in sequences at which the most rows count, and the largest of these if several tie."""
    batches = rows.loc[is_counted(rows), "global_batch_sequences"].value_counts()
    return int(batches[batches == batches.max()].index.max())


def scaling(rows: pd.DataFrame) -> pd.DataFrame:
    """Add to each row that counts the ideal throughput, the parallel efficiency, and the 95% intervals of both rates.

    Virtual devices share one machine, so their ideal is the throughput of `single` at the same global batch, whatever
    their number. The ideal of n real devices is n times that. Efficiency is the step time of `single`, divided by the
    number of machines, over the row's step time; both times are from blocks of the same rounds. A row that was not
    timed interleaved with `single` has throughput over ideal throughput as its efficiency, and no interval. Without
    `single` ideal and efficiency are NaN. `best` marks the fastest row (mesh, microbatches) of each strategy for its
    number of devices and its batch.
    """
    rows = rows[is_counted(rows)]
    single = rows[rows["strategy"] == "single"].groupby("global_batch_sequences")["tokens_per_second"].max()
    machines = rows["devices"].where(~rows["virtual_devices"].astype(bool), 1)
    ideal = rows["global_batch_sequences"].map(single) * machines
    fastest = rows.groupby(["strategy", "devices", "global_batch_sequences"])["tokens_per_second"].idxmax()
    tokens = rows["global_batch_sequences"] * rows["sequence_tokens"]
    efficiency = 1 / (machines * rows["relative_to_single"])
    return rows.assign(
        tokens_per_second_low=tokens / rows["step_seconds_high"],
        tokens_per_second_high=tokens / rows["step_seconds_low"],
        ideal_tokens_per_second=ideal,
        efficiency=efficiency.fillna(rows["tokens_per_second"] / ideal),
        efficiency_low=1 / (machines * rows["relative_to_single_high"]),
        efficiency_high=1 / (machines * rows["relative_to_single_low"]),
        best=rows.index.isin(fastest),
    )


def several_batches(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows of `scaling` whose strategy ran with several global batches on as many devices."""
    points = scaling(rows)
    batches = points.groupby(["strategy", "devices"])["global_batch_sequences"].transform("nunique")
    return points[batches > 1]


def frontier(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows on the Pareto frontier: those for which no other row is as fast and as small or better."""
    rows = rows.sort_values(["memory.total_bytes", "tokens_per_second"], ascending=[True, False])
    fastest_smaller = rows["tokens_per_second"].cummax().shift()
    return rows[~(rows["tokens_per_second"] <= fastest_smaller)]


def memory_columns(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the parts of a device's memory that are differences of recorded sizes, so that all of `PARTS` are columns."""
    return rows.assign(
        other_argument_bytes=rows["memory.argument_bytes"]
        - rows["memory.parameter_bytes"]
        - rows["memory.optimizer_bytes"],
        new_output_bytes=rows["memory.output_bytes"] - rows["memory.alias_bytes"],
    )


def memory_by_case(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows that count and have memory sizes, the largest total first, with a column in bytes for each part.

    `formula` is the total by formula; NaN where there is none.
    """
    rows = memory_columns(rows[is_counted(rows)].dropna(subset="memory.total_bytes"))
    predicted = rows[["predicted.argument_bytes", "predicted.temp_bytes"]]
    formula = predicted.sum(axis="columns", skipna=False)
    rows = rows.assign(**{part: rows[column] for part, column in PARTS.items()}, formula=formula)
    return rows.sort_values("memory.total_bytes", ascending=False, kind="stable")


def case_labels(rows: pd.DataFrame) -> list[str]:
    """Name each row's case as a figure does.

    >>> case_labels(pd.DataFrame([{"strategy": "fsdp", "mesh": "fsdp=8", "name": "test_step[fsdp-fsdp=8-b16]"}]))
    ['fsdp fsdp=8 b16']
    """
    return [
        name.replace(f"test_step[{strategy}-{mesh}-", f"{strategy} {mesh} ").removesuffix("]")
        for name, strategy, mesh in zip(rows["name"], rows["strategy"], rows["mesh"], strict=True)
    ]


def attributed(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows that count and have the parts of their step time, the fewest devices first."""
    rows = rows[is_counted(rows)].dropna(subset=list(TIMES.values()))
    return rows.sort_values("devices", kind="stable")


def utilization(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows of pipelines with several numbers of microbatches, with the fraction of time that stages work.

    `formula` is that of a schedule whose stages wait only for what they need, `lockstep` that of one whose ticks last
    as long as their longest pass, both for passes as long as their FLOPs. `measured` is the time of a step without
    bubbles over its time with them, by its attribution, without exposed communication. It is NaN on virtual devices
    that share a process: a stage that idles leaves its cores to the others there. `pipeline` names what the rows of a
    curve share.
    """
    rows = rows[is_counted(rows) & rows["mesh"].str.contains("pipeline=") & (rows["predicted.bubble"] > 0)]
    names = rows["strategy"] + " " + rows["mesh"] + " " + rows["options"].fillna("")
    rows = rows.assign(pipeline=names.str.strip())
    rows = rows[rows.groupby("pipeline")["microbatches"].transform("nunique") > 1]
    bubbles = rows["attribution.schedule_bubble_seconds"] + rows["attribution.lockstep_bubble_seconds"]
    synchronized = rows["step_seconds_median"] - rows["attribution.exposed_communication_seconds"]
    formula = 1 - rows["predicted.bubble"]
    alone = ~rows["virtual_devices"].astype(bool) | rows["processes"].eq(rows["devices"])
    return rows.assign(
        formula=formula,
        lockstep=formula * (1 - rows["predicted.lockstep_bubble"]),
        measured=(1 - bubbles / synchronized).where(alone),
    ).sort_values("microbatches", kind="stable")
