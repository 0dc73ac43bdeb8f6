"""Wrong calls of the public functions: each is refused by a short message that says what is wrong, and what to do."""

# Wrong arguments are what is tested.
# pyright: reportArgumentType=false, reportCallIssue=false
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from strategies import STRATEGIES, CheckpointError, GPTConfig, Infeasible, MeshSpec, State, Step, Strategy, TrainConfig
from strategies.checking import check_step
from strategies.checkpoints import positions, restore, save
from strategies.core.axis import Axis
from strategies.huggingface import HuggingFaceError, read, write
from strategies.huggingface.config_json import config_of, facts_of
from strategies.schema import SchemaError
from strategies.step import Implementation

CONFIG = GPTConfig(layers=2, embed=16, heads=4, vocab=31, sequence=8)
TRAIN = TrainConfig(batch_size=8)
TOKENS = np.zeros((8, 9), int)
LONGEST = 300
"""Characters of a message."""


@cache
def built(mesh: str) -> Step:
    """The step of the strategy of a mesh's axis."""
    return STRATEGIES[mesh.partition("=")[0]].build(CONFIG, mesh, TRAIN)


def state(mesh: str) -> State:
    """Its first state."""
    return built(mesh).init(jax.random.key(0))


def donated() -> State:
    """A state that a step has taken."""
    taken = state("data=2")
    built("data=2")(taken, TOKENS)
    return taken


def reducing(reduce: Callable[..., Any]) -> Step:
    """The step of a user's strategy with its own `reduce`."""
    axis = Axis("data", batch=True, implement=lambda plan: Implementation(reduce=reduce))
    return Strategy("own", (axis,)).build(CONFIG, "data=2", TRAIN)


def with_master() -> State:
    """The state of a step with float32 master weights."""
    train = replace(TRAIN, dtype="bfloat16", master="float32")
    return STRATEGIES["zero1"].build(CONFIG, "data=2", train).init(jax.random.key(0))


def without_info(folder: Path) -> Path:
    """A folder with a checkpoint that lacks its metadata."""
    (folder / "7").mkdir()
    return folder


CALLS: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "weights instead of a state": (
        lambda _: built("data=2")(state("data=2").params, TOKENS),
        Infeasible,
        "the state is a dict; pass a State",
    ),
    "arguments of a step swapped": (
        lambda _: built("data=2")(TOKENS, state("data=2")),
        Infeasible,
        "the state is an array int64[8, 9]; pass a State",
    ),
    "the state of another strategy": (
        lambda _: built("data=2")(state("tensor=2"), TOKENS),
        Infeasible,
        "an array is P(None, 'tensor') on the mesh tensor=2, and this step takes P() on the mesh data=2; save it, and",
    ),
    "the state of other devices": (
        lambda _: built("fsdp=4")(state("data=2"), TOKENS),
        Infeasible,
        "an array is P() on the mesh data=2, and this step takes P(None, 'fsdp') on the mesh fsdp=4; save it, and",
    ),
    "the state of other options": (
        lambda _: built("data=2")(with_master(), TOKENS),
        Infeasible,
        "the state does not have this step's arrays: it has .master['blocks']['attention']['out_AD']; pass what",
    ),
    "a state instead of weights": (
        lambda _: built("data=2").evaluate(state("data=2"), TOKENS),
        Infeasible,
        "the params is a State, not a dict; pass what this step made or placed",
    ),
    "tokens that are none": (
        lambda _: built("data=2").place(None),
        ValueError,
        "the tokens are None; pass an array of integers, or lists of equal lengths",
    ),
    "tokens of several lengths": (lambda _: built("data=2").place([[1], [1, 2]]), ValueError, "or lists of equal"),
    "another state saved": (
        lambda folder: save(built("data=2"), state("tensor=2"), folder),
        Infeasible,
        "the state is placed differently",
    ),
    "a state that was donated saved": (
        lambda folder: save(built("data=2"), donated(), folder),
        Infeasible,
        "arrays of the state are deleted",
    ),
    "positions of nothing": (lambda _: positions(None), CheckpointError, "the folder of checkpoints is None; pass"),
    "a folder that is not there": (
        lambda folder: restore(built("data=2"), folder / "x"),
        CheckpointError,
        "/x has none, because it does not exist",
    ),
    "check of no step": (lambda _: check_step(None), TypeError, "the step is None; pass a Step"),
    "an empty folder of Hugging Face": (
        read,
        SchemaError,
        "name a folder of a model of Hugging Face, with config.json",
    ),
    "save swapped": (
        lambda folder: save(state("data=2"), built("data=2"), folder),
        Infeasible,
        "the step is a State; pass",
    ),
    "restore without a step": (lambda folder: restore(None, folder), Infeasible, "the step is None; pass a Step"),
    "restore swapped": (lambda folder: restore(folder, built("data=2")), Infeasible, "the step is a PosixPath; pass"),
    "restore without a folder": (
        lambda _: restore(built("data=2"), None),
        CheckpointError,
        "the folder of checkpoints is None; pass a path",
    ),
    "a checkpoint without metadata": (
        lambda folder: restore(built("data=2"), without_info(folder)),
        CheckpointError,
        "/7 lacks checkpoint.json, without which a checkpoint is not whole; restore another",
    ),
    "no folder of Hugging Face": (lambda _: read(None), HuggingFaceError, "the folder is None; pass a path"),
    "a dtype that tensors cannot have": (
        lambda folder: write(folder / "out", folder, dtype="float64"),
        HuggingFaceError,
        "dtype='float64'; it can be float32, bfloat16, float16",
    ),
    "a model_type of another family": (
        lambda folder: config_of({**facts_of(CONFIG, "float32")[1], "model_type": "llama"}, "config.json"),
        HuggingFaceError,
        'config.json has model_type: "llama" and architectures: ["GPT2LMHeadModel"], which have model_type gpt2',
    ),
    "a mesh of a dict": (lambda _: MeshSpec({"fsdp": -2}), Infeasible, "; write a mesh as MeshSpec.parse('data=2,ten"),
    "an axis that is not registered": (
        lambda _: Strategy("own", (Axis("ring", batch=True),)).build(CONFIG, "ring=2", TRAIN),
        Infeasible,
        "ring is an axis of own, which is not registered: call `strategies.register` with it first",
    ),
    **{
        f"reduce that returns {returned}": (
            lambda _, reduce=reduce: reducing(reduce)(state("data=2"), TOKENS),
            TypeError,
            f"`reduce` of the implementation returned {returned}; it must return two values: the terms of the loss by",
        )
        for returned, reduce in {
            "None": lambda loss, grads: None,
            "a dict": lambda loss, grads: grads,
            "3 values": lambda loss, grads: (loss, grads, 0),
            "2 values": lambda loss, grads: (loss, {"blocks": grads["blocks"]}),
        }.items()
    },
}


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_call_is_refused(call: str, tmp_path: Path) -> None:
    """By an error whose message says what was given and what is needed, in a few words."""
    function, error, message = CALLS[call]
    with pytest.raises(error) as raised:
        function(tmp_path)
    assert message in str(raised.value)
    assert len(str(raised.value).replace(str(tmp_path), "")) < LONGEST


def test_arrays_of_the_host_are_a_state() -> None:
    """Only arrays on devices have a placement that can be another."""
    on_host = jax.tree.map(np.asarray, state("data=2"))
    loss = built("data=2")(on_host, TOKENS)[1]["loss"]
    assert loss == built("data=2")(state("data=2"), TOKENS)[1]["loss"]
