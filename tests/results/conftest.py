"""Fixtures for tests of results."""

import json
from pathlib import Path

import pytest

from tests.results.documents import GIB, candidate, search

CANDIDATES = [
    candidate("fsdp", 12, 2.0, **{"compiled.needed_bytes": 14 * GIB, "compiled.seconds": 2.5}),
    candidate("fsdp", 4, 2.5, **{"compiled.needed_bytes": 20 * GIB}),  # its compiler gave up
    candidate("tensor", 8, 3.0, **{"measured.seconds": 2.75}),
    candidate("tensor", 2, 3.5),
    candidate("data", 20, None),
    candidate("data", 50, None),
    candidate("pipeline", None, None),
]


@pytest.fixture
def found(tmp_path: Path) -> Path:
    """A file of the command."""
    path = tmp_path / "found.json"
    path.write_text(json.dumps(search(*CANDIDATES)))
    return path
