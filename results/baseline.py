"""Writes the committed baseline of the exact gate, one file per JAX version: `meshmark regress baseline RUN.json`."""

import argparse
import json
import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.cases.columns import SCHEMA_VERSION, gated
from benchmarks.cli.outputs import require_file, require_folder, save_text
from results.gates.counters import PASSED, SETTINGS, Snapshot, read_snapshot
from results.records.reading import Case, RecordError
from strategies.files import shown

# Statuses that a baseline may store. Other failures need not recur, and a baseline would make them the expected result.
LASTING = (PASSED, "infeasible")


def as_baseline(snapshot: Snapshot) -> dict[str, Any]:
    """Return the JSON of a baseline; cases and counters are sorted, so that a diff of two baselines is readable."""
    facts = dict(snapshot.facts)
    machine = {
        "counters_fingerprint": snapshot.fingerprint,
        "cpu": {"arch": facts.pop("arch")},
        **{key: facts.pop(key) for key in (*SETTINGS, "device_count")},
        "versions": facts,
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "machine_info": machine,
        "better": {name: column.better for name, column in snapshot.counters().items()},
        "cases": [as_case(case, row) for case, row in sorted(snapshot.rows.items())],
    }


def as_case(case: Case, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of a case in a baseline: zero counters are left out, and unknown ones are listed in `unknown`."""
    if row["status"] not in LASTING:
        failure = f"{row['status']} ({row['reason']}), a failure that a baseline would expect"
        raise RecordError(f"{case} is {failure}; run it again")
    counters = {name: row[name] for name in sorted(gated(row, "exact"))} if row["status"] == PASSED else {}
    texts = "status", "reason", "compiled.hash", "compiled.dtypes", "compiled.unread"
    facts = {
        **case._asdict(),
        **{key: row[key] for key in texts if row.get(key) is not None},
        **{name: value for name, value in counters.items() if value},
    }
    unknown = [name for name, value in counters.items() if value is None]
    return facts | ({"unknown": unknown} if unknown else {})


def write_baseline(snapshot: Snapshot, folder: Path) -> Path:
    """Write the baseline of a run's JAX version atomically, and return its path.

    Its name is `jax-VERSION.json`, for other devices than CPUs `jax-VERSION-PLATFORM.json`. A new folder is created.
    """
    version = snapshot.facts["jax"]
    if not isinstance(version, str) or not re.fullmatch(r"[\w.+-]+", version):
        path, written = shown(snapshot.path), reprlib.repr(version)
        raise RecordError(f"{path} has the JAX version {written}; run the benchmarks again")
    platform = snapshot.facts["platform"]
    path = folder / f"jax-{version}{'' if platform == 'cpu' else f'-{platform}'}.json"
    text = json.dumps(as_baseline(snapshot), indent=1) + "\n"
    require_folder(folder)
    require_file(path)
    save_text(path, text)
    return path


def main(options: argparse.Namespace) -> None:
    """Run the command."""
    print(write_baseline(read_snapshot(options.run), options.out))
