"""Writing a checkpoint with Orbax: all processes write into a temporary folder, and the first one renames it.

Orbax makes a save asynchronous and atomic. The arrays are written by TensorStore, which Orbax also uses
(zarr_arrays.py). Orbax's own handlers write an array as a strategy shards it; they cannot omit the padding of the
vocabulary or empty layer slots.

Only a save imports this module, because loading Orbax takes up to a second.
"""

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jax
import msgspec
import orbax.checkpoint as ocp
from orbax.checkpoint.handlers import AsyncCheckpointHandler

from strategies.checkpoints import info, zarr_arrays
from strategies.checkpoints.canonical import Leaf, host_shards
from strategies.checkpoints.info import CheckpointInfo

MOST_ERRORS = 10
"""Upper bound on errors of a failed save to drain."""
TIMEOUT_SECONDS = 600
"""How long processes wait for each other at the end of a save."""


class Handler(AsyncCheckpointHandler):
    """Writes this process's shards into the folder that Orbax creates."""

    info: CheckpointInfo

    async def async_save(self, directory: Any, *_: Any, **named: Any) -> list[Any]:
        """Copy the shards to the host; then write them on a thread, and return its future."""
        folder, args = Path(directory), named["args"]
        self.info = args.info
        copies = [(leaf, list(host_shards(array))) for leaf, array in args.arrays]

        def write() -> None:
            zarr_arrays.on_threads(lambda copy: zarr_arrays.write(folder, *copy), copies)

        thread = ThreadPoolExecutor(1)
        args.written = thread.submit(write)
        thread.shutdown(wait=False)
        return [args.written]

    def finalize(self, directory: Any) -> None:
        """Write the metadata. Orbax calls this in one process, when all have written their shards."""
        folder, names = Path(directory), self.info.arrays
        written = msgspec.structs.replace(
            self.info,
            array_checksums=zarr_arrays.checksums(folder, names),
            chunk_checksums=zarr_arrays.chunk_checksums(folder, names),
        )
        (folder / info.INFO).write_text(info.as_text(written))

    def save(self, *_: Any, **__: Any) -> None:
        """Not used: saves are asynchronous."""
        raise NotImplementedError

    def restore(self, *_: Any, **__: Any) -> None:
        """Not used: `restoring.py` reads the arrays."""
        raise NotImplementedError


@ocp.args.register_with_handler(Handler, for_save=True, for_restore=True)
@dataclass
class Save(ocp.args.CheckpointArgs):
    """What a save writes."""

    info: CheckpointInfo
    arrays: list[tuple[Leaf, jax.Array]]
    written: Future[None] = field(default_factory=Future)


@cache
def checkpointer() -> ocp.AsyncCheckpointer:
    """The Orbax checkpointer of this process, which runs one save at a time."""
    logging.getLogger("absl").addFilter(lambda record: record.module != "async_checkpointer")  # `Saving.wait` raises it
    # The temporary folder must exist before `Handler` writes into it.
    options = ocp.options.AsyncOptions(timeout_secs=TIMEOUT_SECONDS, create_directories_asynchronously=False)
    return ocp.AsyncCheckpointer(Handler(), async_options=options)


def finish() -> None:
    """Wait until the running save is on disk."""
    try:
        checkpointer().wait_until_finished()
    except (OSError, RuntimeError, ValueError):
        abandon()
        raise


def abandon() -> None:
    """Wait for the threads of a failed save, and drop their errors, which Orbax would raise in the next save.

    Orbax raises one error at a time. It writes its metadata on its own thread, at most once at each end of a save.
    """
    for _ in range(MOST_ERRORS):
        try:
            return checkpointer().wait_until_finished()
        except (OSError, RuntimeError, ValueError):
            continue
