"""The tables and lines of the summary of a run."""

import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.cases.row import Row
from benchmarks.cli.tables import aligned, minutes
from benchmarks.devices.chips import GIB

TIMES = {"time/single": "relative_to_single", "time/twin": "relative_to_twin"}
"""Relative step times: header in the summary -> column of the row."""
PARTS = {
    "compute": "compute",
    "sending": "exposed_communication",
    "schedule": "schedule_bubble",
    "lockstep": "lockstep_bubble",
    "recomputing": "recomputation",
    "optimizer": "optimizer",
    "dispatch": "dispatch",
}
"""Parts of the step time: header in the summary -> name in the `attribution` columns."""
LAUNCH = "95% intervals cover this launch alone, and launches differ by more: `meshmark merge` the reports of several"
MIB = 2**20
MARK = "!"
"""Stands before a number that is not as predicted."""
MEMORY_ERROR = 0.15
"""Relative error of the formulas for memory up to which a row has no mark, as the tests allow."""


def progress(done: int, total: int, text: str, seconds_left: float | None) -> str:
    """Format the progress line of a case, such as `[ 7/46] fsdp-fsdp=8-b16: 11,000 tokens/s, about 3:20 left`."""
    left = "" if seconds_left is None else f", about {minutes(seconds_left)} left"
    return f"[{done:{len(str(total))}}/{total}] {text}{left}"


def outcome(row: Row) -> str:
    """Describe the outcome of a case in a few words."""
    info: dict[str, Any] = row.extra_info
    if info["status"] != "ok":
        return f"{row.case}: {info['status']}: {info['reason']}"
    if info["kind"] == "compiled":
        return f"{row.case}: compiled in {info['compile_seconds']:.1f} s"
    return f"{row.case}: {info['tokens_per_second']:,.0f} tokens/s"


def summary(rows: Sequence[Row], width: int | None = None, *, absent: bool = False) -> dict[str, list[str]]:
    """Return the lines of the summary of a run by title: the table of steps, where their time goes, and checkpoints.

    Args:
        rows: the rows of the run.
        width: width of the screen in characters; by default that of the terminal.
        absent: whether the cases were compiled for devices that are absent.
    """
    told_noise = noise(rows)
    measured = [*resolution(rows), *table(rows, width), *unpredicted(rows), *told_noise, *([LAUNCH] * bool(told_noise))]
    tables = {
        "steps": absent_devices(rows, width) if absent else measured,
        "where the time of a step goes": where_time_goes(rows, width),
        "checkpoints": checkpoints(rows, width),
    }
    return {title: lines for title, lines in tables.items() if lines} if rows else {}


def table(rows: Iterable[Row], width: int | None = None) -> list[str]:
    """Return the lines of the summary, one row per case; the last cell says how a case failed.

    There are columns for `time/twin` if any row has one, and for bytes sent between processes if there are several.

    Args:
        rows: the rows of the run.
        width: width of the screen in characters; by default that of the terminal.
    """
    rows = list(rows)
    twins = any(row.extra_info["relative_to_twin"] is not None for row in rows)
    several = any(row.extra_info["between_processes.axes"] for row in rows)
    times = tuple(TIMES)[: 2 if twins else 1]
    header = (
        *("strategy", "mesh", "batch", "tokens/s", *(cell for time in times for cell in (time, "95% between"))),
        *("MiB/device", "predicted", "MiB sent", "predicted"),
        *(("between processes",) if several else ()),
        "loss check",
    )
    align = ("<", "<", *">" * (len(header) - 3), "<")
    return aligned([header, *(cells(row, times, several) for row in rows)], align, width=width)


def absent_devices(rows: Iterable[Row], width: int | None = None) -> list[str]:
    """Return the lines of the summary of cases that were compiled for a topology; `width` is in characters."""
    header = (
        *("strategy", "mesh", "batch", "GiB/device", "predicted", "fits", "GiB sent", "predicted"),
        *("ms at least", "bound by", "MFU at most", "ended"),
    )
    align = ("<", "<", *">" * (len(header) - 3), "<")
    return aligned([header, *map(absent_cells, rows)], align, width=width)


def absent_cells(row: Row) -> tuple[str, ...]:
    """Return a case's cells in the summary of compiled cases; unknown values are empty."""
    info: dict[str, Any] = row.extra_info
    held, seconds = info["predicted.argument_bytes"], info["roofline.step_seconds"]
    return (
        info["strategy"],
        spread(row),
        str(info["global_batch_sequences"]),
        gib(info["chip.needed_bytes"] or info["memory.total_bytes"]),
        gib(held and held + info["predicted.temp_bytes"]),
        {None: "", True: "yes", False: "NO"}[info["chip.fits"]],
        gib(info["compiled.sent_bytes"]),
        gib(info["predicted.sent_bytes"]),
        known(",.1f", seconds and 1e3 * seconds),
        info["roofline.bound"] or "",
        known(".0%", info["roofline.model_flops_utilization"]),
        "compiled" if info["status"] == "ok" else f"{info['status']}: {info['reason']}",
    )


def where_time_goes(rows: Iterable[Row], width: int | None = None) -> list[str]:
    """Return a table of the parts of each step's time in percent; only cases where they were measured have a row."""
    lines = [shares(row) for row in rows if row.extra_info["attribution.total_over_step"] is not None]
    header = ("strategy", "mesh", "batch", *(f"{part} %" for part in PARTS), "in all %")
    return aligned([header, *lines], ("<", "<", *">" * (len(PARTS) + 2)), width=width) if lines else []


def shares(row: Row) -> tuple[str, ...]:
    """Return a case's cells in the table of step time parts."""
    info: dict[str, Any] = row.extra_info
    parts = [info[f"attribution.{part}_seconds"] / info["step_seconds_median"] for part in PARTS.values()]
    percent = [f"{100 * part:.1f}" for part in (*parts, info["attribution.total_over_step"])]
    return (info["strategy"], spread(row), str(info["global_batch_sequences"]), *percent)


def checkpoints(rows: Iterable[Row], width: int | None = None) -> list[str]:
    """Return a table of times of checkpoints; only cases where they were measured have a row."""
    lines = [checkpoint_cells(row) for row in rows if row.extra_info["checkpoint.save_seconds"] is not None]
    header = ("strategy", "mesh", "batch", "MiB", "blocks ms", "saved ms", "restored ms", "by single ms")
    return aligned([header, *lines], ("<", "<", *">" * (len(header) - 2)), width=width) if lines else []


def checkpoint_cells(row: Row) -> tuple[str, ...]:
    """Return a case's cells in the table of checkpoints; unknown values are empty."""
    info: dict[str, Any] = row.extra_info
    seconds = (info[f"checkpoint.{part}_seconds"] for part in ("save_blocking", "save", "restore", "restore_single"))
    times = (known(",.0f", each and 1e3 * each) for each in seconds)
    return (
        info["strategy"],
        spread(row),
        str(info["global_batch_sequences"]),
        mib(info["checkpoint.total_bytes"]),
        *times,
    )


def cells(row: Row, times: Iterable[str], several: bool) -> tuple[str, ...]:
    """Return a case's cells in the summary; unknown values are empty."""
    info: dict[str, Any] = row.extra_info
    held = info["predicted.argument_bytes"], info["predicted.temp_bytes"]
    return (
        info["strategy"],
        spread(row),
        str(info["global_batch_sequences"]),
        known(",.0f", info["tokens_per_second"]),
        *(cell for time in times for cell in interval(info, TIMES[time])),
        MARK * holds_otherwise(info) + mib(info["memory.total_bytes"]),
        mib(None if None in held else sum(held)),
        MARK * sends_otherwise(info) + mib(info["compiled.sent_bytes"]),
        mib(info["predicted.sent_bytes"]),
        *((between(info),) if several else ()),
        verdict(info),
    )


def sends_otherwise(info: dict[str, Any]) -> bool:
    """Whether a step sends other bytes than the formulas say, by any kind of collective over any axis."""
    return info["sent_as_predicted"] is False


def holds_otherwise(info: dict[str, Any]) -> bool:
    """Whether the compiler plans more or less memory than the formulas say, by more than `MEMORY_ERROR`."""
    held = (info["memory.total_bytes"], info["predicted.argument_bytes"], info["predicted.temp_bytes"])
    if None in held:
        return False
    planned, *predicted = held
    return abs(planned - sum(predicted)) > MEMORY_ERROR * sum(predicted)


def unpredicted(rows: Iterable[Row]) -> list[str]:
    """Return the lines that explain the marks in the summary; none if nothing is marked."""
    infos = [row.extra_info for row in rows]
    sent, held = (sum(map(otherwise, infos)) for otherwise in (sends_otherwise, holds_otherwise))
    lines = [f"{MARK} MiB sent is not what the formulas say ({sent} of {len(infos)} rows); `rewrites.text` says why"]
    lines += [f"{MARK} MiB/device is not within {MEMORY_ERROR:.0%} of what they say ({held} of {len(infos)} rows)"]
    return [line for line, count in zip(lines, (sent, held), strict=True) if count]


def between(info: dict[str, Any]) -> str:
    """Format the MiB sent between processes and their mesh axes; "" for a step in one process."""
    axes = info["between_processes.axes"]
    return f"{mib(info['between_processes.sent_bytes'])} {axes}" if axes else ""


def interval(info: dict[str, Any], name: str) -> tuple[str, str]:
    """Format a ratio and its 95% interval."""
    low, high = info[f"{name}_low"], info[f"{name}_high"]
    return known(".2f", info[name]), "" if low is None else f"{low:.2f} {high:.2f}"


def spread(row: Row) -> str:
    """Return the mesh of a case, what its id says of microbatches and attention, and its strategy options."""
    work = re.findall(r"-((?:microbatches|attention_[a-z]+)=[^-]+)", row.case)
    return " ".join(filter(None, (str(row.extra_info["mesh"]), *work, str(row.extra_info["options"]))))


def known(spec: str, number: float | None) -> str:
    """Format a number, or return "" if it is unknown.

    >>> known(",.0f", 11000), known(",.0f", None)
    ('11,000', '')
    """
    return "" if number is None else format(number, spec)


def gib(count: int | None) -> str:
    """Format bytes in GiB, or return "" if they are unknown.

    >>> gib(3 * 2**29), gib(None)
    ('1.50', '')
    """
    return known(",.2f", None if count is None else count / GIB)


def mib(count: int | None) -> str:
    """Format bytes in MiB, or return "" if they are unknown.

    >>> mib(3 * 2**19), mib(None)
    ('1.5', '')
    """
    return known(",.1f", None if count is None else count / MIB)


def verdict(info: dict[str, Any]) -> str:
    """Return the result of the check against one device, or how the case ended without one."""
    if info["status"] != "ok":
        return f"{info['status']}: {info['reason']}"
    if info["kind"] == "compiled":
        return "compiled only"
    return "equal" if info["matches_single"] else str(info["reason"])


def resolution(rows: Iterable[Row]) -> list[str]:
    """Return a line on the differences between step times that a run can tell apart, for each batch size.

    That is what half of the intervals of time/single reach from their median, or what two copies of a step differed by
    if that is more.
    """
    limits: dict[int, float] = {}
    infos: list[dict[str, Any]] = [row.extra_info for row in rows if row.extra_info["canary_ratio"] is not None]
    for batch in dict.fromkeys(info["global_batch_sequences"] for info in infos):
        group = [info for info in infos if info["global_batch_sequences"] == batch]
        canaries = [abs(info[f"canary_ratio_{end}"] - 1) for info in group for end in ("low", "high")]
        single = "relative_to_single"
        halves = [
            (info[f"{single}_high"] - info[f"{single}_low"]) / 2 / info[single]
            for info in group
            if info[single] is not None and info["strategy"] != "single"
        ]
        limits[batch] = max(*canaries, statistics.median(halves) if halves else 0.0)
    told = " and ".join(f"{limit:.1%} with batch {batch}" for batch, limit in limits.items())
    return [f"this run cannot tell apart step times that differ by less than {told}"] if limits else []


def noise(rows: Iterable[Row]) -> list[str]:
    """Return a line on the noise: how much two copies of one step differed, in each group that was timed together."""
    infos: list[dict[str, Any]] = [row.extra_info for row in rows if row.extra_info["canary_ratio"] is not None]
    if not infos:
        return []
    bounds = sorted({(info["canary_ratio_low"], info["canary_ratio_high"]) for info in infos})
    apart = ", ".join(f"{low - 1:+.1%} to {high - 1:+.1%}" for low, high in bounds)
    loud = any(info["noisy"] for info in infos)
    return [f"noise: the same step timed twice differed by {apart}" + ("; THIS RUN IS NOISY" if loud else "")]
