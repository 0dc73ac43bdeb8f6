"""The log of a training run, as JSON Lines: what is run, then a line for each logged step and each evaluation.

    {"kind": "run", "schema_version": 1, "strategy": "fsdp", "mesh": "fsdp=8", ...}
    {"kind": "step", "step": 10, "loss": 3.1, "grad_norm": 1.2, "learning_rate": 0.001, "tokens_per_second": 41000.0}
    {"kind": "evaluation", "step": 250, "loss": 2.4}

A run that is resumed writes another line of kind "run", with the step after which it begins in `resumed_after`.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.commandline.outputs import cause

SCHEMA_VERSION = 1


class LogError(Exception):
    """The log cannot be read or written. The message names the file and the problem."""


class Log:
    """Appends lines to a file. Each line is complete on disk before the next one begins.

    Args:
        path: of the file.
        after: keep the lines that are there up to this step, and cut off the rest; 0 begins anew.

    Raises:
        LogError: the file cannot be read or written, here and in `write` and `close`.
    """

    def __init__(self, path: Path, after: int = 0) -> None:
        self._path = path
        kept = [line for line in read_lines(path) if after and line.get("step", 0) <= after]
        part = path.with_name(f"{path.name}.part")
        with named(path):
            part.write_text("".join(map(as_line, kept)), encoding="utf-8")
            part.replace(path)
            self._file = path.open("a", encoding="utf-8")

    def write(self, kind: str, **facts: Any) -> None:
        """Append a line."""
        with named(self._path):
            self._file.write(as_line({"kind": kind, **facts}))
            self._file.flush()

    def close(self) -> None:
        """Wait until the lines are on disk."""
        with named(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Turn errors of the file system into one that names the log.

    Raises:
        LogError: such an error.
    """
    try:
        yield
    except OSError as error:
        raise LogError(f"the log {path} cannot be read or written: {cause(error)}") from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; none if there is no file. A line that was cut short ends it.

    Raises:
        LogError: it cannot be read, is not UTF-8, or has a line that is JSON and no object.
    """
    lines = []
    try:
        with named(path):
            text = path.read_text(encoding="utf-8") if path.exists() else ""
    except UnicodeDecodeError as error:
        raise LogError(f"byte {error.start:,} of the log {path} is not UTF-8") from error
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            facts = json.loads(line)
        except ValueError:
            break
        if not isinstance(facts, dict):
            raise LogError(f"line {number} of the log {path} is no JSON object")
        lines.append(facts)
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
