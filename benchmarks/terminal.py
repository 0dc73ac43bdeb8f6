"""What a run says while it goes on and at its end."""

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.record import NOISE, Row

HEADER = ("strategy", "mesh", "batch", "tokens/s", "time/single", "95% between", "MiB/device", "loss check")
ALIGN = ("<", "<", ">", ">", ">", ">", ">", "<")
MIB = 2**20


def progress(done: int, total: int, text: str, seconds_left: float | None) -> str:
    """One line for a case, such as `[ 7/46] fsdp-fsdp=8-b16: 11,000 tokens/s, about 3:20 left`."""
    left = "" if seconds_left is None else f", about {minutes(seconds_left)} left"
    return f"[{done:{len(str(total))}}/{total}] {text}{left}"


def minutes(seconds: float) -> str:
    """A span of time.

    >>> minutes(200)
    '3:20'
    """
    whole, rest = divmod(round(seconds), 60)
    return f"{whole}:{rest:02}"


def outcome(row: Row) -> str:
    """How a case ended, in a few words."""
    info: dict[str, Any] = row.extra_info
    if info["status"] != "ok":
        return f"{row.case}: {info['status']}: {info['reason']}"
    if info["kind"] == "compiled":
        return f"{row.case}: compiled in {info['compile_seconds']:.1f} s"
    return f"{row.case}: {info['tokens_per_second']:,.0f} tokens/s"


def table(rows: Sequence[Row]) -> list[str]:
    """The lines of the summary, a case a line; one that ended badly says how."""
    lines = [HEADER, *map(cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(f"{cell:{align}{width}}" for cell, align, width in zip(line, ALIGN, widths, strict=True)).rstrip()
        for line in lines
    ]


def cells(row: Row) -> tuple[str, ...]:
    """What the summary says of a case; what is not known stays empty."""
    info: dict[str, Any] = row.extra_info
    low, high, total_bytes = (
        info[key] for key in ("relative_to_single_low", "relative_to_single_high", "memory.total_bytes")
    )
    return (
        info["strategy"],
        info["mesh"],
        str(info["global_batch_sequences"]),
        known(",.0f", info["tokens_per_second"]),
        known(".2f", info["relative_to_single"]),
        "" if low is None else f"{low:.2f} {high:.2f}",
        known(",.1f", total_bytes and total_bytes / MIB),
        verdict(info),
    )


def known(spec: str, number: float | None) -> str:
    """A number, or nothing.

    >>> known(",.0f", 11000), known(",.0f", None)
    ('11,000', '')
    """
    return "" if number is None else format(number, spec)


def verdict(info: dict[str, Any]) -> str:
    """What the check against one device said, or how the case ended before it had."""
    if info["status"] != "ok":
        return f"{info['status']}: {info['reason']}"
    if info["kind"] == "compiled":
        return "compiled only"
    return "equal" if info["matches_single"] else str(info["reason"])


def noise(rows: Iterable[Row]) -> list[str]:
    """What the canaries say: how much the same step differed from itself, in each group that was timed together."""
    ratios = sorted({float(ratio) for row in rows if (ratio := row.extra_info["canary_ratio"]) is not None})
    if not ratios:
        return []
    apart = ", ".join(f"{ratio - 1:+.1%}" for ratio in ratios)
    loud = any(abs(ratio - 1) > NOISE for ratio in ratios)
    return [f"noise: the same step timed twice differed by {apart}" + ("; THIS RUN IS NOISY" if loud else "")]
