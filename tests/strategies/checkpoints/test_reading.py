"""A checkpoint that cannot be read: one clear error, and the last good one still restores."""

import dataclasses
import json
import shutil
from functools import partial

import jax
import numpy as np
import pytest

from strategies import STRATEGIES, MeshSpec
from strategies.checkpoints.info import CheckpointError
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


@pytest.mark.parametrize(
    ("harm", "file", "message"),
    [
        (lambda path: path.unlink(), CHUNK, r"mu/blocks.mlp.up_DF has 7 of 8 chunks"),
        (truncate, CHUNK, r"mu/blocks.mlp.up_DF"),
        (flip, CHUNK, r"mu/blocks.mlp.up_DF"),
        (lambda path: path.unlink(), "params/head.norm.bias_D/zarr.json", r"params/head.norm.bias_D is missing"),
        (truncate, "params/head.norm.bias_D/zarr.json", r"head.norm.bias_D/zarr.json\": Invalid JSON"),
        (truncate, "checkpoint.json", r"checkpoint.json"),
        (lambda path: path.write_text("{}"), "checkpoint.json", r"checkpoint.json: 'format'"),
        (lambda path: path.write_text("3"), "checkpoint.json", r"checkpoint.json: it is no JSON object"),
        (lambda path: path.write_text("null"), "checkpoint.json", r"checkpoint.json: it is no JSON object"),
        (lambda path: path.write_bytes(b"\xff"), "checkpoint.json", r"checkpoint.json: 'utf-8' codec can't decode"),
        (partial(change, arrays=3, metadata=[]), "checkpoint.json", r"checkpoint.json: arrays=3, metadata=\[\]"),
    ],
    ids=[
        *("a chunk is missing", "a chunk is short", "a bit has flipped"),
        *("an array is missing", "half an array's JSON", "half JSON", "empty", "3", "null", "not UTF-8", "other kinds"),
    ],
)
def test_a_damaged_checkpoint_is_named(harm, file, message, two):
    """The error names what is damaged and the checkpoint that is not, which restores."""
    harm(two / "2" / file)
    with pytest.raises(CheckpointError, match=rf"(?s)2 is damaged: .*{message}.*; restore another with at=1$") as said:
        step_of("tensor").restore(two)
    assert "tensorstore_spec" not in str(said.value)
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


def test_a_checkpoint_of_another_position_is_damaged(two):
    """A folder that was copied to another position is refused; nothing is read from the one it was copied from."""
    shutil.copytree(two / "2", two / "3")
    message = r"3 is damaged: checkpoint.json is that of position 2; restore another with at=1 or 2$"
    for at in (None, 3):
        with pytest.raises(CheckpointError, match=message):
            step_of("single").restore(two, at=at)


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
    jax.tree.map(np.testing.assert_array_equal, step.restore(two).params, state.params)


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
        step.restore(two)


def test_a_newer_format_is_refused(two):
    """A checkpoint of a later version says which formats this one reads."""
    change(two / "2" / "checkpoint.json", format=2)
    with pytest.raises(CheckpointError, match=r"2/checkpoint.json is of format 2, .* up to 1; take a newer meshmark"):
        step_of("single").restore(two)


@pytest.mark.parametrize(
    ("folder", "at", "message"),
    [
        ("", 3, r"no checkpoint of 3: .* has those of 1, 2"),
        ("nowhere", None, r"no checkpoint: .*nowhere has none"),
        (
            "x" * 300,
            None,
            r"x cannot be read: File name too long|no checkpoint: .*x has none",
        ),
    ],
)
def test_a_checkpoint_that_is_not_there(folder, at, message, two):
    """The error names the folder, and the checkpoints that it has."""
    with pytest.raises(CheckpointError, match=message):
        step_of("single").restore(two / folder, at=at)
