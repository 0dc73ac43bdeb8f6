"""Words for facts of records: numbers, sizes, devices, workloads, endings. Figures, the page and tables share them."""

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:  # commands that need no tables start faster without
    import pandas as pd

Facts: TypeAlias = "Mapping[str, Any] | pd.Series"
"""A record, or its row of a table."""
NAMED = 4
"""Most names that one sentence lists."""


def parameters(count: float) -> str:
    """Say how many parameters a model has.

    >>> parameters(6_658_400_000), parameters(35_152)
    ('6,658.4M parameters', '35,152 parameters')
    """
    return f"{count / 1e6:,.1f}M parameters" if count >= 1e5 else f"{count:,.0f} parameters"


def byte_unit(largest: float) -> tuple[int, str]:
    """Choose the unit in which the largest size of a device reads well: its bytes, and its name."""
    return (2**30, "GiB") if largest >= 2**30 else (2**20, "MiB")


def size(count: float) -> str:
    """Format bytes in MiB or GiB.

    >>> size(3 * 2**29), size(3 * 2**19)
    ('1.5 GiB', '1.5 MiB')
    """
    divisor, unit = byte_unit(count)
    return f"{count / divisor:,.1f} {unit}"


def many(count: int, noun: str) -> str:
    """Format a count with its noun.

    >>> many(1, "case"), many(1200, "case")
    ('1 case', '1,200 cases')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def numbers(values: Iterable[float]) -> str:
    """List the distinct known numbers, smallest first.

    >>> numbers([8, 1, 8, float("nan")])
    '1 and 8'
    """
    return joined([f"{value:,.0f}" for value in sorted({each for each in values if not math.isnan(each)})], most=12)


def joined(names: Iterable[object], most: int = NAMED) -> str:
    """List names in a sentence; beyond the first `most`, count the others.

    >>> joined(["data"]), joined(["data", "fsdp", "tensor"]), joined("abcde", most=3)
    ('data', 'data, fsdp and tensor', 'a, b, c and 2 others')
    """
    texts = [str(name) for name in names]
    if len(texts) > most:
        texts = [*texts[:most], f"{len(texts) - most} others"]
    return " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


def known_text(value: object) -> str:
    """Return a string, or "" for any other value.

    >>> known_text("schedule=1f1b"), known_text(None), known_text(float("nan"))
    ('schedule=1f1b', '', '')
    """
    return value if isinstance(value, str) else ""


def ending(record: Facts) -> str:
    """Say how a case ended: its status, with the reason if there is one.

    >>> ending({"status": "oom", "reason": "needs 90 GiB"}), ending({"status": "ok", "reason": None})
    ('oom: needs 90 GiB', 'ok')
    """
    return ": ".join(filter(None, (str(record["status"]), known_text(record["reason"]))))


def devices(facts: Facts) -> str:
    """Say whether the devices of a row are virtual, or name their kind."""
    return "virtual CPU devices" if bool(facts["virtual_devices"]) else str(facts["device_kind"])


def workload(facts: Facts) -> str:
    """Describe the workload of a row: model, sequence length, dtype and remat, but not the batch."""
    return (
        f"{facts['preset']} ({parameters(facts['param_count'])}), {facts['sequence_tokens']:,.0f} tokens "
        f"per sequence, {facts['dtype']}, remat {facts['remat']}"
        f"{', ' + facts['attention'] if facts['attention'] else ''}"
        f"{', routing=' + facts['forced'] if facts['forced'] else ''}"
    )


def how_noisy(rows: "pd.DataFrame") -> str:
    """Say by how much the same step, timed twice, differed from itself; "" if no row is marked as noisy."""
    noisy = rows[rows["noisy"].eq(True)]
    if noisy.empty:
        return ""
    low, high = noisy["canary_ratio_low"].min() - 1, noisy["canary_ratio_high"].max() - 1
    return f"Noisy run: the same step timed twice differed by {low:+.0%} to {high:+.0%}."
