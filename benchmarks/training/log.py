"""The folder of a training run, and its log: JSON Lines of what is run, of each logged step and of each evaluation.

    {"kind": "run", "schema_version": 1, "strategy": "fsdp", "mesh": "fsdp=8", ...}
    {"kind": "step", "step": 10, "loss": 3.1, "grad_norm": 1.2, "learning_rate": 0.001, "tokens_per_second": 41000.0}
    {"kind": "evaluation", "step": 250, "loss": 2.4}

A run that is resumed writes another line of kind "run", with the step after which it begins in `resumed_after`.
"""

import errno
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from benchmarks.cli.outputs import Unwritable, cause, locked, require_folder
from strategies.checkpoints import require_writable
from strategies.files import decode_json, read_bytes
from strategies.schema import Amount, SchemaError, Whole, checked

SCHEMA_VERSION = 1


class LogError(Exception):
    """The log cannot be read or written. The message names the file and the problem."""


class RunLine(msgspec.Struct, tag_field="kind", tag="run"):
    """What is run. It has other fields, too (`Plan.facts`)."""

    schema_version: Literal[1]
    resumed_after: Whole


class StepLine(msgspec.Struct, tag_field="kind", tag="step"):
    """A logged step. A number that is not finite is null; the loss of a run that diverges may be huge before.

    Its other fields are numbers, too: by name what is added to the loss, such as `balance_loss`.
    """

    step: Whole
    loss: float | None
    grad_norm: float | None
    learning_rate: Amount
    tokens_per_second: Amount
    loss_scale: Amount | None = None


class EvaluationLine(msgspec.Struct, tag_field="kind", tag="evaluation", forbid_unknown_fields=True):
    """The loss on the held-out text after a step."""

    step: Whole
    loss: float | None


class Log:
    """Appends lines to a file, after those that are there up to the step `after`; 0 starts a new log.

    Each line is complete on disk before the next one begins. A file that cannot be read or written is a `LogError`.
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
            self._require_there()

    def _require_there(self) -> None:
        """Check that the file is where it was: one that is removed takes lines that nobody can read."""
        try:
            there = os.path.samestat(self._path.stat(), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            there = False
        if not there:
            raise FileNotFoundError(errno.ENOENT, "it was removed or replaced while the run wrote it")

    def close(self) -> None:
        """Wait until the lines are on disk."""
        with named(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Turn errors of the file system into one that names the log."""
    try:
        yield
    except OSError as error:
        raise LogError(f"the log {path} cannot be read or written: {cause(error)}") from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; none if there is no file. A last line that was cut short is left out."""
    try:
        complete, _, _ = read_bytes(path).rpartition(b"\n") if path.exists() else (b"", b"", b"")
        lines = complete.split(b"\n") if complete else []
        return [_checked(line, f"line {number} of the log {path}") for number, line in enumerate(lines, start=1)]
    except (OSError, SchemaError) as error:
        raise LogError(str(error)) from error


def _checked(line: bytes, where: str) -> dict[str, Any]:
    """A line of the log, with all of its fields."""
    facts = decode_json(line, where)
    if isinstance(checked(facts, RunLine | StepLine | EvaluationLine, where), StepLine):
        checked({name: value for name, value in facts.items() if name != "kind"}, dict[str, float | None], where)
    return facts


def as_line(facts: Mapping[str, Any]) -> str:
    """A line of JSON. Numbers that are not finite, which JSON does not have, are null.

    >>> as_line({"step": 3, "loss": math.nan, "training": {"clip_norm": math.inf}})
    '{"step": 3, "loss": null, "training": {"clip_norm": null}}\\n'
    """
    return json.dumps(_finite(facts), allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Create the folder of a run, and keep other runs out of it while the body runs.

    The lock ends with the process, however that ends. A file system without locks keeps nobody out (`locked`).
    """
    require_folder(folder)
    try:
        number = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise Unwritable(f"{folder} cannot be read: {cause(error)}; name another folder") from error
    try:
        if not locked(number, folder):
            raise Unwritable(f"another run is writing into {folder}; wait for it, or name another --out")
        yield
    finally:
        os.close(number)


def require_saves(folder: Path) -> None:
    """Check that a folder takes checkpoints, by an array that is written as a save does. Nothing of it is left."""
    try:
        require_writable(folder.resolve())
    except (OSError, ValueError) as error:
        reason = cause(error) if isinstance(error, OSError) else str(error)
        raise Unwritable(f"checkpoints cannot be written to {folder}: {reason}; name another --out") from error
