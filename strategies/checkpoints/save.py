"""Save: the state of any step as a checkpoint.

Orbax makes a save asynchronous and atomic: all processes write into a temporary folder, and the first one renames it.
The arrays are written by TensorStore, on which Orbax stands as well (zarr_arrays.py). Orbax's own handlers write an
array as a strategy shards it: they cannot leave out the padding of the vocabulary, nor empty slots for layers.
"""

import logging
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.handlers import AsyncCheckpointHandler

from strategies.arguments import require_like
from strategies.checkpoints import info, zarr_arrays
from strategies.checkpoints.canonical import Leaf, host_shards, leaves
from strategies.checkpoints.info import CheckpointError, CheckpointInfo
from strategies.schema import Count, SchemaError, Whole, checked
from strategies.step import State, Step

UNFINISHED = ".orbax-checkpoint-tmp"
"""How the name of a folder ends while Orbax writes into it."""
MOST_ERRORS = 10
"""Upper bound on errors of a failed save to drain."""
TIMEOUT_SECONDS = 600
"""How long processes wait for each other at the end of a save."""


@dataclass(eq=False)
class Saving:
    """A save that may still be running.

    Attributes:
        path: the folder that is there when it has finished.
        finish: waits for it.
        written: what this process writes.
    """

    path: Path
    finish: Callable[[], None]
    written: "Future[None]"

    def check(self) -> None:
        """Say whether this process could write its part, without waiting for it.

        Raises:
            CheckpointError: it could not.
        """
        if self.written.done() and self.written.exception():
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint is on disk.

        Raises:
            CheckpointError: it could not be written. Older checkpoints are as they were.
        """
        if self in _last:
            _last.remove(self)  # so a failure is not reported once more by the next save
        try:
            self.finish()
        except (OSError, RuntimeError, ValueError) as error:
            _abandon()
            shutil.rmtree(self.path.with_name(self.path.name + UNFINISHED), ignore_errors=True)
            problem = CheckpointError(f"the checkpoint {self.path} cannot be written: {error}")
            self.finish = partial(_fail, problem)
            raise problem from error
        self.finish = lambda: None


def _fail(error: CheckpointError) -> None:
    raise error


class _Handler(AsyncCheckpointHandler):
    """Writes the shards of this process into the folder that Orbax gives it."""

    async def async_save(self, directory: Any, *_: Any, **named: Any) -> list[Any]:
        """Copy the shards to the host; then write them on a thread, whose future is returned."""
        folder, args = Path(directory), named["args"]
        copies = [(leaf, list(host_shards(array))) for leaf, array in args.arrays]

        def write() -> None:
            zarr_arrays.on_threads(lambda copy: zarr_arrays.write(folder, *copy), copies)
            if jax.process_index() == 0:
                checksums = zarr_arrays.checksums(folder, args.info.arrays)
                written = msgspec.structs.replace(args.info, array_checksums=checksums)
                (folder / info.INFO).write_text(info.as_text(written))

        thread = ThreadPoolExecutor(1)
        args.written = thread.submit(write)
        thread.shutdown(wait=False)
        return [args.written]

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
    written: "Future[None]" = field(default_factory=Future)


@cache
def _checkpointer() -> ocp.AsyncCheckpointer:
    logging.getLogger("absl").addFilter(lambda record: record.module != "async_checkpointer")  # `Saving.wait` raises it
    # The temporary folder must be there before `_Handler` writes into it.
    options = ocp.options.AsyncOptions(timeout_secs=TIMEOUT_SECONDS, create_directories_asynchronously=False)
    return ocp.AsyncCheckpointer(_Handler(), async_options=options)


_last: list[Saving] = []
"""The latest save. There is one at a time: the next one waits for it."""


def wait_for_last() -> None:
    """Wait for a save that is still running.

    Raises:
        CheckpointError: it failed.
    """
    while _last:
        _last.pop().wait()


def failure_of_last(folder: Path) -> CheckpointError | None:
    """Wait for a save that is still running. If it failed and was to be in this folder, return its failure.

    The failure stays with its `Saving`, and with the next save: it is not that of whoever asks here.
    """
    for saving in [*_last]:
        try:
            saving.wait()
        except CheckpointError as error:
            _last.append(saving)
            return error if saving.path.parent == folder else None
    return None


def save(
    step: Step,
    state: State,
    folder: str | Path,
    position: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    keep: int | None = None,
) -> Saving:
    """Save a state as `folder/POSITION`. See `Step.save`."""
    require_like(state, step.state, "the state")
    folder = info.local(folder)
    try:
        checked(position, Whole | None, "position")
        checked(keep, Count | None, "keep")
    except SchemaError as error:
        raise CheckpointError(f"no checkpoint can be written: {error}") from None
    wait_for_last()
    pairs = list(zip(leaves(step), jax.tree.leaves(state), strict=True))
    scalars = {leaf.name: _host(array).item() for leaf, array in pairs if leaf.is_scalar}
    # Of two arrays of one name the latter is saved, which is the master weight.
    arrays = [*{leaf.name: (leaf, array) for leaf, array in pairs if not leaf.is_scalar}.values()]
    facts = CheckpointInfo(
        config=step.config,
        position=scalars["count"] if position is None else position,
        step=scalars["count"],
        devices=step.mesh.size,
        compression=step.train.compression,
        scalars=scalars,
        arrays={leaf.name: leaf.shape for leaf, _ in arrays},
        array_checksums={},  # they are known when all is written
        metadata={} if metadata is None else metadata,  # pyright: ignore[reportArgumentType] (checked below)
    )
    path = folder / str(facts.position)
    try:
        if path.exists():
            raise CheckpointError(f"there is a checkpoint {path} already; remove it, or save to another folder")
        info.as_text(facts)
        if jax.process_index() == 0:
            _remove_unfinished(folder)
        args = _Save(facts, arrays)
        _checkpointer().save(path, args=args)
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        _abandon()
        raise CheckpointError(f"the checkpoint {path} cannot be written: {error}") from error
    saving = Saving(path, partial(_finish, folder, keep), args.written)
    _last.append(saving)
    return saving


def _finish(folder: Path, keep: int | None) -> None:
    """Wait for Orbax, then remove all checkpoints but the `keep` latest."""
    _checkpointer().wait_until_finished()
    if keep is not None and jax.process_index() == 0:
        for position in info.positions(folder)[:-keep]:
            # First: without it, what is half removed is no checkpoint.
            (folder / str(position) / info.INFO).unlink(missing_ok=True)
            shutil.rmtree(folder / str(position), ignore_errors=True)


def _abandon() -> None:
    """Wait for the threads of a save that failed, and drop their errors, which Orbax would raise in the next save.

    Orbax raises one error at a time. It writes its metadata on a thread of its own, at most once at each end of a save.
    """
    for _ in range(MOST_ERRORS):
        try:
            return _checkpointer().wait_until_finished()
        except (OSError, RuntimeError, ValueError):
            continue


def _remove_unfinished(folder: Path) -> None:
    """Remove what a killed process has left."""
    for path in folder.glob(f"*{UNFINISHED}"):
        shutil.rmtree(path, ignore_errors=True)


def _host(array: jax.Array) -> np.ndarray:
    return np.asarray(array.addressable_data(0))
