"""How long a step's state takes to save, and to restore: under the same strategy, and under `single`.

What is restored was written a moment ago, so it comes from the page cache and not from the disk.
"""

import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import jax

from benchmarks.cases.failures import status_of
from benchmarks.cluster import processes
from strategies import State, Step
from strategies.checkpoints import leaves, restore, save

REPEATS = 3
"""Saves and restores of each case; a row has the medians."""


def checkpoint_times(step: Step, state: State, single: Callable[[], Step], folder: Path) -> dict[str, float | None]:
    """Save and restore a state, several times; the columns of a row. The last checkpoint is left in the folder.

    Args:
        step: the step.
        state: of the step. It is not donated.
        single: builds the step of one device with the same work.
        folder: for the checkpoints. With several processes all of them call this, and all see the folder.

    Raises:
        CheckpointError: a checkpoint cannot be written or read.
    """
    import strategies.checkpoints.writing  # noqa: F401 (Orbax, which takes up to a second, is no part of a save)

    saves = [_save(step, state, folder, position) for position in range(REPEATS)]
    restores = [_restore(step, folder) for _ in range(REPEATS)]
    blocking, whole = zip(*saves, strict=True)
    total_bytes = sum({leaf.name: leaf.disk_bytes for leaf in leaves(step)}.values())
    save_seconds, restore_seconds = statistics.median(whole), statistics.median(restores)
    return {
        "checkpoint.total_bytes": total_bytes,
        "checkpoint.save_blocking_seconds": statistics.median(blocking),
        "checkpoint.save_seconds": save_seconds,
        "checkpoint.save_bytes_per_second": total_bytes / save_seconds,
        "checkpoint.restore_seconds": restore_seconds,
        "checkpoint.restore_bytes_per_second": total_bytes / restore_seconds,
        "checkpoint.restore_single_seconds": _restore_single(single, folder),
    }


def _save(step: Step, state: State, folder: Path, position: int) -> tuple[float, float]:
    """Seconds of the blocking part of a save, and of all of it. The checkpoint before is removed afterwards."""
    start = time.perf_counter()
    saving = save(step, state, folder, position=position)
    blocking = time.perf_counter() - start
    saving.wait()
    whole = time.perf_counter() - start
    if processes.is_first():
        shutil.rmtree(folder / str(position - 1), ignore_errors=True)
    return blocking, whole


def _restore_single(single: Callable[[], Step], folder: Path) -> float | None:
    """Seconds to restore under `single`; None if the state does not fit on one device."""
    try:
        step = single()
        return statistics.median(_restore(step, folder) for _ in range(REPEATS))
    except Exception as error:
        if status_of(error) in ("oom", "infeasible"):
            return None
        raise


def _restore(step: Step, folder: Path) -> float:
    """Seconds until a restored state is on the devices."""
    start = time.perf_counter()
    jax.block_until_ready(restore(step, folder))
    return time.perf_counter() - start
