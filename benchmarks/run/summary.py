"""The tables and lines of the summary of a run."""

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.cases.row import Row
from benchmarks.cli.tables import aligned, wrapped
from benchmarks.devices.chips import GIB

Info = dict[str, Any]
"""The columns of a row."""
Columns = Sequence[tuple[str, Callable[[Info], str]]]
"""Headers of a table, with what makes a cell of a row; an unknown value is an empty cell."""

LAUNCH = "95% intervals cover this launch alone; launches differ by more, and `meshmark merge` combines several"
MIB = 2**20
MARK = "!"
"""Stands before a number that is not as predicted."""
MEMORY_ERROR = 0.15
"""Relative error of the formulas for memory up to which a row has no mark, as the tests allow."""
LEFT_ALIGNED = "strategy", "mesh", "loss check", "status"


def summary(rows: Sequence[Row], *, absent: bool = False) -> dict[str, list[str]]:
    """Return the lines of the summary of a run by title: the table of steps, and where their time goes.

    `absent` says whether the cases were compiled for devices that are absent.
    """
    canaries = noise(rows)
    measured = [*resolution(rows), *table(rows), *unpredicted(rows), *canaries, *([LAUNCH] * bool(canaries))]
    tables = {
        "steps": [*(lines_of(rows, ABSENT) if absent else measured), *reasons(rows)],
        "where the time of a step goes": where_time_goes(rows),
    }
    return {title: lines for title, lines in tables.items() if lines} if rows else {}


def table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of the table of steps.

    There are columns for `time/twin` if any row has one, and for bytes sent between processes if there are several.
    """
    twins = any(row.extra_info["relative_to_twin"] is not None for row in rows)
    several = any(row.extra_info["between_processes.axes"] for row in rows)
    columns = [*CASE, ("tokens/s", number("tokens_per_second", ",.0f")), *ratio("time/single", "relative_to_single")]
    columns += [*(ratio("time/twin", "relative_to_twin") if twins else ()), *MEMORY_AND_TRAFFIC]
    columns += [*([("between processes", between)] if several else ()), ("loss check", verdict)]
    return lines_of(rows, columns)


def where_time_goes(rows: Iterable[Row]) -> list[str]:
    """Return a table of the parts of each step's time in percent; only cases where they were measured have a row."""
    return lines_of([row for row in rows if row.extra_info["attribution.total_over_step"] is not None], SHARES)


def lines_of(rows: Sequence[Row], columns: Columns) -> list[str]:
    """Return the lines of a table with a row for each case; none without rows."""
    headers = [header for header, _ in columns]
    cells = [[cell({"case": row.case, **row.extra_info}) for _, cell in columns] for row in rows]
    align = ["<" if header in LEFT_ALIGNED else ">" for header in headers]
    return aligned([headers, *cells], align) if rows else []


def number(name: str, spec: str = ",.1f", unit: float = 1) -> Callable[[Info], str]:
    """Cells with the number of this column, in units of `unit`."""
    return lambda info: known(spec, info[name], unit)


def known(spec: str, value: float | None, unit: float = 1) -> str:
    """Format a number in units of `unit`, or return "" if it is unknown.

    >>> known(",.0f", 11000), known(",.1f", 3 * 2**19, MIB), known(",.0f", None)
    ('11,000', '1.5', '')
    """
    return "" if value is None else format(value / unit, spec)


def ratio(header: str, name: str) -> Columns:
    """The columns of a ratio and of its 95% interval."""

    def interval(info: Info) -> str:
        low, high = info[f"{name}_low"], info[f"{name}_high"]
        return "" if low is None else f"{low:.2f}-{high:.2f}"

    return (header, number(name, ".2f")), ("95% interval", interval)


def share(part: str) -> Callable[[Info], str]:
    """Cells with a part of the step time in percent."""
    return lambda info: f"{100 * info[f'attribution.{part}_seconds'] / info['step_seconds_median']:.1f}"


def layout_text(info: Info) -> str:
    """Return the mesh of a case, what its id says of microbatches and the model, and its strategy options."""
    work = re.findall(r"-((?:microbatches|experts|attention_[a-z]+|routing)=[^-]+)", info["case"])
    return " ".join(filter(None, (str(info["mesh"]), *work, str(info["options"]))))


def predicted_bytes(info: Info) -> int | None:
    """Return the bytes that the formulas say a device holds; None if they do not say it."""
    parts = info["predicted.argument_bytes"], info["predicted.temp_bytes"]
    return None if None in parts else sum(parts)


def sends_otherwise(info: Info) -> bool:
    """Whether a step sends other bytes than the formulas say, by any kind of collective over any axis."""
    return info["sent_as_predicted"] is False


def holds_otherwise(info: Info) -> bool:
    """Whether the compiler plans more or less memory than the formulas say, by more than `MEMORY_ERROR`."""
    planned, predicted = info["memory.total_bytes"], predicted_bytes(info)
    return planned is not None and predicted is not None and abs(planned - predicted) > MEMORY_ERROR * predicted


def unpredicted(rows: Iterable[Row]) -> list[str]:
    """Return the lines that explain the marks in the summary; none if there are no marks."""
    infos = [row.extra_info for row in rows]
    sent, held = (sum(map(otherwise, infos)) for otherwise in (sends_otherwise, holds_otherwise))
    lines = [f"{MARK} MiB sent is not what the formulas say ({sent} of {len(infos)} rows); `rewrites.text` says why"]
    lines += [f"{MARK} MiB/device is not within {MEMORY_ERROR:.0%} of what they say ({held} of {len(infos)} rows)"]
    return [line for line, count in zip(lines, (sent, held), strict=True) if count]


def between(info: Info) -> str:
    """Format the MiB sent between processes and their mesh axes; "" for a step in one process."""
    axes = info["between_processes.axes"]
    return f"{known(',.1f', info['between_processes.sent_bytes'], MIB)} {axes}" if axes else ""


def verdict(info: Info) -> str:
    """Return the result of the check against one device, or the status of a case that has none."""
    if info["status"] != "ok":
        return str(info["status"])
    if info["kind"] == "compiled":
        return "not read" if info["compiled.unread"] else "compiled"
    return "equal" if info["matches_single"] else "unchecked"


def reasons(rows: Iterable[Row]) -> list[str]:
    """Return lines that say why cases have no numbers, no check or no bytes; cases with one reason share a line."""
    cases: dict[str, list[str]] = {}
    for row in rows:
        info, unread = row.extra_info, row.extra_info["compiled.unread"]
        texts = [info["reason"], unread and f"the compiled program was not read, so bytes sent are unknown: {unread}"]
        for text in filter(None, texts):
            cases.setdefault(f"{verdict(info)}: {text}", []).append(row.case)
    lines = (f"{names[0]}{f' and {len(names) - 1} more' * (len(names) > 1)}: {text}" for text, names in cases.items())
    return [part for line in lines for part in wrapped(line)]


def resolution(rows: Iterable[Row]) -> list[str]:
    """Return a line on the differences between step times that a run can tell apart, for each batch size and model."""
    groups: dict[tuple[Any, Any], list[Info]] = {}
    for info in (row.extra_info for row in rows if row.extra_info["canary_ratio"] is not None):
        groups.setdefault((info["global_batch_sequences"], info["preset"]), []).append(info)
    several = len({preset for _, preset in groups}) > 1
    limits = " and ".join(
        f"{smallest_difference(infos):.1%} with batch {batch}{f' of {preset}' if several else ''}"
        for (batch, preset), infos in groups.items()
    )
    return [f"this run cannot tell apart step times that differ by less than {limits}"] if limits else []


def smallest_difference(infos: Sequence[Info]) -> float:
    """Return the smallest relative difference that comparable steps can have and be told apart.

    It is the median half width of the intervals of time/single, or the deviation of the canary if that is more.
    """
    name = "relative_to_single"
    canaries = [abs(info[f"canary_ratio_{end}"] - 1) for info in infos for end in ("low", "high")]
    timed = [info for info in infos if info[name] is not None and info["strategy"] != "single"]
    halves = [(info[f"{name}_high"] - info[f"{name}_low"]) / 2 / info[name] for info in timed]
    return max(*canaries, statistics.median(halves or [0.0]))


def noise(rows: Iterable[Row]) -> list[str]:
    """Return a line on the noise: how much two copies of one step differed, in each group that was timed together."""
    infos: list[Info] = [row.extra_info for row in rows if row.extra_info["canary_ratio"] is not None]
    if not infos:
        return []
    bounds = sorted({(info["canary_ratio_low"], info["canary_ratio_high"]) for info in infos})
    differences = ", ".join(f"{low - 1:+.1%} to {high - 1:+.1%}" for low, high in bounds)
    loud = any(info["noisy"] for info in infos)
    return [f"noise: the same step timed twice differed by {differences}" + ("; THIS RUN IS NOISY" if loud else "")]


CASE: Columns = (
    ("strategy", lambda info: info["strategy"]),
    ("mesh", layout_text),
    ("batch", lambda info: str(info["global_batch_sequences"])),
)
MEMORY_AND_TRAFFIC: Columns = (
    ("MiB/device", lambda info: MARK * holds_otherwise(info) + known(",.1f", info["memory.total_bytes"], MIB)),
    ("by formula", lambda info: known(",.1f", predicted_bytes(info), MIB)),
    ("MiB sent", lambda info: MARK * sends_otherwise(info) + known(",.1f", info["compiled.sent_bytes"], MIB)),
    ("by formula", number("predicted.sent_bytes", unit=MIB)),
)
ABSENT: Columns = (
    *CASE,
    ("GiB/device", lambda info: known(",.2f", info["chip.needed_bytes"] or info["memory.total_bytes"], GIB)),
    ("by formula", lambda info: known(",.2f", predicted_bytes(info), GIB)),
    ("fits", lambda info: {None: "", True: "yes", False: "NO"}[info["chip.fits"]]),
    ("GiB sent", number("compiled.sent_bytes", ",.2f", GIB)),
    ("by formula", number("predicted.sent_bytes", ",.2f", GIB)),
    ("roofline ms", number("roofline.step_seconds", unit=1e-3)),
    ("bound by", lambda info: info["roofline.bound"] or ""),
    ("roofline MFU", number("roofline.model_flops_utilization", ".0%")),
    ("status", verdict),
)
SHARES: Columns = (
    *CASE,
    ("compute %", share("compute")),
    ("exposed %", share("exposed_communication")),
    ("bubble %", share("schedule_bubble")),
    ("lockstep %", share("lockstep_bubble")),
    ("recompute %", share("recomputation")),
    ("optimizer %", share("optimizer")),
    ("dispatch %", share("dispatch")),
    ("sum %", number("attribution.total_over_step", unit=1e-2)),
)
