"""Plugin `-p tests.benchmarks.short_blocks`: time short blocks, where nothing depends on how long a step takes.

The timing server of one device, in which `single` is timed and attributed, times short blocks, too.
"""

import sys

import pytest

from benchmarks.run import supervise

SHORT_BLOCK_SECONDS = 0.005
COMMAND = [sys.executable, "-m", "tests.benchmarks.short_server"]


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Shorten timed blocks in this process, and in the timing servers that it starts."""
    # By name: what is imported here reads the registry of strategies, which `planted` replaces first.
    patch.setattr("benchmarks.run.measure.BLOCK_SECONDS", SHORT_BLOCK_SECONDS)
    patch.setattr("benchmarks.run.single_device.server._command", COMMAND)


def pytest_load_initial_conftests() -> None:
    """Let the process that measures be this program."""
    supervise.PROGRAM = "tests.benchmarks.short_blocks"


if __name__ == "__main__":
    from benchmarks.run.__main__ import main

    shorten(pytest.MonkeyPatch())
    sys.exit(main())
