"""The curves, as tables: pure functions from the rows of one workload to what a figure shows.

A row counts if its status is ok, its step was found equal to one device's, and it has the numbers that every figure
needs; every other row is left out, and counted.
"""

from collections import Counter
from collections.abc import Iterator

import pandas as pd

from results.records.rows import WORKLOAD

# What holds a device's memory, bottom of the stack first. The parts add up to `memory.total_bytes`.
PARTS = {
    "parameters": "memory.parameter_bytes",
    "optimizer state": "memory.optimizer_bytes",
    "other arguments (batch)": "other_argument_bytes",
    "temporaries (gradients, activations)": "memory.temp_bytes",
    "other outputs": "new_output_bytes",
}

# What a step's time is spent on, in the order in which it is drawn.
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
    """Split rows into those that did the same work, which alone share figures; yield a label and the rows of each."""
    for values, part in rows.groupby(WORKLOAD, sort=False, dropna=False):
        yield "-".join(map(str, values)), part


NEEDED = ["strategy", "devices", "global_batch_sequences", "tokens_per_second"]
"""What each figure needs of a row."""


def counts(rows: pd.DataFrame) -> pd.Series:
    """Say of each row whether it counts."""
    return rows["status"].eq("ok") & rows["matches_single"].eq(True) & rows[NEEDED].notna().all(axis="columns")


def left_out(rows: pd.DataFrame) -> dict[str, int]:
    """Count the rows that do not count, by why."""
    rows = rows[~counts(rows)]
    words = {False: "not equal to single", True: f"without {' or '.join(NEEDED)}"}
    unequal = rows["matches_single"].map(words).fillna("not compared with single")
    return dict(Counter(rows["status"].where(rows["status"] != "ok", unequal)))


def widest_batch(rows: pd.DataFrame) -> int:
    """Return the global batch, in sequences, at which most rows count: the largest of equals."""
    batches = rows.loc[counts(rows), "global_batch_sequences"].value_counts()
    return int(batches[batches == batches.max()].index.max())


def scaling(rows: pd.DataFrame) -> pd.DataFrame:
    """Derive the ideal throughput and the efficiency of each row that counts, and the 95% intervals of both.

    Virtual devices share one machine, so their ideal is `single`'s throughput at the same global batch, however many
    they are; n real devices ideally do n times that. Efficiency is the time of `single`, shared out to the machines,
    over the step's, by blocks of the same rounds; of rows that were not timed in turns with `single` it is throughput
    over the ideal, without an interval. Both are NaN without `single`. `best` marks the fastest row (mesh,
    microbatches) of a strategy at its number of devices and batch.
    """
    rows = rows[counts(rows)]
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


def frontier(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows that no other beats: as fast and as small per device, and better in one of the two."""
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


def memory_parts(rows: pd.DataFrame) -> pd.DataFrame:
    """Split what a device holds in each row that counts into its parts: one row a part, its size in `bytes`."""
    rows = memory_columns(rows[counts(rows)].dropna(subset="memory.total_bytes"))
    columns = {column: part for part, column in PARTS.items()}
    return rows.rename(columns=columns).melt(
        ["strategy", "mesh", "devices", "global_batch_sequences"], list(PARTS), var_name="part", value_name="bytes"
    )


def attributed(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows that count and say where their time goes, the fewest devices first."""
    rows = rows[counts(rows)].dropna(subset=list(TIMES.values()))
    return rows.sort_values("devices", kind="stable")
