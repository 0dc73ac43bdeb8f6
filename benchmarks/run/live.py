"""What holds the memory of devices while a case trains: bytes of live arrays by holder, and profiles for `pprof`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax

from benchmarks.cluster import processes
from benchmarks.run.measure import Training

Buffers = dict[tuple[int, int], int]
"""Device and address of each buffer -> its bytes."""


def profile_memory(training: Training, folder: Path) -> dict[str, int]:
    """Run one step of a training run, profile the memory before and after it, and return what holds it afterwards.

    The run has a single batch, and has not begun. The profiles, `at_rest.pprof` and `after_step.pprof`
    (`jax.profiler.save_device_memory_profile`), are of the whole process.
    """
    jax.block_until_ready(training.state)
    try:
        save_profile(folder, "at_rest")
    finally:  # without this process, the step of the others would wait in a collective
        training.block(1)
        jax.block_until_ready(training.state)
    save_profile(folder, "after_step")
    batch = next(training.batches)
    return live_bytes(parameter=training.state.params, optimizer=training.state[1:], batch=batch)


def save_profile(folder: Path, moment: str) -> None:
    """Write the memory profile of this process. In a multi-process run, its name has the process's number."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{moment}.pprof" if processes.count() == 1 else f"{moment}.{jax.process_index()}.pprof"
    jax.profiler.save_device_memory_profile(str(folder / name))


def live_bytes(**holders: Any) -> dict[str, int]:
    """Bytes of live arrays on a device of this process, by what holds them; of several devices the fullest counts.

    A buffer counts once on each device that holds a replica of it, however many arrays share it. All other arrays are
    under the name "rest".
    """
    buffers = {name: buffers_of(jax.tree.leaves(tree)) for name, tree in holders.items()}
    held = set().union(*buffers.values())
    buffers["rest"] = {key: size for key, size in buffers_of(jax.live_arrays()).items() if key not in held}
    return {f"memory.live_{name}_bytes": fullest(sizes) for name, sizes in buffers.items()}


def buffers_of(arrays: Iterable[jax.Array]) -> Buffers:
    """The buffers of this process's parts of arrays. Arrays that were donated have none."""
    shards = [shard for array in arrays if not array.is_deleted() for shard in array.addressable_shards]
    return {(shard.device.id, shard.data.unsafe_buffer_pointer()): shard.data.nbytes for shard in shards}


def fullest(buffers: Buffers) -> int:
    """The bytes of these buffers on the device that holds most of them."""
    devices: dict[int, int] = {}
    for (device, _), size in buffers.items():
        devices[device] = devices.get(device, 0) + size
    return max(devices.values(), default=0)
