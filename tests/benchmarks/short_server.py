"""The timing server with short blocks: `python -m tests.benchmarks.short_server`."""

import pytest

from benchmarks.run.server import main
from tests.benchmarks.short_blocks import shorten

if __name__ == "__main__":
    shorten(pytest.MonkeyPatch())
    main()
