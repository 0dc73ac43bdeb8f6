"""What a run says while it goes on and at its end."""

from collections.abc import Sequence

from benchmarks.record import Record

HEADER = ("strategy", "mesh", "batch", "tokens/s", "time/single", "MiB/device", "loss check")
ALIGN = ("<", "<", ">", ">", ">", ">", "<")
MIB = 2**20


def progress(done: int, total: int, elapsed_seconds: float, record: Record) -> str:
    """One line for a case that has ended, such as `[ 7/54] fsdp-fsdp=8-b16: 11,000 tokens/s, about 3:20 left`."""
    rate = record.tokens_per_second
    outcome = f"{record.status}: {record.reason}" if rate is None else f"{rate:,.0f} tokens/s"
    return f"{counter(done, total)} {record.case}: {outcome}{time_left(done, total, elapsed_seconds)}"


def counter(number: int, total: int) -> str:
    """The place of a case in the run.

    >>> counter(7, 54)
    '[ 7/54]'
    """
    return f"[{number:{len(str(total))}}/{total}]"


def time_left(done: int, total: int, elapsed_seconds: float) -> str:
    """An estimate: the cases ahead take as long as those behind. Empty before the first and after the last.

    >>> time_left(10, 30, 100.0), time_left(30, 30, 300.0)
    (', about 3:20 left', '')
    """
    if not 0 < done < total:
        return ""
    minutes, seconds = divmod(round(elapsed_seconds / done * (total - done)), 60)
    return f", about {minutes}:{seconds:02} left"


def table(records: Sequence[Record]) -> list[str]:
    """The lines of the summary, a case a line; one that ended badly says how."""
    rows = [HEADER, *map(cells, records)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:{align}{width}}" for cell, align, width in zip(row, ALIGN, widths, strict=True)).rstrip()
        for row in rows
    ]


def cells(record: Record) -> tuple[str, ...]:
    """What the summary says of a case; what is not known stays empty."""
    total_bytes = record.memory.total_bytes
    return (
        record.case.strategy,
        str(record.case.mesh),
        str(record.case.batch_size),
        known(",.0f", record.tokens_per_second),
        known(".2f", record.relative_to_single),
        known(",.1f", total_bytes and total_bytes / MIB),
        verdict(record),
    )


def known(spec: str, number: float | None) -> str:
    """A number, or nothing.

    >>> known(",.0f", 11000), known(",.0f", None)
    ('11,000', '')
    """
    return "" if number is None else format(number, spec)


def verdict(record: Record) -> str:
    """What the check against one device said, or how the case ended before it had."""
    if record.status != "ok":
        return f"{record.status}: {record.reason}"
    return "equal" if record.matches_single else str(record.reason)
