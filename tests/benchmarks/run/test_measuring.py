"""What the measuring process makes for a run, and removes after it."""

import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from benchmarks.cluster import processes
from benchmarks.run.measuring import checkpoint_folder


@pytest.mark.parametrize("first", [True, False])
def test_a_run_leaves_no_checkpoints(first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of several processes makes the folder of checkpoints, and removes it with all that is in it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(processes, "is_first", lambda: first)
    config = Mock(**{"option.checkpoint": True})
    folder = checkpoint_folder(config)
    assert [*tmp_path.iterdir()] == ([folder] if first else [])
    if first:
        assert folder
        (folder / "case" / "2").mkdir(parents=True)
        config.add_cleanup.call_args.args[0]()
    assert [*tmp_path.iterdir()] == []
