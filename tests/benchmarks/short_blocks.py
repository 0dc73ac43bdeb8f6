"""Plugin `-p tests.benchmarks.short_blocks`: time short blocks, where nothing depends on how long a step takes.

The process of one device, in which `single` is timed and attributed, times short blocks, too.
"""

from multiprocessing.connection import Connection

import pytest

from benchmarks.run.supervise import supervised

SHORT_BLOCK_SECONDS = 0.005


def serve(connection: Connection) -> None:
    """Serve as the process of one device, with short blocks."""
    from benchmarks.run import single_device

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.run.measure.BLOCK_SECONDS", SHORT_BLOCK_SECONDS)
        single_device._serve(connection)


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Shorten timed blocks in this process, and in the processes of one device that it starts."""
    # By name: what is imported here reads the registry of strategies, which `planted` replaces first.
    patch.setattr("benchmarks.run.measure.BLOCK_SECONDS", SHORT_BLOCK_SECONDS)
    patch.setattr("benchmarks.run.single_device._serve", serve)


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Shorten blocks in the process that measures. The supervisor must not load JAX."""
    if supervised():
        shorten(pytest.MonkeyPatch())
