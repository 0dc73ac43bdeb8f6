"""Checkpoints that any strategy writes and any other reads, on any mesh and any number of processes.

    folder/300/checkpoint.json                       `CheckpointInfo`
    folder/300/params/blocks.mlp.up_DF/zarr.json     a weight, whole: layers in order, no padding (canonical.py)
    folder/300/mu/..., folder/300/nu/...             AdamW's moments
    folder/300/errors/...                            quantisation errors of compressed gradients

Orbax makes a save asynchronous and atomic: all processes write into a temporary folder, and the first one renames it.
The arrays are written by TensorStore, on which Orbax stands as well (zarr_arrays.py). Orbax's own handlers write an
array as a strategy shards it: they cannot leave out the padding of the vocabulary, nor empty slots for layers. Several
processes need a file system that all of them see.
"""

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.handlers import AsyncCheckpointHandler

from strategies.checkpoints import residuals, zarr_arrays
from strategies.checkpoints.canonical import Leaf, host_shards, leaves
from strategies.config import GPTConfig
from strategies.step import State, Step

FORMAT = 1
INFO = "checkpoint.json"
UNFINISHED = ".orbax-checkpoint-tmp"
"""How the name of a folder ends while Orbax writes into it."""
TIMEOUT_SECONDS = 600
"""How long processes wait for each other at the end of a save."""


class CheckpointError(Exception):
    """A checkpoint cannot be written or read. The message says what differs or what is missing."""


@dataclass(frozen=True)
class CheckpointInfo:
    """What stands beside the arrays of a checkpoint.

    Attributes:
        config: the model.
        position: batches that were trained on.
        step: steps that the optimizer has made.
        devices: of the mesh that wrote it.
        compression: of gradients, when it was written.
        scalars: numbers of the optimizer's state, by name.
        arrays: the shape of each array, by name.
        more: facts of the caller.
    """

    config: GPTConfig
    position: int
    step: int
    devices: int
    compression: str
    scalars: Mapping[str, float]
    arrays: Mapping[str, Sequence[int]]
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Saving:
    """A save that may still be running. `path` is the folder that is there when it has finished."""

    path: Path
    finish: Callable[[], None]

    def wait(self) -> None:
        """Wait until the checkpoint is on disk.

        Raises:
            CheckpointError: it could not be written. Older checkpoints are as they were.
        """
        finish, self.finish = self.finish, lambda: None
        try:
            finish()
        except (OSError, ValueError, TimeoutError) as error:
            shutil.rmtree(self.path.with_name(self.path.name + UNFINISHED), ignore_errors=True)
            raise CheckpointError(f"the checkpoint {self.path} cannot be written: {error}") from error


class _Handler(AsyncCheckpointHandler):
    """Writes the shards of this process into the folder that Orbax gives it."""

    async def async_save(self, directory: Any, args: "_Save") -> list[Future]:
        """Copy the shards to the host; then write them on a thread."""
        folder = Path(directory)
        copies = [(leaf, list(host_shards(array))) for leaf, array in args.arrays]

        def write() -> None:
            zarr_arrays.on_threads(lambda copy: zarr_arrays.write(folder, *copy), copies)
            if jax.process_index() == 0:
                _write_info(folder, args.info)

        thread = ThreadPoolExecutor(1)
        written = thread.submit(write)
        thread.shutdown(wait=False)
        return [written]

    def save(self, *_: Any, **__: Any) -> None:
        """Not used: saves are asynchronous."""
        raise NotImplementedError

    def restore(self, *_: Any, **__: Any) -> None:
        """Not used: see `restore` below, which knows where the arrays are to lie."""
        raise NotImplementedError


@ocp.args.register_with_handler(_Handler, for_save=True, for_restore=True)
@dataclass
class _Save(ocp.args.CheckpointArgs):
    """What a save writes."""

    info: CheckpointInfo
    arrays: list[tuple[Leaf, jax.Array]]


@cache
def _checkpointer() -> ocp.AsyncCheckpointer:
    return ocp.AsyncCheckpointer(_Handler(), timeout_secs=TIMEOUT_SECONDS)


_last: list[Saving] = []
"""The latest save. There is one at a time: the next one waits for it."""


def save(
    step: Step,
    state: State,
    folder: str | Path,
    position: int | None = None,
    more: Mapping[str, Any] | None = None,
    keep: int | None = None,
) -> Saving:
    """Save a state as `folder/POSITION`. See `Step.save`."""
    while _last:
        _last.pop().wait()
    pairs = list(zip(leaves(step), jax.tree.leaves(state), strict=True))
    scalars = {leaf.name: _host(array).item() for leaf, array in pairs if leaf.is_scalar}
    arrays = [(leaf, array) for leaf, array in pairs if not leaf.is_scalar]
    info = CheckpointInfo(
        config=step.config,
        position=int(scalars["count"] if position is None else position),
        step=int(scalars["count"]),
        devices=step.mesh.size,
        compression=step.train.compression,
        scalars=scalars,
        arrays={leaf.name: leaf.shape for leaf, _ in arrays},
        more=more or {},
    )
    folder = Path(folder).absolute()
    path = folder / str(info.position)
    if path.exists():
        raise CheckpointError(f"there is a checkpoint {path} already; remove it, or save to another folder")
    try:
        json.dumps(info.more)
        if jax.process_index() == 0:
            _remove_unfinished(folder)
        _checkpointer().save(path, args=_Save(info, arrays))
    except (OSError, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint {path} cannot be written: {error}") from error
    saving = Saving(path, partial(_finish, folder, keep))
    _last.append(saving)
    return saving


def _finish(folder: Path, keep: int | None) -> None:
    """Wait for Orbax, then remove all checkpoints but the `keep` latest."""
    _checkpointer().wait_until_finished()
    if keep is not None and jax.process_index() == 0:
        for position in positions(folder)[:-keep]:
            shutil.rmtree(folder / str(position))


def _remove_unfinished(folder: Path) -> None:
    """Remove what a killed process has left."""
    for path in folder.glob(f"*{UNFINISHED}"):
        shutil.rmtree(path, ignore_errors=True)


def _host(array: jax.Array) -> np.ndarray:
    return np.asarray(array.addressable_data(0))


def _write_info(folder: Path, info: CheckpointInfo) -> None:
    facts = {"format": FORMAT, **dataclasses.asdict(info)}
    (folder / INFO).write_text(json.dumps(facts) + "\n")


def positions(folder: str | Path) -> list[int]:
    """The positions of the checkpoints in a folder that are whole, in order."""
    there = Path(folder).iterdir() if Path(folder).is_dir() else ()
    return sorted(int(path.name) for path in there if path.name.isdecimal() and (path / INFO).is_file())


def read_info(folder: str | Path, at: int | None = None) -> CheckpointInfo:
    """What a checkpoint says of itself; `at` is its position, by default the latest.

    Raises:
        CheckpointError: there is none, it is of a newer format, or it cannot be read.
    """
    found = positions(folder)
    if not found or at not in (None, *found):
        there = f"has those of {', '.join(map(str, found))}" if found else "has none"
        raise CheckpointError(f"no checkpoint{'' if at is None else f' of {at}'}: {folder} {there}")
    path = Path(folder) / str(found[-1] if at is None else at) / INFO
    try:
        facts = json.loads(path.read_text())
        if (number := facts.pop("format")) > FORMAT:
            problem = f"{path} is of format {number}, and this meshmark reads formats up to {FORMAT}"
            raise CheckpointError(f"{problem}; take a newer meshmark")
        return CheckpointInfo(**facts | {"config": GPTConfig(**facts["config"])})
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the checkpoint {path.parent} is damaged: {INFO}: {error}{_others(found, path)}"
        ) from error


def _others(found: Sequence[int], damaged: Path) -> str:
    others = [str(position) for position in found if str(position) != damaged.parent.name]
    return f"; others are at {', '.join(others)}" if others else ""


def restore(step: Step, folder: str | Path, at: int | None = None) -> State:
    """The state of a checkpoint, sharded as the step shards it. See `Step.restore`."""
    while _last:
        _last.pop().wait()
    info = read_info(folder, at)
    path = Path(folder).absolute() / str(info.position)
    _require_same_model(path, info.config, step.config)
    residuals.warn_if_dropped(info.compression, step.train.compression)
    keeps_residuals = info.compression == step.train.compression
    found = leaves(step)
    lacking = [
        leaf
        for leaf in found
        if leaf.name not in (*info.scalars, *info.arrays) or (leaf.is_residual and not keeps_residuals)
    ]
    if torn := [leaf.name for leaf in lacking if leaf.dims]:
        raise CheckpointError(f"the checkpoint {path} is damaged: {INFO} lacks {', '.join(torn)}")
    fresh = _initial(step, {leaf.name for leaf in lacking})

    def value(leaf: Leaf) -> jax.Array:
        if leaf.name in fresh:
            return fresh[leaf.name]
        if leaf.is_scalar:
            return _placed(leaf, info.scalars[leaf.name])
        if leaf.is_residual and step.mesh.size != info.devices:
            return residuals.read(path, leaf, step.mesh.size, info.devices)
        return zarr_arrays.read(path, leaf)

    try:
        values = zarr_arrays.on_threads(value, found)
    except (OSError, ValueError) as error:
        damaged = f"the checkpoint {path} is damaged: {error}"
        raise CheckpointError(f"{damaged}{_others(positions(folder), path / INFO)}") from error
    return jax.tree.unflatten(jax.tree.structure(step.state), values)


def _require_same_model(path: Path, saved: GPTConfig, config: GPTConfig) -> None:
    """Refuse a checkpoint of another model. The padding of the vocabulary may differ: it is not saved."""
    before, now = (dataclasses.asdict(dataclasses.replace(each, vocab_multiple=1)) for each in (saved, config))
    if differs := [f"{name}={before[name]}, not {now[name]}" for name in now if before[name] != now[name]]:
        problem = f"the checkpoint {path} is of another model: {'; '.join(differs)}"
        raise CheckpointError(f"{problem}; build the step with the saved configuration")


def _initial(step: Step, names: set[str]) -> dict[str, jax.Array]:
    """Arrays of the state before the first step. The compiler removes the computation of all others."""
    wanted = [leaf for leaf in leaves(step) if leaf.name in names]
    if not wanted:
        return {}

    def values(key: Any) -> list[jax.Array]:
        arrays = zip(leaves(step), jax.tree.leaves(step.init(key)), strict=True)
        return [array for leaf, array in arrays if leaf.name in names]

    arrays = jax.jit(values, out_shardings=[leaf.stored.sharding for leaf in wanted])(jax.random.key(0))
    return {leaf.name: array for leaf, array in zip(wanted, arrays, strict=True)}


def _placed(leaf: Leaf, number: float) -> jax.Array:
    """A number on all devices."""
    scalar = np.asarray(number, leaf.stored.dtype)
    return jax.make_array_from_callback((), leaf.stored.sharding, lambda _: scalar)
