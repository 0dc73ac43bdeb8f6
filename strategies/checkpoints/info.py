"""The metadata of a checkpoint (JSON), and which checkpoints a folder has. It needs neither JAX nor Orbax."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strategies.config import GPTConfig

FORMAT = 1
INFO = "checkpoint.json"
KINDS = {
    **dict.fromkeys(("config", "scalars", "arrays", "metadata"), dict),
    **dict.fromkeys(("position", "step", "devices"), int),
}
"""What a JSON value must be, by the field of `CheckpointInfo`."""


class CheckpointError(Exception):
    """A checkpoint cannot be written or read. The message says what differs or what is missing."""


@dataclass(frozen=True)
class CheckpointInfo:
    """The metadata of a checkpoint.

    Attributes:
        config: the model.
        position: batches that were trained on.
        step: steps that the optimizer has made.
        devices: of the mesh that wrote it.
        compression: of gradients, when it was written.
        scalars: numbers of the optimizer's state, by name.
        arrays: the shape of each array, by name.
        metadata: facts of the caller.
    """

    config: GPTConfig
    position: int
    step: int
    devices: int
    compression: str
    scalars: Mapping[str, float]
    arrays: Mapping[str, Sequence[int]]
    metadata: Mapping[str, Any] = field(default_factory=dict)


def write(folder: Path, info: CheckpointInfo) -> None:
    """Write what a checkpoint says of itself into its folder."""
    facts = {"format": FORMAT, **dataclasses.asdict(info)}
    (folder / INFO).write_text(json.dumps(facts, allow_nan=False) + "\n")


def local(folder: str | Path) -> Path:
    """The absolute path of a folder.

    Raises:
        CheckpointError: it is a URL.
    """
    if "://" in str(folder) or ":/" in str(folder):
        raise CheckpointError(f"{folder} is a URL; checkpoints need a file system: mount it, and name the folder")
    return Path(folder).absolute()


def positions(folder: str | Path) -> list[int]:
    """The positions of the checkpoints in a folder that are whole, in order; none if there is no folder.

    Raises:
        CheckpointError: the folder cannot be read.
    """
    try:
        there = Path(folder).iterdir() if Path(folder).is_dir() else ()
        return sorted(int(path.name) for path in there if path.name.isdecimal() and (path / INFO).is_file())
    except OSError as error:
        raise CheckpointError(f"the folder of checkpoints {folder} cannot be read: {error.strerror}") from error


def read(folder: str | Path, at: int | None = None) -> CheckpointInfo:
    """Read what a checkpoint says of itself; `at` is its position, by default the latest.

    Raises:
        CheckpointError: there is none, it is of a newer format or another position, or it cannot be read.
    """
    found = positions(local(folder))
    if not found or at not in (None, *found):
        there = f"has those of {', '.join(map(str, found))}" if found else "has none"
        raise CheckpointError(f"no checkpoint{'' if at is None else f' of {at}'}: {folder} {there}")
    path = Path(folder) / str(found[-1] if at is None else at) / INFO
    try:
        facts = json.loads(path.read_text())
        if not isinstance(facts, dict):
            raise TypeError("it is no JSON object")
        if (number := facts.pop("format")) > FORMAT:
            problem = f"{path} is of format {number}, and this meshmark reads formats up to {FORMAT}"
            raise CheckpointError(f"{problem}; take a newer meshmark")
        if wrong := [f"{name}={facts[name]!r}" for name, kind in KINDS.items() if not isinstance(facts[name], kind)]:
            raise TypeError(", ".join(wrong))
        info = CheckpointInfo(config=GPTConfig(**facts.pop("config")), **facts)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise damaged(path.parent, f"{INFO}: {error}") from error
    if str(info.position) != path.parent.name:
        raise damaged(path.parent, f"{INFO} is that of position {info.position}")
    return info


def damaged(path: Path, problem: str) -> CheckpointError:
    """The error of a checkpoint that is not as it was written. It names the others in its folder."""
    others = [str(position) for position in positions(path.parent) if str(position) != path.name]
    way_out = f"; restore another with at={' or '.join(others)}" if others else ""
    return CheckpointError(f"the checkpoint {path} is damaged: {problem}{way_out}")
