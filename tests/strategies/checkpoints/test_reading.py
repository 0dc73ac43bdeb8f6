"""A checkpoint that cannot be read: one clear error, and the last good one still restores."""

import dataclasses
import json
import os
import shutil
from contextlib import suppress
from functools import partial

import hypothesis.strategies as st
import jax
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from strategies import STRATEGIES
from strategies.checkpoints import restore, save, zarr_arrays
from strategies.checkpoints.info import CHECKSUM, INFO, CheckpointError, checksum
from strategies.checkpoints.info import read as read_info
from tests.strategies.checkpoints.variants import first_half, step_of
from tests.strategies.equality import CONFIG, TRAIN, build

CHUNK = "mu/blocks.mlp.up_DF/c/3/0/0"


def truncate(path):
    """Leave the first half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    """Change a bit of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def change(path, **facts):
    """Change facts of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def file(name, harm):
    """Harm a file of a checkpoint."""
    return lambda folder: harm(folder / name)


def without(field, name, folder, number=3):
    """Take an array out of a field of a checkpoint's JSON, whose checksum fits."""
    path = as_format(1, folder) if number == 1 else folder / INFO
    facts = json.loads(path.read_text())
    del facts[field][name]
    facts.pop(CHECKSUM, None)
    path.write_text(json.dumps(facts if number == 1 else facts | {CHECKSUM: checksum(facts)}))


def swap(folder):
    """Swap two chunks of the same size."""
    first, second = folder / CHUNK, folder / CHUNK.replace("c/3", "c/2")
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def take(name, how, folder):
    """Take a file or a folder of a later checkpoint of the same model: a copy of it, or a link to it."""
    others = folder.parent / "others"
    save(step_of("single"), first_half("single", 4)[1], others, position=2).wait()
    shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    how(others / "2" / name, folder / name)


def as_format(number, folder):
    """Rewrite a checkpoint's JSON as an earlier format had it; return the path of it.

    Format 1 had no checksums, and format 2 none of chunks.
    """
    path = folder / "checkpoint.json"
    facts = json.loads(path.read_text())
    lacking = "chunk_checksums" if number == 2 else "checksum"
    left = {name: value for name, value in facts.items() if lacking not in name} | {"format": number}
    left.pop(CHECKSUM, None)
    path.write_text(json.dumps(left if number == 1 else left | {CHECKSUM: checksum(left)}))
    return path


ARRAY, ZARR = "nu/embedding.token_VD", "params/head.norm.bias_D/zarr.json"
SMALL_CONFIG = dataclasses.asdict(CONFIG)
DAMAGE = [
    (file(CHUNK, lambda path: path.unlink()), "mu/blocks.mlp.up_DF has 7 of 8 chunks"),
    (file(CHUNK, truncate), "mu/blocks.mlp.up_DF"),
    (file(CHUNK, flip), "mu/blocks.mlp.up_DF"),
    (file(ZARR, lambda path: path.unlink()), "params/head.norm.bias_D is missing"),
    (file(ZARR, truncate), "head.norm.bias_D/zarr.json was changed after it was written"),
    (file(INFO, truncate), "checkpoint.json is cut short or not JSON"),
    (file(INFO, lambda path: path.write_text("{}")), "checkpoint.json: format is None; .* whole number"),
    (file(INFO, lambda path: path.write_text("3")), "checkpoint.json is 3; it must be an object"),
    (file(INFO, lambda path: path.write_bytes(b"\xff")), "checkpoint.json is cut short or not JSON"),
    (file(INFO, partial(change, devices=2)), "checkpoint.json was changed after it was written"),
    # What is intact, and of the right size, is refused where it was not written, and so is any link.
    (swap, "mu/blocks.mlp.up_DF has a chunk that was not written there"),
    (partial(take, CHUNK, shutil.copyfile), "mu/blocks.mlp.up_DF has a chunk that was not written there"),
    (partial(take, CHUNK, os.symlink), f"{CHUNK} is a link; put the file or folder in its place"),
    (partial(take, "mu/blocks.mlp.up_DF", os.symlink), "mu/blocks.mlp.up_DF is a link"),
    (partial(take, "mu", os.symlink), "mu is a link"),
    (partial(take, INFO, os.symlink), "checkpoint.json is a link; put the file in its place"),
    # From format 3 each array has a checksum of its chunks: without it they would not be checked.
    (partial(without, "chunk_checksums", ARRAY), "checkpoint.json lacks checksums of arrays"),
    (partial(without, "arrays", ARRAY, number=1), f"checkpoint.json lacks {ARRAY}"),
    # In format 1, which has no checksums, each field is there, of its type and in its range.
    *(
        (lambda folder, facts=facts: change(as_format(1, folder), **facts), f"checkpoint.json.*{message}")
        for facts, message in (
            ({"scalars": {}}, "step is 3, and AdamW's count None"),
            ({"scalars": {"count": 4}}, "step is 3, and AdamW's count 4"),
            ({"scalars": {"count": True}, "step": 1}, "scalars.* it must be a whole number or a number"),
            ({"position": -1}, "position is -1; it must be a whole number of at least 0"),
            ({"devices": 2.5}, "devices is 2.5; it must be a whole number"),
            ({"compression": "zip"}, "compression is 'zip'; it can be none, int8, onebit"),
            ({"metadata": []}, r"metadata is \[\]; it must be an object"),
            ({"config": {"layers": 2}}, "config lacks embed"),
            ({"config": SMALL_CONFIG | {"tied": "no"}}, "config.tied is 'no'; it must be true or"),
            ({"config": SMALL_CONFIG | {"toys": 2}}, "config has an unknown field 'toys'"),
            ({"later": 1}, "has an unknown field 'later'"),
        )
    ),
]


@pytest.mark.parametrize(("harm", "message"), DAMAGE, ids=lambda value: value if isinstance(value, str) else "")
def test_a_damaged_checkpoint_is_named(harm, message, two):
    """The error names what is damaged and the checkpoint that is not, which restores."""
    harm(two / "2")
    with pytest.raises(
        CheckpointError, match=rf"(?s)2 is damaged: .*{message}.*; remove it, or restore another with at=1$"
    ) as said:
        restore(step_of("single"), two)
    assert "tensorstore_spec" not in str(said.value)
    if "blocks.mlp" in message:
        _, state = first_half("single", 3)
        jax.tree.map(np.testing.assert_array_equal, restore(step_of("single"), two, at=1), state)


def test_what_is_of_another_place_or_time_is_refused(two):
    """A folder that was copied to another position, and a checkpoint of a later version."""
    shutil.copytree(two / "2", two / "3")
    message = "3 is damaged: checkpoint.json is that of position 2; remove it, or restore another with at=1 or 2$"
    for at in (None, 3):
        with pytest.raises(CheckpointError, match=message):
            restore(step_of("single"), two, at=at)
    change(two / "2" / INFO, format=4)
    with pytest.raises(CheckpointError, match=r"checkpoint.json is of format 4, .* to 3; install a newer meshmark"):
        restore(step_of("single"), two, at=2)


@pytest.mark.parametrize("number", [1, 2])
def test_a_checkpoint_of_an_earlier_format_restores(number, two):
    """Format 1 had no checksums and format 2 none of all chunks of an array: both restore."""
    as_format(number, two / "2")
    _, state = first_half("single", 3)
    jax.tree.map(np.testing.assert_array_equal, restore(step_of("single"), two, at=2), state)


SMALL = tuple(
    f"{group}/{name}/zarr.json" for group in ("params", "mu") for name in ("embedding.token_VD", "blocks.mlp.up_DF")
)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_changed_byte_changes_the_state(data, saved):
    """A byte of the metadata that changes, is missing or is doubled is refused, or changes nothing that is restored."""
    path = saved / "2" / data.draw(st.sampled_from(["checkpoint.json", "checkpoint.json", *SMALL]))
    before = path.read_bytes()
    at = data.draw(st.integers(0, len(before) - 1))
    harmed = data.draw(
        st.one_of(
            st.integers(0, 7).map(lambda bit: bytes([before[at] ^ 1 << bit])),
            st.sampled_from([b"", before[at : at + 1] * 2, b" ", b"0", b"9", b"-", b"."]),
        )
    )
    path.write_bytes(before[:at] + harmed + before[at + 1 :])
    try:
        with suppress(CheckpointError):
            info = read_info(saved, at=2)
            assert msgspec.structs.replace(info, position=1) == read_info(saved, at=1)
            same = info.array_checksums == zarr_arrays.checksums(saved / "2", info.array_checksums)
            assert path.name == "checkpoint.json" or same == (path.read_bytes() == before)
    finally:
        path.write_bytes(before)


def test_another_model_is_refused(two):
    """The error names every size that differs, saved and wanted."""
    step = build("fsdp", "fsdp=8", dataclasses.replace(CONFIG, tied=False))
    other = dataclasses.replace(step, config=dataclasses.replace(step.config, layers=4))
    with pytest.raises(
        CheckpointError, match=r"of another model: layers=8, not 4; tied=True, not False; build the step"
    ):
        restore(other, two)


def test_another_padding_is_no_other_model(two):
    """The padding of the vocabulary is not saved: it may differ."""
    step = STRATEGIES["single"].build(dataclasses.replace(CONFIG, vocab_multiple=1), "data=1", TRAIN)
    _, state = first_half("single", 3)
    table = restore(step, two).params["embedding"]["token_VD"]
    assert table.shape[0] == CONFIG.vocab
    np.testing.assert_array_equal(table, state.params["embedding"]["token_VD"][: CONFIG.vocab])


@pytest.mark.parametrize(
    "same",
    [
        {"mlp": 4 * CONFIG.embed},
        {"attention_window": CONFIG.sequence},
        {"attention_stride": 1},
        {"attention_stride": CONFIG.sequence, "attention_pattern": "fixed", "attention_summary": 2},
    ],
    ids=str,
)
def test_a_model_may_be_written_in_other_words(same, two):
    """Options that amount to the same sizes and the same attention are the same model."""
    step = dataclasses.replace(step_of("single"), config=dataclasses.replace(CONFIG, **same))
    _, state = first_half("single", 3)
    jax.tree.map(np.testing.assert_array_equal, restore(step, two).params, state.params)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"mlp": 2 * CONFIG.embed}, "mlp=128, not 64"),
        ({"attention_window": 4}, "attention_window=None, not 4"),
        ({"attention_stride": 4}, "attention_window=None, not 4; attention_stride=None, not 4"),
    ],
    ids=str,
)
def test_other_sizes_and_other_attention_are_another_model(other, message, two):
    """The error names what the options amount to."""
    step = dataclasses.replace(step_of("single"), config=dataclasses.replace(CONFIG, **other))
    with pytest.raises(CheckpointError, match=f"of another model: {message}; build the step"):
        restore(step, two)


@pytest.mark.parametrize(
    ("folder", "at", "message"),
    [
        ("", 3, r"no checkpoint of 3: .* has those of 1, 2"),
        ("nowhere/at/all", None, r"no checkpoint: .*all has none, because it does not exist$"),
        ("2", None, r"no checkpoint: .*two/2 has none; name .*two$"),
        ("x" * 300, None, r"x cannot be read: File name too long|no checkpoint: .*x has none"),
    ],
)
def test_a_checkpoint_that_is_not_there(folder, at, message, two):
    """The error names the folder, and the checkpoints that it has, or the folder that has some."""
    with pytest.raises(CheckpointError, match=message):
        restore(step_of("single"), two / folder, at=at)


def test_the_folder_of_a_training_names_that_of_its_checkpoints(two):
    """They are in a folder of it."""
    two.rename(two.parent / "checkpoints")
    with pytest.raises(CheckpointError, match=r"has none; name .*/checkpoints$"):
        restore(step_of("single"), two.parent)
