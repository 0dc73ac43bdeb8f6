"""Save the state of any step as a checkpoint.

Only a save loads Orbax (writing.py).
"""

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from strategies.arguments import require_instance, require_like, require_placed, require_present
from strategies.checkpoints import info
from strategies.checkpoints.canonical import leaves
from strategies.checkpoints.info import CheckpointError, CheckpointInfo
from strategies.schema import Count, SchemaError, Whole, checked
from strategies.step import State, Step

UNFINISHED = ".orbax-checkpoint-tmp"
"""Suffix of a folder's name while Orbax writes into it."""


@dataclass(eq=False)
class Saving:
    """A save that may still be running.

    Attributes:
        path: the folder, which appears only once the checkpoint is complete.
        finish: waits for it.
        written: this process's write.
    """

    path: Path
    finish: Callable[[], None]
    written: Future[None]

    def check(self) -> None:
        """Raise if this process has failed to write its part; do not wait for it.

        Raises:
            CheckpointError: it failed.
        """
        if self.written.done() and self.written.exception():
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint is on disk.

        Raises:
            CheckpointError: it could not be written. Older checkpoints are unchanged.
        """
        if self in _last:
            _last.remove(self)  # so the next save does not report the failure again
        try:
            self.finish()
        except (OSError, RuntimeError, ValueError) as error:
            shutil.rmtree(self.path.with_name(self.path.name + UNFINISHED), ignore_errors=True)
            problem = CheckpointError(f"the checkpoint {self.path} cannot be written: {error}")
            self.finish = partial(_fail, problem)
            raise problem from error
        self.finish = lambda: None


def _fail(error: CheckpointError) -> None:
    raise error


_last: list[Saving] = []
"""The latest save. Only one runs at a time: the next one waits for it."""


def wait_for_last() -> None:
    """Wait for a save that is still running."""
    while _last:
        _last.pop().wait()


def failure_of_last(folder: Path) -> CheckpointError | None:
    """Wait for a running save, and return its failure if it was in this folder. The next save still raises it."""
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
    *,
    position: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    keep: int | None = None,
) -> Saving:
    """Save a state as `folder/POSITION`, in a form that any strategy restores.

    It returns when the state is on the host and may be donated; `wait()` of the result waits until it is on disk. An
    incomplete checkpoint has a temporary name. All processes must call this, and each writes its own shards.

    Args:
        step: any step.
        state: of this step.
        folder: of all checkpoints of a training run, on a file system that all processes share.
        position: number of batches trained on; default: the number of optimizer steps.
        metadata: facts to save with it, as JSON.
        keep: how many of the latest checkpoints to keep; default: all.

    Raises:
        CheckpointError: it cannot be written, or this position exists already. Other checkpoints stay.
        Infeasible: `step` is not a `Step`, or the state is not of this step.
    """
    from strategies.checkpoints import writing  # loads Orbax, which takes up to a second

    expected = require_instance(step, Step, "the step").state
    require_like(require_instance(state, State, "the state"), expected, "the state")
    require_present(state, "the state")
    require_placed(jax.tree.leaves(state), jax.tree.leaves(expected), "the state")
    folder = info.local(folder)
    try:
        checked(position, Whole | None, "position")
        checked(keep, Count | None, "keep")
    except SchemaError as error:
        raise CheckpointError(f"no checkpoint can be written: {error}") from None
    wait_for_last()
    pairs = list(zip(leaves(step), jax.tree.leaves(state), strict=True))
    # If a name occurs twice the latter array is saved, the master weight.
    arrays = [*{leaf.name: (leaf, array) for leaf, array in pairs if not leaf.is_scalar}.values()]
    scalars = {leaf.name: _host(array).item() for leaf, array in pairs if leaf.is_scalar}
    facts = _described(step, scalars, {leaf.name: leaf.shape for leaf, _ in arrays}, position, metadata)
    path = folder / str(facts.position)
    try:
        if path.exists():
            raise CheckpointError(f"there is a checkpoint {path} already; remove it, or save to another folder")
        info.as_text(facts)
        if jax.process_index() == 0:
            _remove_unfinished(folder)
        args = writing.Save(facts, arrays)
        writing.checkpointer().save(path, args=args)
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        writing.abandon()
        raise CheckpointError(f"the checkpoint {path} cannot be written: {error}") from error
    saving = Saving(path, partial(_finish, writing.finish, folder, keep), args.written)
    _last.append(saving)
    return saving


def _described(
    step: Step,
    scalars: dict[str, int | float],
    shapes: dict[str, tuple[int, ...]],
    position: int | None,
    metadata: Mapping[str, Any] | None,
) -> CheckpointInfo:
    """The checkpoint's metadata. The default position is the number of optimizer steps."""
    count: Any = scalars["count"]
    return CheckpointInfo(
        config=step.config,
        position=count if position is None else position,
        step=count,
        devices=step.mesh.size,
        compression=step.train.compression,
        scalars=scalars,
        arrays=shapes,
        array_checksums=shapes.fromkeys(shapes, ""),  # known after writing
        chunk_checksums=shapes.fromkeys(shapes, ""),
        metadata={} if metadata is None else metadata,  # pyright: ignore[reportArgumentType] (`as_text` checks it)
    )


def _finish(finish: Callable[[], None], folder: Path, keep: int | None) -> None:
    """Wait for the save, then remove all checkpoints except the `keep` latest."""
    finish()
    if keep is not None and jax.process_index() == 0:
        for position in info.positions(folder)[:-keep]:
            # Removed first: without it a half-removed folder is not a checkpoint.
            (folder / str(position) / info.INFO).unlink(missing_ok=True)
            shutil.rmtree(folder / str(position), ignore_errors=True)


def _remove_unfinished(folder: Path) -> None:
    for path in folder.glob(f"*{UNFINISHED}"):
        shutil.rmtree(path, ignore_errors=True)


def _host(array: jax.Array) -> np.ndarray:
    return np.asarray(array.addressable_data(0))
