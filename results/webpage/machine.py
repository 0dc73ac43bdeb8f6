"""The page's facts about the machine, the versions and the files of runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strategies.files import shown

SETTINGS = {
    "platform_version": "Platform",
    "xla_flags": "XLA_FLAGS",
    "libtpu_init_args": "LIBTPU_INIT_ARGS",
    "glibc_tunables": "GLIBC_TUNABLES",
    "jax_settings": "JAX settings",
    "fingerprint": "Fingerprint",
}
"""Facts of `machine_info` that are shown verbatim unless they are empty, with their labels."""


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
