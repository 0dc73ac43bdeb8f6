"""Rows of a sweep with planted changes, for tests of the exact gate."""

from typing import Any

from results.gates.verdict import Finding, Report
from tests.results.synthetic import row, sweep

Rows = list[dict[str, Any]]
NAME = "test_step[fsdp-fsdp=8-b16]"
CASE = f"{NAME} synthetic float32 remat=none microbatches=1 sequence=128 params=10000000"
BEFORE = row("fsdp", "fsdp=8")["extra_info"]
SENT, TEMP, TOTAL, ALIAS = (
    BEFORE[name] for name in ("compiled.sent_bytes", "memory.temp_bytes", "memory.total_bytes", "memory.alias_bytes")
)
REGRESSIONS: dict[str, dict[str, Any]] = {
    "an all-reduce too many": {
        "compiled.collectives.all_reduce.outside_loops": 1,
        "compiled.sent_bytes.all_reduce.fsdp": 4096,
        "compiled.sent_bytes": SENT + 4096,
        "compiled.hash": "with an all-reduce",
    },
    "a gather hoisted out of the loop": {
        "compiled.collectives.all_gather.in_loops": 1,
        "compiled.collectives.all_gather.outside_loops": 1,
        "compiled.sent_bytes.all_gather.fsdp": SENT + 4096,
        "compiled.sent_bytes": SENT + 4096,
    },
    "temporaries doubled": {"memory.temp_bytes": 2 * TEMP, "memory.total_bytes": TOTAL + TEMP},
    "a donation lost": {"memory.alias_bytes": 0, "memory.total_bytes": TOTAL + ALIAS},
    "compiled twice": {"compiled.compilations": 2},
    "one FLOP more": {"compiled.flops": BEFORE["compiled.flops"] + 1},
}


def planted(**changes: Any) -> Rows:
    """The sweep with some facts of one case replaced."""
    rows = sweep()
    facts = next(row["extra_info"] for row in rows if row["name"] == NAME)
    facts |= changes
    return rows


def without(name: str) -> Rows:
    """The sweep without one case."""
    return [row for row in sweep() if row["name"] != name]


def remarkable(report: Report) -> list[Finding]:
    """The findings that are not the same."""
    return [finding for finding in report.findings if finding.word != "same"]
