"""A block is a list of parts: every strategy trains a Llama, or a block of a user (toy_block.py); formulas follow."""

import dataclasses
import math
import textwrap

import jax
import numpy as np
import pytest

from benchmarks.devices.topology import Topology
from benchmarks.search.candidates import SearchSpace
from benchmarks.search.ranking import ranked
from benchmarks.simulate.machines import machine
from benchmarks.simulate.step import predict_seconds
from strategies import STRATEGIES, GPTConfig, TrainConfig, checkpoints
from strategies.backends.device_mesh import first_devices
from strategies.costs.layer import COSTS, flops_per_token
from strategies.costs.overview import asked_overview
from strategies.costs.predict import predict
from strategies.model.block import BLOCKS
from strategies.model.gpt import param_count
from tests.processes import ROOT
from tests.strategies.cases import SPLIT, ULYSSES, ZB_H1
from tests.strategies.equality import CONFIG, TRAIN, build, ordered_state
from tests.strategies.formulas import by_axes, compiled_step, sent
from tests.strategies.laws import Case, hold
from tests.strategies.model.toy_blocks import register
from tests.strategies.models import HEADED_LLAMA as TOY
from tests.strategies.models import NARROW
from tests.strategies.models import SMALL_LLAMA as SMALL
from tests.strategies.sampling import nightly


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks are known."""
    register(monkeypatch)


DAILY = [
    Case("three_d", "fsdp=2,context=2,tensor=2", NARROW),
    Case("three_d", "pipeline=2,tensor=2", dataclasses.replace(NARROW, block="olmoe"), ZB_H1),
]
OLMOE, QWEN3, QWEN2 = (dataclasses.replace(SMALL, block=block) for block in ("olmoe", "qwen3", "qwen2"))
TWO_HEADS, ONE_HEAD = (dataclasses.replace(SMALL, key_heads=heads) for heads in (2, 1))
AT_NIGHT = [
    Case("three_d", "fsdp=2,context=2,tensor=2", SMALL),
    Case("three_d", "pipeline=2,tensor=2", OLMOE, ZB_H1),
    Case("tensor", "tensor=8", OLMOE),
    Case("three_d", "pipeline=2,tensor=2", QWEN3, ZB_H1),
    Case("three_d", "pipeline=2,tensor=2", OLMOE, {"microbatches": 4, "remat": "none"}),
    Case("data", "data=4", SMALL, {"reduce": "layer"}),
    Case("zero1", "data=4", SMALL),
    Case("zero2", "data=4", SMALL, {"microbatches": 2}),
    Case("fsdp", "fsdp=8", QWEN3, {"prefetch": "on"}),  # scales of heads with fewer features than devices
    Case("hsdp", "data=2,fsdp=2", SMALL),
    Case("expert", "data=4", SMALL),  # models without experts have no axis expert
    Case("tensor", "tensor=8", SMALL, {"remat": "full"}),  # two devices for each head of keys
    Case("context", "context=4", SMALL),
    Case("pipeline", "pipeline=2", SMALL, {"microbatches": 4}),
    Case("auto", "fsdp=2,tensor=2", SMALL),
    Case("three_d", "fsdp=2,pipeline=2,tensor=2", SMALL, ZB_H1),
    Case("three_d", "data=2,context=2,tensor=2", SMALL, {**ULYSSES, **SPLIT}),
    Case("context", "context=8", SMALL, {**ULYSSES, "remat": "full"}),
    Case("fsdp", "fsdp=4", SMALL, {"dtype": "bfloat16", "remat": "none"}),
    Case("zero1", "data=8", QWEN3),
    Case("zero2", "data=8", QWEN3, {"reduce": "layer", "microbatches": 2}),
    Case("fsdp", "fsdp=8", QWEN3, {"gather": "step", "microbatches": 2}),
    Case("three_d", "fsdp=2,tensor=4", dataclasses.replace(QWEN2, key_heads=2)),
    Case("three_d", "fsdp=2,tensor=4", dataclasses.replace(QWEN2, key_heads=1), {"gather": "step", "microbatches": 2}),
    Case("three_d", "pipeline=2,tensor=4", TWO_HEADS, ZB_H1),
    Case("three_d", "context=4,tensor=2", ONE_HEAD, ULYSSES),
    Case("three_d", "data=2,context=2,tensor=2", ONE_HEAD, {"reduce": "layer"}),
    Case("auto", "fsdp=2,tensor=4", dataclasses.replace(QWEN2, key_heads=2)),
    Case("three_d", "data=2,context=2,tensor=2", QWEN3, ULYSSES),
    Case("context", "context=8", OLMOE, ULYSSES),
    Case("tensor", "tensor=2", QWEN3, SPLIT),
    Case("pipeline", "pipeline=2", SMALL, {**ZB_H1, "remat": "full"}),
    Case("auto", "fsdp=2,tensor=2", QWEN3),
    Case("auto", "fsdp=2,tensor=2", OLMOE),
    Case("three_d", "data=2,pipeline=2,tensor=2", OLMOE, {"microbatches": 4, **SPLIT}),
]


@pytest.mark.parametrize("case", [*DAILY, *nightly(*AT_NIGHT)], ids=str)
def test_every_strategy_trains_it_as_one_device(case, tmp_path):
    """All laws hold (laws.py); one device restores the checkpoint, and so does the mesh itself."""
    built, state, results = hold(case)
    alone = build("single", "data=1", case.config, **{key: case.train[key] for key in case.train if key == "dtype"})
    checkpoints.save(built, state, tmp_path).wait()
    restored = ordered_state(alone, checkpoints.restore(alone, tmp_path))
    jax.tree.map(np.testing.assert_array_equal, restored.params, results[2][-1].params)
    jax.tree.map(np.testing.assert_array_equal, checkpoints.restore(built, tmp_path), state)


def test_sizes_follow_the_parts() -> None:
    """Parameters are those of the model, and each weight of a matmul counts 6 FLOPs a token."""
    untied = dataclasses.replace(TOY, tied=False, vocab_multiple=1)
    weights = build("single", "data=1", untied).state.params
    assert param_count(untied) == sum(math.prod(w.shape) for w in jax.tree.leaves(weights))
    scores = 12 * TOY.layers * TOY.head_features * TOY.sequence
    in_layer = TOY.embed * (2 * TOY.head_features + 2 * TOY.key_features + 3 * TOY.mlp_dim)
    assert flops_per_token(untied) == 6 * (TOY.layers * in_layer + TOY.vocab * TOY.embed) + scores


def test_commands_know_it(monkeypatch) -> None:
    """`show` lists its arrays, `search` ranks its meshes, and its seconds are predicted: a larger MLP takes longer."""
    monkeypatch.setattr("strategies.costs.overview.PRESETS", {"toy": TOY})
    shown = asked_overview("tensor", "toy", "tensor=2", None, None)
    gate = next(each for each in shown.arrays if each.name == "blocks.mlp.gate_DF")
    assert (gate.shape, gate.axes[2]) == ((TOY.layers, TOY.embed, TOY.mlp_dim), ("tensor",))
    assert "blocks.mlp.gate_DF" in shown.array_table()

    here, devices = machine("meshmark_gpus"), Topology.parse("h100:1x8")
    space = SearchSpace(devices, "toy", dataclasses.replace(TOY, sequence=32), 16, "bfloat16")
    assert ranked(space.cases(), here).fitting

    def seconds(config: GPTConfig) -> float:
        train = TrainConfig(16, dtype="bfloat16")
        return predict_seconds(predict("tensor", config, "tensor=2", train, "cuda"), here, devices).step_seconds

    large = dataclasses.replace(TOY, embed=2048, mlp=8192, sequence=512)
    assert seconds(dataclasses.replace(large, mlp=16384)) > seconds(large)


@pytest.mark.factorisations
def test_two_kinds_of_layers_alternate() -> None:
    """As one block with the parts of both. It trains as one device does, and its formulas count both attentions."""
    hold(Case("context", "context=4", dataclasses.replace(SMALL, block="both", layers=2)))


def test_the_part_that_the_documentation_shows(monkeypatch) -> None:
    """The file of docs/contribute/adding-a-model-part.md is complete: its step compiles and sends what formulas say."""
    monkeypatch.setattr("strategies.model.block.BLOCKS", dict(BLOCKS))
    monkeypatch.setattr("strategies.costs.layer.COSTS", dict(COSTS))
    page = (ROOT / "docs" / "contribute" / "adding-a-model-part.md").read_text()
    shown = page[page.index("    # gated.py") : page.index("`GPTConfig(..., block")]
    exec(textwrap.dedent(shown), {"__name__": "gated"})
    config = dataclasses.replace(CONFIG, block="gated")
    built = STRATEGIES["fsdp"].build(config, "fsdp=2", TRAIN, first_devices(2))
    program, _ = compiled_step(built)
    assert "gate_DF" in built.state.params["blocks"]["mlp"]
    assert sent(program) == by_axes(predict("fsdp", config, "fsdp=2", TRAIN))
