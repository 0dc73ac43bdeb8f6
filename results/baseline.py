"""The committed baseline of the exact gate: `python -m results.baseline RUN.json` writes it, one file a JAX version."""

import argparse
import json
import re
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.commandline.ending import run as run_command
from benchmarks.commandline.main import program
from benchmarks.commandline.outputs import Unwritable, require_file, require_folder, save_text
from results.gates.counters import COUNTERS, DIRECTIONS, PASSED, SETTINGS, Snapshot, read_snapshot
from results.gates.metrics import other_axes
from results.gates.verdict import EXIT_CODES
from results.records.reading import SCHEMA_VERSION, Case, RecordError

BASELINES = Path(__file__).parent / "baselines"
# A case that ended otherwise may do better next time: a baseline would call its failure right.
LASTING = (PASSED, "infeasible")


def as_baseline(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as it is committed: cases and counters sorted, so that the difference of two is readable."""
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
        "better": DIRECTIONS,
        "cases": [as_case(case, row) for case, row in sorted(snapshot.rows.items())],
    }


def as_case(case: Case, row: Mapping[str, Any]) -> dict[str, Any]:
    """A case as it is committed: a short line a fact, what is zero left out, and what is not known named apart.

    Raises:
        RecordError: it failed in a way that need not last.
    """
    if row["status"] not in LASTING:
        raise RecordError(
            f"{case} is {row['status']} ({row['reason']}), which a baseline would call right; run it again"
        )
    names = sorted((*COUNTERS, *(metric.name for metric in other_axes(row))))
    counters = {name: row[name] for name in names} if row["status"] == PASSED else {}
    texts = "status", "reason", "compiled.hash", "compiled.dtypes"
    facts = {
        **case._asdict(),
        **{key: row[key] for key in texts if row.get(key) is not None},
        **{name: value for name, value in counters.items() if value},
    }
    unknown = [name for name, value in counters.items() if value is None]
    return facts | ({"unknown": unknown} if unknown else {})


def write_baseline(snapshot: Snapshot, folder: Path) -> Path:
    """Write the baseline of a run's JAX version, whole or not at all, and return its path.

    Raises:
        RecordError: the run does not say its JAX version, or is no baseline.
        Unwritable: the folder or the file cannot be written.
    """
    version = snapshot.facts["jax"]
    if not isinstance(version, str) or not re.fullmatch(r"[\w.+-]+", version):
        raise RecordError(f"{snapshot.path} has the JAX version {reprlib.repr(version)}; run the benchmarks again")
    path = folder / f"jax-{version}.json"
    text = json.dumps(as_baseline(snapshot), indent=1) + "\n"
    require_folder(folder)
    require_file(path)
    save_text(path, text)
    return path


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog=program("python -m results.baseline"),
        description="Write the committed baseline that `python -m results.regress exact` compares with.",
    )
    parser.add_argument("run", type=Path, metavar="RUN.json", help="written by pytest benchmarks --benchmark-json")
    parser.add_argument("--out", type=Path, metavar="DIR", default=BASELINES, help="default: %(default)s")
    options = parser.parse_args(arguments)
    try:
        print(write_baseline(read_snapshot(options.run), options.out))
    except (RecordError, Unwritable) as error:
        parser.exit(EXIT_CODES["broken input"], f"{error}\n")


if __name__ == "__main__":
    run_command(main)
