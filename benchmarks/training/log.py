"""The log of a training run, as JSON Lines: what is run, then a line for each logged step and each evaluation.

    {"kind": "run", "schema_version": 1, "strategy": "fsdp", "mesh": "fsdp=8", ...}
    {"kind": "step", "step": 10, "loss": 3.1, "grad_norm": 1.2, "learning_rate": 0.001, "tokens_per_second": 41000.0}
    {"kind": "evaluation", "step": 250, "loss": 2.4}

A run that is resumed writes another line of kind "run", with the step after which it begins in `resumed_after`.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1


class Log:
    """Appends lines to a file. Each line is complete on disk before the next one begins.

    Args:
        path: of the file.
        after: keep the lines that are there up to this step, and cut off the rest; 0 begins anew.
    """

    def __init__(self, path: Path, after: int = 0) -> None:
        kept = [line for line in read_lines(path) if after and line.get("step", 0) <= after]
        part = path.with_name(f"{path.name}.part")
        part.write_text("".join(map(as_line, kept)))
        part.replace(path)
        self._file = path.open("a")

    def write(self, kind: str, **facts: Any) -> None:
        """Append a line."""
        self._file.write(as_line({"kind": kind, **facts}))
        self._file.flush()

    def close(self) -> None:
        """Wait until the lines are on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; none if there is no file. A last line that was cut short is left out."""
    lines = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    return lines


def as_line(facts: Mapping[str, Any]) -> str:
    """A line of JSON. Numbers that are not finite, which JSON does not have, are null.

    >>> as_line({"step": 3, "loss": math.nan, "training": {"clip_norm": math.inf}})
    '{"step": 3, "loss": null, "training": {"clip_norm": null}}\\n'
    """
    return json.dumps(_finite(facts), allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
