"""What tests of the harness share."""

from collections.abc import Iterator

import pytest

from tests.benchmarks.planted import SHORT_BLOCK_SECONDS


@pytest.fixture(scope="module")
def _short_blocks() -> Iterator[None]:
    """For files in which no law depends on how long a block lasts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.timing.measure.BLOCK_SECONDS", SHORT_BLOCK_SECONDS)
        yield
