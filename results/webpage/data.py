"""The page's data: every recorded column of a run, the candidates of a search that are drawn, and facts of the machine.

A column with the same value in all rows is stored once. Samples are left out, because the charts only need intervals.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from results.figures.palette import strategy_looks
from results.figures.search import TIMES, drawn_candidates
from results.figures.tables import fastest, memory_columns, workloads
from results.records.rows import METRIC_COLUMNS, is_counted
from results.words import ending, known_text, workload
from strategies.files import shown

NOT_CARRIED = ["samples", "file", "fingerprint"]
"""Columns that the page leaves out: its section about the machine names files and fingerprint once."""
CURVES = [
    *("throughput", "throughput_low", "throughput_high", "throughput_ideal"),
    *("efficiency", "efficiency_low", "efficiency_high"),
]
"""Metrics of a row that the page shows; null in rows that do not count."""
DERIVED = "page."
"""Prefix of columns that are derived for the page and not part of the record."""
DIGITS = 6
"""Significant digits of fractional numbers: more than any interval resolves."""
TABLE = [
    *("rank", "status", "strategy", "mesh", "microbatches", "remat", "options"),
    *("needed_bytes", "sent_bytes", "bubble", "tokens_per_second", "model_flops_utilization"),
    *("compiled.needed_bytes", "compiled.exposed_seconds", "compiled.reason", "measured.reason"),
    *(DERIVED + name for name in (*TIMES, "waits_for")),
]
"""Columns of a candidate on the page; columns that the file lacks are left out."""
SETTINGS = {
    "platform_version": "Platform",
    "xla_flags": "XLA_FLAGS",
    "libtpu_init_args": "LIBTPU_INIT_ARGS",
    "glibc_tunables": "GLIBC_TUNABLES",
    "jax_settings": "JAX settings",
    "fingerprint": "Fingerprint",
}
"""Facts of `machine_info` that are shown verbatim unless they are empty, with their labels."""


def run_data(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the cases of a run as values that JSON can represent; each column as `column` has it."""
    parts = dict(workloads(rows))
    derived = pd.concat([derived_columns(part, number) for number, part in enumerate(parts.values())])
    recorded = [name for name in rows if name not in (*NOT_CARRIED, *METRIC_COLUMNS)]
    cases = rows[recorded].join(derived)
    return {
        "count": len(cases),
        "columns": {str(name): column([as_json(value) for value in cases[name]]) for name in cases},
        "workloads": [workload(part.iloc[0]) for part in parts.values()],
        "strategies": list(strategy_looks(rows["strategy"])),
    }


def search_data(facts: dict[str, Any], rows: pd.DataFrame) -> dict[str, Any]:
    """Return what `read_search` returns as values that JSON can represent, with the columns of drawn candidates."""
    shown = drawn_candidates(rows)
    shown = shown.rename(columns={name: DERIVED + name for name in TIMES} | {"limit": f"{DERIVED}waits_for"})
    return {
        "count": len(shown),
        "columns": {name: column([as_json(value) for value in shown[name]]) for name in TABLE if name in shown},
        "capacity_bytes": facts["capacity_bytes"],
        "strategies": list(rows["strategy"].unique()),
    }


def derived_columns(rows: pd.DataFrame, number: int) -> pd.DataFrame:
    """Derive the page's own columns for the rows of one workload; metrics are null in rows not counted."""
    sizes = memory_columns(rows)
    columns = {
        "workload": number,
        "counts": is_counted(rows),
        "check": rows.apply(check, axis="columns"),
        "bad": ~rows["status"].isin(["ok", "infeasible"]),
        "predicted_total_bytes": rows["predicted.argument_bytes"] + rows["predicted.temp_bytes"],
        "other_argument_bytes": sizes["other_argument_bytes"],
        "new_output_bytes": sizes["new_output_bytes"],
    }
    derived = rows[[]].assign(**columns)
    best = is_counted(fastest(rows, "throughput"))
    derived = derived.join(rows[CURVES].where(is_counted(rows))).assign(best=best)
    return derived.add_prefix(DERIVED)


def check(row: pd.Series) -> str:
    """Say how a case ended, in the words of the terminal's summary."""
    if row["status"] != "ok":
        return ending(row)
    if row["kind"] == "compiled":
        return "compiled only"
    return "equal" if row["matches_single"] is True else known_text(row["reason"])


def column(values: list[Any]) -> Any:
    """Return the values of all rows, or the one value that they share.

    >>> column([1, 2]), column(["cpu", "cpu"])
    ([1, 2], 'cpu')
    """
    first = values[0]
    return first if all(value == first and type(value) is type(first) for value in values) else values


def as_json(value: Any) -> Any:
    """Convert a value for JSON: NaN and infinities become None, other numbers are rounded to 6 significant digits.

    >>> as_json(float("nan")), as_json(8.0), as_json(0.123456789), as_json("fsdp"), as_json(True), as_json([1])
    (None, 8, 0.123457, 'fsdp', True, '[1]')
    """
    value = value.item() if hasattr(value, "item") else value
    if value is None or isinstance(value, str | bool | int):
        return value
    if not isinstance(value, float):
        return str(value)
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else float(f"{value:.{DIGITS}g}")


def machine_facts(runs: Mapping[Path, Mapping[str, Any]]) -> dict[str, str]:
    """Return facts of runs by label: the machine, which all share, and the time and commit of each file."""
    machine = next(iter(runs.values()))["machine_info"]
    cpu, versions = machine.get("cpu") or {}, machine.get("versions") or {}
    system = (machine.get(name) for name in ("system", "release", "machine"))
    rates = machine.get("matmul_flops_per_second") or {}
    virtual = ", virtual: they share one machine" if machine.get("virtual_devices") else ""
    facts = {
        "Devices": f"{machine.get('device_count')} × {machine.get('device_kind')}{virtual}",
        "Processor": f"{cpu.get('brand_raw', 'unknown')}, {cpu.get('count', 'unknown number of')} cores",
        "System": " ".join(str(part) for part in system if part),
        "Host": str(machine.get("node") or ""),
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "Matmul rate": ", ".join(f"{rate / 1e9:,.1f} GFLOP/s in {dtype}" for dtype, rate in rates.items()),
        **{label: str(machine.get(name) or "") for name, label in SETTINGS.items()},
        **{shown(path): written(run) for path, run in runs.items()},
    }
    return {name: value for name, value in facts.items() if value}


def written(run: Mapping[str, Any]) -> str:
    """Say when a run was written, and at which commit of the project."""
    commit = run.get("commit_info") or {}
    changed = " with changes" if commit.get("dirty") else ""
    when = (run.get("datetime") or "")[:16].replace("T", " ")
    parts = [
        f"written {when} UTC" if when else "",
        f"commit {str(commit['id'])[:12]}{changed}" if commit.get("id") else "",
    ]
    return ", ".join(filter(None, parts)) or "time and commit unknown"
