"""A checkpoint that cannot be written or read: one clear error, and the last good one still restores."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from strategies import STRATEGIES, MeshSpec
from strategies.checkpoints import zarr_arrays
from strategies.checkpoints.info import CheckpointError, positions
from strategies.checkpoints.info import read as read_info
from strategies.checkpoints.save import UNFINISHED
from tests.processes import LIMIT_SECONDS, environment
from tests.strategies.checkpoints.variants import first_half, step_of
from tests.strategies.equality import CONFIG, TRAIN, build
from tests.strategies.sampling import nightly

CHUNK = "mu/blocks.mlp.up_DF/c/3/0/0"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with the same state at positions 1 and 2, saved under `single`, which writes fewest files."""
    folder = tmp_path_factory.mktemp("two") / "saved"
    _, state = first_half("single", 3)
    for position in (1, 2):
        step_of("single").save(state, folder, position=position).wait()
    return folder


@pytest.fixture
def two(saved, tmp_path):
    """A copy of `saved`, which a test may harm."""
    return shutil.copytree(saved, tmp_path / "two")


def truncate(path):
    """Leave the first half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    """Change a bit of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "file", "message"),
    [
        (lambda path: path.unlink(), CHUNK, r"mu/blocks.mlp.up_DF has 7 of 8 chunks"),
        (truncate, CHUNK, r"mu/blocks.mlp.up_DF"),
        (flip, CHUNK, r"mu/blocks.mlp.up_DF"),
        (lambda path: path.unlink(), "params/head.norm.bias_D/zarr.json", r"params/head.norm.bias_D"),
        (truncate, "checkpoint.json", r"checkpoint.json"),
        (lambda path: path.write_text("{}"), "checkpoint.json", r"checkpoint.json: 'format'"),
    ],
    ids=["a chunk is missing", "a chunk is short", "a bit has flipped", "an array is missing", "half JSON", "no JSON"],
)
def test_a_damaged_checkpoint_is_named(harm, file, message, two):
    """The error names what is damaged and the checkpoint that is not, which restores."""
    harm(two / "2" / file)
    with pytest.raises(CheckpointError, match=rf"(?s)2 is damaged: .*{message}.*; restore another with at=1$"):
        step_of("tensor").restore(two)
    _, state = first_half("single", 3)
    jax.tree.map(np.testing.assert_array_equal, step_of("single").restore(two, at=1), state)


def test_a_checkpoint_without_an_array_is_damaged(two):
    """An array that the model has and the checkpoint does not list is named."""
    path = two / "2" / "checkpoint.json"
    facts = json.loads(path.read_text())
    del facts["arrays"]["nu/embedding.token_VD"]
    path.write_text(json.dumps(facts))
    with pytest.raises(
        CheckpointError, match=r"checkpoint.json lacks nu/embedding.token_VD; restore another with at=1"
    ):
        step_of("single").restore(two)


def test_another_model_is_refused(two):
    """The error names every size that differs, saved and wanted."""
    step = build("fsdp", MeshSpec.parse("fsdp=8"), tied=False)
    other = dataclasses.replace(step, config=dataclasses.replace(step.config, layers=4))
    with pytest.raises(
        CheckpointError, match=r"of another model: layers=8, not 4; tied=True, not False; build the step"
    ):
        other.restore(two)


def test_another_padding_is_no_other_model(two):
    """The padding of the vocabulary is not saved: it may differ."""
    step = STRATEGIES["single"].build(dataclasses.replace(CONFIG, vocab_multiple=1), "data=1", TRAIN)
    _, state = first_half("single", 3)
    table = step.restore(two).params["embedding"]["token_VD"]
    assert table.shape[0] == CONFIG.vocab
    np.testing.assert_array_equal(table, state.params["embedding"]["token_VD"][: CONFIG.vocab])


def test_a_newer_format_is_refused(two):
    """A checkpoint of a later version says which formats this one reads."""
    path = two / "2" / "checkpoint.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    with pytest.raises(CheckpointError, match=r"2/checkpoint.json is of format 2, .* up to 1; take a newer meshmark"):
        step_of("single").restore(two)


@pytest.mark.parametrize(
    ("folder", "at", "message"),
    [("", 3, r"no checkpoint of 3: .* has those of 1, 2"), ("nowhere", None, r"no checkpoint: .*nowhere has none")],
)
def test_a_checkpoint_that_is_not_there(folder, at, message, two):
    """The error names the folder, and the checkpoints that it has."""
    with pytest.raises(CheckpointError, match=message):
        step_of("single").restore(two / folder, at=at)


def test_a_checkpoint_is_not_overwritten(two):
    """A second save at the same position is refused."""
    _, state = first_half("single", 3)
    with pytest.raises(CheckpointError, match=r"there is a checkpoint .*/2 already; remove it, or save to another"):
        step_of("single").save(state, two, position=2)


def test_facts_that_are_no_json_are_refused(two):
    """The caller's facts are checked before anything is written."""
    _, state = first_half("single", 3)
    with pytest.raises(CheckpointError, match=r"4 cannot be written: Object of type set is not JSON serializable"):
        step_of("single").save(state, two, position=4, metadata={"seen": {1}})
    with pytest.raises(CheckpointError, match=r"4 cannot be written: Out of range float values are not JSON compliant"):
        step_of("single").save(state, two, position=4, metadata={"loss": float("nan")})
    assert positions(two) == [1, 2]


def test_a_save_that_failed_does_not_fail_the_next_one(tmp_path, monkeypatch):
    """Each wait for a failed save says so. The next save is not told of it again, and works."""

    def refuse(*_):
        raise OSError("the disk is full")

    _, state = first_half("single", 3)
    with monkeypatch.context() as full:
        full.setattr(zarr_arrays, "write", refuse)
        saving = step_of("single").save(state, tmp_path, position=1)
        for _ in range(2):
            with pytest.raises(CheckpointError, match="1 cannot be written: the disk is full"):
                saving.wait()
    step_of("single").save(state, tmp_path, position=2).wait()
    assert [path.name for path in tmp_path.iterdir()] == ["2"]


WRITER = """
import resource, signal, sys
import jax
jax.config.update("jax_num_cpu_devices", 8)
from strategies.checkpoints.info import CheckpointError
from tests.strategies.checkpoints.variants import step_of
from tests.strategies.equality import initial
step = step_of("fsdp")
state = initial(step)
step.save(state, sys.argv[1], position=1).wait()
print("saved", flush=True)
if sys.argv[2] == "limited":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    try:
        step.save(state, sys.argv[1], position=2).wait()
    except CheckpointError as error:
        print(error)
else:
    position = 2
    while True:
        step.save(state, sys.argv[1], position=position, keep=2).wait()
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
    step_of("tensor").restore(tmp_path)


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

    def save(*new):
        for position in new:
            step_of("fsdp").save(state, small_disk / "saved", position=position).wait()

    save(1)
    with pytest.raises(CheckpointError, match=r"/saved/\d cannot be written: .*No space left on device"):
        save(2, 3)
    whole = positions(small_disk / "saved")
    assert [path.name for path in sorted((small_disk / "saved").iterdir())] == [str(position) for position in whole]
    for position in whole:
        jax.tree.map(np.testing.assert_array_equal, step_of("fsdp").restore(small_disk / "saved", at=position), state)


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
    """Kill -9 inside a save, after so many saves: what is whole restores, and the next save removes what is not."""
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
        step_of("tensor").restore(tmp_path, at=position)
    _, state = first_half("tensor", 3)
    step_of("tensor").save(state, tmp_path, position=there[-1] + 1).wait()
    assert not list(tmp_path.glob(f"*{UNFINISHED}"))
    assert read_info(tmp_path).position == there[-1] + 1
