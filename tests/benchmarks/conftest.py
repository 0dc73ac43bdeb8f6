"""Fixtures that tests of the benchmarks share."""

from collections.abc import Iterator

import pytest

from tests.benchmarks.planted import SHORT_BLOCK_SECONDS


@pytest.fixture(scope="module")
def _short_blocks() -> Iterator[None]:
    """Shorten timed blocks, for files in which nothing depends on their length."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.timing.measure.BLOCK_SECONDS", SHORT_BLOCK_SECONDS)
        yield
