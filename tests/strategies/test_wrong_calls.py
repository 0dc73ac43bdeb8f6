"""Wrong calls of the public functions: each is refused by a short message that says what is wrong, and what to do."""

# Wrong arguments are what is tested.
# pyright: reportArgumentType=false, reportCallIssue=false
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from strategies import PRESETS, STRATEGIES, CheckpointError, GPTConfig, Infeasible, MeshSpec, State, Step, TrainConfig
from strategies.backends.device_mesh import device_mesh, first_devices
from strategies.backends.topologies import devices_of
from strategies.checking import check_step
from strategies.checkpoints import positions, restore, save
from strategies.huggingface import HuggingFaceError, read, write
from strategies.huggingface.config_json import config_of, facts_of
from strategies.schema import SchemaError
from tests.strategies.refusals import Row, assert_short, cases

CONFIG = GPTConfig(layers=2, embed=16, heads=4, vocab=31, sequence=8)
TRAIN = TrainConfig(batch_size=8)
TOKENS = np.zeros((8, 9), int)


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


def with_master() -> State:
    """The state of a step with float32 master weights."""
    train = replace(TRAIN, dtype="bfloat16", master="float32")
    return STRATEGIES["zero1"].build(CONFIG, "data=2", train).init(jax.random.key(0))


def without_info(folder: Path) -> Path:
    """A folder with a checkpoint that lacks its metadata."""
    (folder / "7").mkdir()
    return folder


def devices(*processes: int) -> list[Any]:
    """Fake devices of these processes."""
    return [SimpleNamespace(id=place, process_index=process) for place, process in enumerate(processes)]


def parsed(*texts: tuple[str, str]) -> Iterator[Row]:
    """Texts that are no meshes."""
    return ((lambda _, text=text: MeshSpec.parse(text), message) for text, message in texts)


CALLS: dict[type[Exception], list[Row]] = {
    Infeasible: [
        # states, weights and keys
        (lambda _: built("data=2")(state("data=2").params, TOKENS), "the state is a dict; pass a State"),
        (lambda _: built("data=2")(TOKENS, state("data=2")), r"the state is an array int64\[8, 9\]; pass a State"),
        (
            lambda _: built("data=2")(state("tensor=2"), TOKENS),
            r"is P\(None, 'tensor'\) on the mesh tensor=2, and this step takes P\(\) on the mesh data=2; save it, and",
        ),
        (
            lambda _: built("fsdp=4")(state("data=2"), TOKENS),
            r"is P\(\) on the mesh data=2, and this step takes P\(None, 'fsdp'\) on the mesh fsdp=4; save it, and",
        ),
        (
            lambda _: built("data=2")(with_master(), TOKENS),
            r"the state does not have this step's arrays: it has .master\['blocks'\]\['attention'\]\['out_AD'\]; pass",
        ),
        (
            lambda _: built("data=2").evaluate(state("data=2"), TOKENS),
            "the params is a State, not a dict; pass what this step made or placed",
        ),
        (lambda _: built("data=2").init("0"), r"^the key is '0'; pass one, such as jax.random.key\(0\)$"),
        (lambda folder: save(built("data=2"), state("tensor=2"), folder), "the state is placed differently"),
        (lambda folder: save(built("data=2"), donated(), folder), "arrays of the state are deleted"),
        (lambda folder: save(state("data=2"), built("data=2"), folder), "the step is a State; pass"),
        (lambda folder: restore(None, folder), "the step is None; pass a Step"),
        (lambda folder: restore(folder, built("data=2")), "the step is a PosixPath; pass"),
        # meshes and devices
        (lambda _: MeshSpec({"fsdp": -2}), r"; write a mesh as MeshSpec.parse\('data=2,ten"),
        (
            lambda _: STRATEGIES["data"].build(CONFIG, 8, TRAIN),
            "mesh 8; pass a MeshSpec, or a string such as 'data=2,tensor=4'",
        ),
        *parsed(
            ("", "mesh '' cannot be read; write it as data=2,tensor=4"),
            ("data", "mesh 'data' cannot be read"),
            ("data=2;tensor=2", "cannot be read"),
            ("data=x", "cannot be read"),
            ("data=-2", "cannot be read"),
            ("data=0", "mesh axis data=0; it must be from 1 to 999,999,999"),
            ("model=2", "unknown mesh axis 'model'; it can be data, fsdp, pipeline, context, expert, tensor"),
            ("data=2,data=2", "mesh axes data, data repeat or are out of order"),
            ("tensor=2,data=2", "mesh axes tensor, data repeat or are out of order; the order is data, fsdp"),
        ),
        (
            lambda _: device_mesh(MeshSpec.parse("data=16"), ("data",)),
            r'mesh data=16 needs 16 devices, and JAX has 8; .*JAX_NUM_CPU_DEVICES=16 .*"jax_num_cpu_devices", 16\)',
        ),
        *(
            (
                lambda _, spec=spec, given=given: device_mesh(spec, [*spec.sizes], jax.devices()[:given]),
                f"mesh {spec} needs {spec.size} devices, and got {given}",
            )
            for spec, given in zip(
                map(MeshSpec.parse, ("data=2", "data=2,tensor=4", "tensor=16")), (8, 4, 8), strict=True
            )
        ),
        (
            lambda _: device_mesh(MeshSpec.parse("tensor=8"), ("fsdp",)),
            "mesh tensor=8 has the axis tensor; it can be fs",
        ),
        (lambda _: first_devices(3, devices(0, 0, 1, 1)), "3 devices cannot be divided equally among 2 proc.* of 2"),
        *(
            (lambda _, count=count: STRATEGIES["fsdp"].meshes(count), "devices=.*; it must be a whole number of at le")
            for count in ("8", 2.5, 0)
        ),
        (lambda _: STRATEGIES["fsdp"].default_microbatches("fsdp=2", 0), "batch_size=0; .* of at least 1"),
        *(
            (lambda _, text=text: devices_of(text), "cannot be read; write one as v5p:4x4x4, of the kinds v4, ")
            for text in ("v5p", "v5p:4x0", "x:4", "v5p:4x4x", "")
        ),
    ],
    ValueError: [
        (
            lambda _: built("data=2").place(None),
            "the tokens are None; pass an array of integers, or lists of equal len",
        ),
        (lambda _: built("data=2").place([[1], [1, 2]]), "or lists of equal"),
        (
            lambda _: built("data=2").place(jnp.zeros((8, 65), "int32")),
            r"tokens of shape \(8, 65\); this step takes \(8, 9\)",
        ),
        *(
            (lambda _, fill=fill: built("data=2").place(np.full((8, 9), fill)), message)
            for fill, message in (
                (31, "token ids from 31 to 31; with vocab=31 they can be 0 to 30"),
                (-1, "token ids from -1 to -1"),
                (2**40, "token ids from 1099511627776"),
                (0.0, "tokens of dtype float64; pass integers"),
            )
        ),
    ],
    TypeError: [
        (
            lambda _: STRATEGIES["data"].build("nano", "data=8", TRAIN),
            r"config must be a GPTConfig, got str 'nano'; use PRESETS\['nano'\]",
        ),
        (lambda _: check_step(None), "the step is None; pass a Step"),
    ],
    KeyError: [
        *(
            (lambda _, name=name: STRATEGIES[name], message)
            for name, message in (
                ("zero3", "'zero3' is not a strategy; use one of single, .*; did you mean fsdp"),
                ("DDP", "did you mean data"),
                ("pipelin", "did you mean pipeline"),
                ("x", "'x' is not a strategy; use one of single, data, [a-z0-9_, ]*$"),
            )
        ),
        (lambda _: PRESETS["nanno"], "'nanno' is not a preset; use one of .*; did you mean nano"),
    ],
    CheckpointError: [
        (lambda _: positions(None), "the folder of checkpoints is None; pass"),
        (lambda folder: restore(built("data=2"), folder / "x"), "/x has none, because it does not exist"),
        (lambda _: restore(built("data=2"), None), "the folder of checkpoints is None; pass a path"),
        (
            lambda folder: restore(built("data=2"), without_info(folder)),
            "/7 lacks checkpoint.json, without which a checkpoint is not whole; restore another",
        ),
    ],
    HuggingFaceError: [
        (lambda _: read(None), "the folder is None; pass a path"),
        (
            lambda folder: write(folder / "out", folder, dtype="float64"),
            "dtype='float64'; it can be float32, bfloat16, float16",
        ),
        (
            lambda folder: config_of({**facts_of(CONFIG, "float32")[1], "model_type": "llama"}, "config.json"),
            r'model_type: "llama" and architectures: \["GPT2LMHeadModel"\], which have model_type gpt2',
        ),
    ],
    SchemaError: [(read, "name a folder of a model of Hugging Face, with config.json")],
}


@pytest.mark.parametrize(("error", "call", "message"), [*cases(CALLS)])
def test_a_wrong_call_is_refused(error: type[Exception], call: Any, message: str, tmp_path: Path) -> None:
    """By an error whose message says what was given and what is needed, in a few words."""
    assert_short(error, call, message, tmp_path)


def test_arrays_of_the_host_are_a_state() -> None:
    """Only arrays on devices have a placement that can be another."""
    on_host = jax.tree.map(np.asarray, state("data=2"))
    loss = built("data=2")(on_host, TOKENS)[1]["loss"]
    assert loss == built("data=2")(state("data=2"), TOKENS)[1]["loss"]
