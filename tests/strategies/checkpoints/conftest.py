"""A folder with two checkpoints, for tests of checkpoints that cannot be written or read."""

import shutil

import pytest

from strategies.checkpoints import save
from tests.strategies.checkpoints.variants import first_half, step_of


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """A folder with the same state at positions 1 and 2, saved under `single`, which writes fewest files."""
    folder = tmp_path_factory.mktemp("two") / "saved"
    _, state = first_half("single", 3)
    for position in (1, 2):
        save(step_of("single"), state, folder, position=position).wait()
    return folder


@pytest.fixture
def two(saved, tmp_path):
    """A copy of `saved`, which a test may harm."""
    return shutil.copytree(saved, tmp_path / "two")
