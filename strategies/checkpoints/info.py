"""A checkpoint's metadata (JSON), and the checkpoints of a folder. This file needs neither JAX nor Orbax."""

import dataclasses
import hashlib
import json
import os
import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from strategies.config import Compression
from strategies.files import decode_json, read_bytes
from strategies.gpt_config import GPTConfig
from strategies.schema import Count, SchemaError, Whole, checked

FORMAT = 3
INFO = "checkpoint.json"
CHECKSUM = "checksum"
"""The field with the SHA-256 of all other fields, from format 2."""


class CheckpointError(Exception):
    """A checkpoint cannot be written or read. The message says what differs or what is missing."""


class CheckpointInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The metadata of a checkpoint. All fields are required.

    Attributes:
        position: number of batches trained on.
        step: number of optimizer steps.
        devices: of the mesh that wrote it.
        scalars: numbers of the optimizer's state, by name.
        array_checksums: the SHA-256 of each array's `zarr.json`, by name; none in format 1.
        chunk_checksums: the SHA-256 of the names and checksums of each array's chunks, by name; from format 3.
    """

    config: GPTConfig
    position: Whole
    step: Whole
    devices: Count
    compression: Compression
    scalars: dict[str, int | float]
    arrays: dict[str, tuple[Whole, ...]]
    array_checksums: dict[str, str]
    chunk_checksums: dict[str, str]
    metadata: dict[str, Any]


def as_text(info: CheckpointInfo) -> str:
    """The metadata as JSON, with its checksum."""
    facts = {"format": FORMAT, **msgspec.structs.asdict(info), "config": dataclasses.asdict(info.config)}
    try:
        read = decode_json(json.dumps(facts, allow_nan=False), "metadata")
    except (TypeError, RecursionError) as error:
        raise ValueError(f"metadata is not JSON: {error}") from None
    parsed(text := json.dumps(read | {CHECKSUM: checksum(read)}), INFO)
    if read["metadata"] != info.metadata:
        problem = f"metadata={reprlib.repr(info.metadata)} would be read as {reprlib.repr(read['metadata'])}"
        raise ValueError(f"{problem}; use lists, and dicts with string keys")
    return f"{text}\n"


def parsed(text: str | bytes, where: str) -> CheckpointInfo:
    """The metadata that `as_text` wrote, in this or an older format."""
    facts = checked(decode_json(text, where), dict[str, Any], where)
    if (number := checked(facts.pop("format", None), Count, f"{where}: format")) > FORMAT:
        problem = f"{where} is of format {number}, and this meshmark reads formats up to {FORMAT}"
        raise CheckpointError(f"{problem}; install a newer meshmark")
    if number == 1:
        facts = {**facts, "array_checksums": {}}
    elif facts.pop(CHECKSUM, None) != checksum({"format": number, **facts}):
        raise SchemaError(f"{where} was changed after it was written: its checksum differs")
    facts = facts if number == FORMAT else {**facts, "chunk_checksums": {}}
    config = checked(facts.get("config"), dict[str, Any], f"{where}: config")
    if unknown := config.keys() - {each.name for each in dataclasses.fields(GPTConfig)}:
        raise SchemaError(f"{where}: config has an unknown field {min(unknown)!r}")
    info = checked(facts, CheckpointInfo, where)
    if info.scalars.get("count") != info.step:
        raise SchemaError(f"{where}: step is {info.step}, and AdamW's count {info.scalars.get('count')}")
    if number == FORMAT and not info.arrays.keys() == info.array_checksums.keys() == info.chunk_checksums.keys():
        raise SchemaError(f"{where} lacks checksums of arrays")
    return info


def checksum(facts: Mapping[str, Any]) -> str:
    """The SHA-256 of JSON values, independent of key order."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def local(folder: str | Path) -> Path:
    """The absolute path of a folder, without `..` and links, which TensorStore does not support."""
    if not isinstance(folder, str | os.PathLike) or not str(folder) or "\0" in str(folder):
        shown = reprlib.repr(folder) if isinstance(folder, str | None) else f"a {type(folder).__name__}"
        raise CheckpointError(f"the folder of checkpoints is {shown}; pass a path (str or Path)")
    if re.match("[A-Za-z][A-Za-z0-9+.-]+:/", str(folder)):  # two or more letters: C:/ is a drive
        raise CheckpointError(f"{folder} is a URL; checkpoints need a file system: mount it, and name the folder")
    try:
        return Path(folder).resolve()
    except (OSError, RuntimeError) as error:  # a cycle of links
        raise CheckpointError(f"the folder of checkpoints {folder} cannot be read: {error}") from error


def positions(folder: str | Path) -> list[int]:
    """The positions of a folder's complete checkpoints, in order; empty if the folder does not exist."""
    folder = local(folder)
    try:
        there = folder.iterdir() if folder.is_dir() else ()
        numbered = [path for path in there if re.fullmatch("0|[1-9][0-9]{0,18}", path.name)]
        return sorted(int(path.name) for path in numbered if (path / INFO).is_file())
    except OSError as error:
        raise CheckpointError(f"the folder of checkpoints {folder} cannot be read: {error.strerror}") from error


def _near(folder: Path) -> str:
    """The end of a message: the folder that was probably meant, or why there are no checkpoints."""
    if not folder.is_dir():
        return ", because it is a file" if folder.exists() else ", because it does not exist"
    torn = [path for path in (folder, *folder.iterdir()) if path.name.isdecimal()]
    if not positions(folder) and torn and not positions(folder.parent):
        return f": {torn[0]} lacks {INFO}, without which a checkpoint is not whole; restore another"
    near = next((near for near in (folder / "checkpoints", folder.parent) if positions(near)), None)
    return f"; name {near}" if near else ""


def read(folder: str | Path, at: int | None = None) -> CheckpointInfo:
    """Read a checkpoint's metadata; `at` is its position, default: the latest.

    Raises:
        CheckpointError: there is none, it is of a newer format or another position, or it cannot be read.
    """
    found = positions(local(folder))
    if not found or at not in (None, *found) or isinstance(at, bool | float):
        there = f"has those of {', '.join(map(str, found))}" if found else "has none"
        near = "" if found else _near(local(folder))
        raise CheckpointError(f"no checkpoint{'' if at is None else f' of {at!r}'}: {folder} {there}{near}")
    path = Path(folder) / str(found[-1] if at is None else at) / INFO
    if path.is_symlink():
        raise damaged(path.parent, f"{INFO} is a link; put the file in its place")
    try:
        info = parsed(read_bytes(path), str(path))
    except SchemaError as error:
        raise damaged(path.parent, str(error).removeprefix(f"{path.parent}/")) from error
    if str(info.position) != path.parent.name:
        raise damaged(path.parent, f"{INFO} is that of position {info.position}")
    return info


def damaged(path: Path, problem: str) -> CheckpointError:
    """The error for a checkpoint that was changed after it was written. It names the folder's other checkpoints."""
    others = [str(position) for position in positions(path.parent) if str(position) != path.name]
    way_out = f"; remove it, or restore another with at={' or '.join(others)}" if others else ""
    return CheckpointError(f"the checkpoint {path} is damaged: {problem}{way_out}")
