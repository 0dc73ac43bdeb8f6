"""A checkpoint that cannot be written: one clear error, and the last good one still restores."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from unittest.mock import Mock

import jax
import numpy as np
import pytest

from strategies import Infeasible
from strategies.checkpoints import restore, save, zarr_arrays
from strategies.checkpoints.info import CheckpointError, positions
from strategies.checkpoints.info import read as read_info
from strategies.checkpoints.saving import UNFINISHED
from tests.processes import LIMIT_SECONDS, environment
from tests.strategies.checkpoints.variants import first_half, step_of
from tests.strategies.equality import CONFIG, build, initial
from tests.strategies.sampling import nightly


def test_a_checkpoint_is_not_overwritten(two):
    """A second save at the same position is refused."""
    _, state = first_half("single", 3)
    with pytest.raises(CheckpointError, match=r"there is a checkpoint .*/2 already; remove it, or save to another"):
        save(step_of("single"), state, two, position=2)


def test_a_folder_that_cannot_be_is_refused(tmp_path):
    """A folder that the file system refuses is one clear error."""
    _, state = first_half("single", 3)
    with pytest.raises(CheckpointError, match=r"x/3 cannot be written: .*File name too long"):
        save(step_of("single"), state, tmp_path / ("x" * 300))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metadata": {"seen": {1}}}, "4 cannot be written: metadata is not JSON: Object of type set"),
        ({"metadata": {"loss": float("nan")}}, "4 cannot be written: Out of range float values are not JSON compliant"),
        ({"metadata": [1]}, r"4 cannot be written: .*metadata is \[1\]; it must be an object"),
        ({"metadata": {1: 2}}, r"metadata=\{1: 2\} would be read as \{'1': 2\}"),
        ({"metadata": {"text": "\ud800"}}, "metadata is cut short or not JSON"),
        ({"position": -1}, "position is -1; it must be a whole number of at least 0"),
        ({"position": 2.5}, "position is 2.5; it must be a whole number"),
        ({"position": True}, "position is True; it must be a whole number"),
        ({"position": 2**63}, "position is 9223372036854775808; it must be a whole number of at most"),
        ({"keep": 0}, "keep is 0; it must be a whole number of at least 1"),
        ({"keep": 1.5}, "keep is 1.5; it must be a whole number"),
    ],
    ids=str,
)
def test_what_could_not_be_restored_is_not_saved(given, message, two):
    """What a save is given is checked as a restore would check it, before anything is written."""
    _, state = first_half("single", 3)
    before = sorted(two.iterdir())
    with pytest.raises(CheckpointError, match=message):
        save(step_of("single"), state, two, **{"position": 4, **given})
    assert sorted(two.iterdir()) == before


def test_the_state_of_another_step_is_not_saved(two):
    """A state of another model is refused by the name of its first array that differs."""
    other = initial(build("single", "data=1", dataclasses.replace(CONFIG, tied=False)))
    with pytest.raises(Infeasible, match="the state does not have this step's arrays"):
        save(step_of("single"), other, two, position=4)


def test_a_folder_may_be_named_by_another_path(tmp_path):
    """A folder is the same by `..`, by a link, and with a slash at its end."""
    _, state = first_half("single", 3)
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for position, name in enumerate(["a/../a", "link", "a/"]):
        save(step_of("single"), state, f"{tmp_path}/{name}", position=position).wait()
    assert positions(tmp_path / "a") == [0, 1, 2]


def test_a_save_that_failed_does_not_fail_the_next_one(tmp_path, monkeypatch):
    """Each wait for a failed save says so. The next save is not told of it again, and works.

    Nor is it told of the metadata that Orbax writes on a thread of its own, and that come too late.
    """
    opened = open

    def slow(path, *how, **named):
        if str(path).endswith("_METADATA"):
            time.sleep(0.2)
        return opened(path, *how, **named)

    _, state = first_half("single", 3)
    with monkeypatch.context() as full:
        full.setattr(zarr_arrays, "write", Mock(side_effect=OSError("the disk is full")))
        full.setattr("builtins.open", slow)
        saving = save(step_of("single"), state, tmp_path, position=1)
        for _ in range(2):
            with pytest.raises(CheckpointError, match="1 cannot be written: the disk is full"):
                saving.wait()
    save(step_of("single"), state, tmp_path, position=2).wait()
    assert [path.name for path in tmp_path.iterdir()] == ["2"]


def test_a_save_that_failed_does_not_fail_a_restore(two, monkeypatch):
    """A restore warns if the latest checkpoint would be another one. The failure is left to the next save."""
    _, state = first_half("single", 3)
    with monkeypatch.context() as full:
        full.setattr(zarr_arrays, "write", Mock(side_effect=OSError("the disk is full")))
        save(step_of("single"), state, two, position=3)
        restore(step_of("single"), two, at=1)
        with pytest.warns(RuntimeWarning, match=r"/3 cannot be written: the disk is full; the one of 2 is restored"):
            restore(step_of("single"), two)
    with pytest.raises(CheckpointError, match="/3 cannot be written: the disk is full"):
        save(step_of("single"), state, two, position=4)
    save(step_of("single"), state, two, position=4).wait()
    assert positions(two) == [1, 2, 4]


WRITER = """
import resource, signal, sys
import jax
jax.config.update("jax_num_cpu_devices", 8)
from strategies.checkpoints import CheckpointError, save
from tests.strategies.checkpoints.variants import step_of
from tests.strategies.equality import initial
step = step_of("fsdp")
state = initial(step)
save(step, state, sys.argv[1], position=1).wait()
print("saved", flush=True)
if sys.argv[2] == "limited":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    try:
        save(step, state, sys.argv[1], position=2).wait()
    except CheckpointError as error:
        print(error)
else:
    position = 2
    while True:
        save(step, state, sys.argv[1], position=position, keep=2).wait()
        position += 1
"""
"""Saves once, then onto a file system that refuses large files as a full disk refuses all, or again and again."""


def start_writer(folder, how):
    """Start `WRITER`, and wait for its first checkpoint."""
    command = [sys.executable, "-c", WRITER, str(folder), how]
    writer = subprocess.Popen(command, env=environment(), stdout=-1, stderr=-1, text=True)
    assert writer.stdout
    if writer.stdout.readline() != "saved\n":
        pytest.fail(writer.communicate()[1])
    return writer


def test_a_full_disk_leaves_the_last_good_one(tmp_path):
    """A disk that takes no more is one clear error. Nothing unfinished is left, and older checkpoints restore."""
    writer = start_writer(tmp_path, "limited")
    said, complaint = writer.communicate(timeout=LIMIT_SECONDS)
    assert writer.returncode == 0
    assert f"the checkpoint {tmp_path / '2'} cannot be written" in said
    assert "File too large" in said
    assert "Traceback" not in complaint
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    restore(step_of("tensor"), tmp_path)


@pytest.fixture
def small_disk(tmp_path):
    """A file system with room for two checkpoints of the small model under fsdp, and not for three."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("takes Linux and root, to mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.processes
def test_a_file_system_without_space_leaves_the_last_good_one(small_disk):
    """As above, on a file system that is really full."""
    _, state = first_half("fsdp", 3)

    def save_at(*new):
        for position in new:
            save(step_of("fsdp"), state, small_disk / "saved", position=position).wait()

    save_at(1)
    with pytest.raises(CheckpointError, match=r"/saved/\d cannot be written: .*No space left on device"):
        save_at(2, 3)
    whole = positions(small_disk / "saved")
    assert [path.name for path in sorted((small_disk / "saved").iterdir())] == [str(position) for position in whole]
    for position in whole:
        jax.tree.map(np.testing.assert_array_equal, restore(step_of("fsdp"), small_disk / "saved", at=position), state)


def stop_inside_save(writer, folder):
    """Stop a process at a moment when a save has written some arrays and is not finished."""
    while True:
        time.sleep(0.01)
        writer.send_signal(signal.SIGSTOP)
        os.waitpid(writer.pid, os.WUNTRACED)  # until it has stopped
        if list(folder.glob(f"*{UNFINISHED}/*/*/c")):
            return
        writer.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("saves", [1, *nightly(2, 5)])
def test_a_killed_save_leaves_the_last_good_one(saves, tmp_path):
    """Kill -9 inside a save, after that many saves: what is whole restores, and the next save removes what is not."""
    writer = start_writer(tmp_path, "endless")
    while positions(tmp_path)[-1] < saves:
        time.sleep(0.01)
    stop_inside_save(writer, tmp_path)
    writer.kill()
    writer.communicate()
    assert writer.returncode == -signal.SIGKILL
    assert list(tmp_path.glob(f"*{UNFINISHED}"))
    there = positions(tmp_path)
    for position in there:
        restore(step_of("tensor"), tmp_path, at=position)
    _, state = first_half("tensor", 3)
    save(step_of("tensor"), state, tmp_path, position=there[-1] + 1).wait()
    assert not list(tmp_path.glob(f"*{UNFINISHED}"))
    assert read_info(tmp_path).position == there[-1] + 1
