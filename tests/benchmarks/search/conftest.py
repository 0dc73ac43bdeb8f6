"""Tables and sentences of a search on one line each."""

import pytest

from benchmarks.cli import tables


@pytest.fixture
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables and sentences do not wrap."""
    monkeypatch.setattr(tables, "PLAIN_WIDTH", 400)
