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
from strategies import STRATEGIES, GPTConfig, Infeasible, MeshSpec, TrainConfig, checkpoints
from strategies.costs.layer import COSTS, flops_per_token
from strategies.costs.overview import asked_overview
from strategies.costs.predict import predict
from strategies.device_mesh import first_devices
from strategies.model.block import BLOCKS
from strategies.model.gpt import param_count
from strategies.single import SINGLE
from tests.processes import ROOT
from tests.strategies.costs.steps import assert_exact, assert_held, by_axes, compiled, compiled_step, cost, sent, step
from tests.strategies.equality import CONFIG, ROUNDING, TRAIN, assert_equal, initial, ordered_state, trained
from tests.strategies.model.toy_block import SMALL, TOY, register
from tests.strategies.sampling import nightly


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks are known."""
    register(monkeypatch)


MESHES = {
    "data": ("data=4", {"reduce": "layer"}),
    "zero1": ("data=4", {}),
    "zero2": ("data=4", {"microbatches": 2}),
    "fsdp": ("fsdp=8", {"prefetch": "on", "block": "qwen3"}),  # scales of heads with fewer features than devices
    "hsdp": ("data=2,fsdp=2", {}),
    "expert": ("data=4", {}),  # models without experts have no axis expert
    "tensor": ("tensor=8", {"remat": "full"}),  # two devices for each head of keys
    "context": ("context=4", {}),
    "pipeline": ("pipeline=2", {"microbatches": 4}),
    "three_d": ("fsdp=2,context=2,tensor=2", {}),
    "auto": ("fsdp=2,tensor=2", {}),
}


DAILY = ("three_d",)


def ran(name: str, mesh: str, block: str = "llama", key_heads: int = 4, **options):
    """The results of three steps, the step and its last state."""
    config = dataclasses.replace(SMALL, block=block, key_heads=key_heads)
    spec = MeshSpec.parse(mesh)
    train = dataclasses.replace(TRAIN, **options)
    built = STRATEGIES[name].build(config, spec, train, first_devices(spec.size))
    results, state = trained(built, initial(built), range(3))
    return results, built, state


@pytest.mark.parametrize(
    ("name", "mesh", "options"),
    [
        *((name, *MESHES[name]) for name in DAILY),
        ("three_d", "pipeline=2,tensor=2", {"block": "olmoe", "microbatches": 4, "schedule": "zb-h1"}),
        *nightly(("tensor", "tensor=8", {"block": "olmoe"})),
        *nightly(("three_d", "pipeline=2,tensor=2", {"block": "qwen3", "microbatches": 4, "schedule": "zb-h1"})),
        *nightly(("three_d", "pipeline=2,tensor=2", {"block": "olmoe", "microbatches": 4, "remat": "none"})),
        *nightly(*((name, *MESHES[name]) for name in STRATEGIES if name not in ("single", *DAILY))),
        *nightly(
            ("three_d", "fsdp=2,pipeline=2,tensor=2", {"microbatches": 4, "schedule": "zb-h1"}),
            ("three_d", "data=2,context=2,tensor=2", {"context_attention": "ulysses", "sequence_parallel": False}),
            ("context", "context=8", {"context_attention": "ulysses", "remat": "full"}),
            ("fsdp", "fsdp=4", {"dtype": "bfloat16", "remat": "none"}),
            ("zero1", "data=8", {"block": "qwen3"}),
            ("zero2", "data=8", {"block": "qwen3", "reduce": "layer", "microbatches": 2}),
            ("fsdp", "fsdp=8", {"block": "qwen3", "gather": "step", "microbatches": 2}),
            ("three_d", "fsdp=2,tensor=4", {"block": "qwen2", "key_heads": 2, "reduce_dtype": "float32"}),
            ("three_d", "fsdp=2,tensor=4", {"block": "qwen2", "key_heads": 1, "gather": "step", "microbatches": 2}),
            ("three_d", "pipeline=2,tensor=4", {"key_heads": 2, "microbatches": 4, "schedule": "zb-h1"}),
            ("three_d", "context=4,tensor=2", {"key_heads": 1, "context_attention": "ulysses"}),
            ("three_d", "data=2,context=2,tensor=2", {"key_heads": 1, "reduce": "layer"}),
            ("auto", "fsdp=2,tensor=4", {"block": "qwen2", "key_heads": 2}),
            ("three_d", "data=2,context=2,tensor=2", {"block": "qwen3", "context_attention": "ulysses"}),
            ("context", "context=8", {"block": "olmoe", "context_attention": "ulysses"}),
            ("tensor", "tensor=2", {"block": "qwen3", "sequence_parallel": False}),
            ("pipeline", "pipeline=2", {"remat": "full", "microbatches": 4, "schedule": "zb-h1"}),
            ("auto", "fsdp=2,tensor=2", {"block": "qwen3"}),
            ("auto", "fsdp=2,tensor=2", {"block": "olmoe"}),
            (
                "three_d",
                "data=2,pipeline=2,tensor=2",
                {"block": "olmoe", "microbatches": 4, "sequence_parallel": False},
            ),
        ),
    ],
)
def test_every_strategy_trains_it_as_one_device(name, mesh, options, tmp_path):
    """Losses, gradients and weights are those of one device, which restores the checkpoint, as the mesh itself does."""
    exact = {key: options[key] for key in options if key in ("dtype", "block", "key_heads")}
    reference, alone, _ = ran("single", "data=1", **exact)
    results, built, state = ran(name, mesh, **options)
    assert_equal(results, reference, ROUNDING[options.get("dtype", "float32")])
    checkpoints.save(built, state, tmp_path).wait()
    restored = ordered_state(alone, checkpoints.restore(alone, tmp_path))
    jax.tree.map(np.testing.assert_array_equal, restored.params, results[2][-1].params)
    jax.tree.map(np.testing.assert_array_equal, checkpoints.restore(built, tmp_path), state)


@pytest.mark.parametrize(
    ("name", "mesh", "train"),
    [
        ("single", "data=1", {}),
        ("pipeline", "pipeline=2", {"microbatches": 4}),
        ("three_d", "data=2,tensor=4", {"key_heads": 2}),
        *nightly(
            ("fsdp", "fsdp=4", {"microbatches": 2}),
            ("three_d", "fsdp=2,context=2,tensor=2", {}),
            ("tensor", "tensor=8", {"remat": "full"}),
            ("tensor", "tensor=4", {}),
            ("three_d", "context=4,tensor=2", {"key_heads": 1, "context_attention": "ulysses"}),
            ("three_d", "pipeline=2,tensor=4", {"key_heads": 1, "microbatches": 4}),
            ("context", "context=4", {}),
            ("context", "context=4", {"remat": "full"}),
            ("context", "context=8", {"context_attention": "ulysses"}),
            ("context", "context=8", {"context_attention": "ulysses", "remat": "full"}),
            ("data", "data=8", {}),
            ("zero1", "data=4", {}),
            ("zero2", "data=4", {"microbatches": 2}),
            ("hsdp", "data=2,fsdp=4", {"prefetch": "on", "remat": "full"}),
            ("three_d", "data=2,pipeline=2,tensor=2", {"microbatches": 4, "sequence_parallel": False}),
        ),
        # With biases of queries, keys and values; and with norms of heads, whose scales tensor does not split.
        *nightly(
            *(
                (name, mesh, {"block": block, **options})
                for block in ("qwen2", "qwen3", "olmoe")
                for name, mesh, options in [
                    ("single", "data=1", {"remat": "none"}),
                    ("fsdp", "fsdp=4", {"microbatches": 2}),
                    ("tensor", "tensor=8", {}),
                    ("tensor", "tensor=4", {"sequence_parallel": False}),
                    ("context", "context=8", {"context_attention": "ulysses"}),
                    ("pipeline", "pipeline=2", {"microbatches": 4}),
                    ("three_d", "fsdp=2,context=2,tensor=2", {"remat": "full"}),
                    ("three_d", "pipeline=2,tensor=2", {"microbatches": 4}),
                ]
            )
        ),
    ],
)
def test_its_formulas_are_those_of_what_it_states(name, mesh, train) -> None:
    """The compiled program sends, computes and takes what the formulas say, to the byte, and needs the memory."""
    of_model = {"block": train.get("block", "llama"), "key_heads": train.get("key_heads", TOY.key_heads)}
    config = dataclasses.replace(TOY, **of_model)
    train = {key: value for key, value in train.items() if key not in of_model}
    program, memory = compiled(name, mesh, config, **train)
    predicted = cost(name, mesh, config, **train)
    assert_exact(program, memory, predicted)
    assert_held(memory, predicted)


def test_sizes_follow_the_parts() -> None:
    """Parameters are those of the model, and each weight of a matmul counts 6 FLOPs a token."""
    untied = dataclasses.replace(TOY, tied=False, vocab_multiple=1)
    weights = step("single", "data=1", untied).state.params
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
    config, spec = dataclasses.replace(SMALL, block="both", layers=2), MeshSpec.parse("context=4")
    steps = [
        STRATEGIES[name].build(config, mesh, TRAIN, first_devices(mesh.size))
        for name, mesh in (("single", MeshSpec.parse("data=1")), ("context", spec))
    ]
    reference, mine = (trained(each, initial(each), range(3))[0] for each in steps)
    assert_equal(mine, reference, ROUNDING["float32"])
    predicted = predict("context", config, spec, TRAIN)
    program = compiled_step(steps[1])[0]
    assert sent(program) == by_axes(predicted)
    assert program.flops * spec.size == sum(predicted.flops.values())


@pytest.mark.parametrize(
    ("name", "mesh", "options", "message"),
    [
        ("tensor", "tensor=6", {}, "tensor=6 neither divides key_heads=4 nor is a multiple of it; tensor can be 1, 2"),
        ("tensor", "tensor=8", {}, "tensor=8 does not divide heads=12; tensor can be 1, 2 or 4"),
    ],
)
def test_heads_of_keys_that_groups_of_devices_cannot_share_are_refused(name, mesh, options, message) -> None:
    """With the numbers, by the step and by the formulas."""
    config, train = dataclasses.replace(SMALL, embed=48, heads=12, mlp=96), dataclasses.replace(TRAIN, **options)
    for check in (STRATEGIES[name].build, lambda *given: predict(name, *given)):
        with pytest.raises(Infeasible, match=message):
            check(config, MeshSpec.parse(mesh), train)


def test_a_block_that_does_not_exist_is_refused() -> None:
    """With those that do."""
    with pytest.raises(Infeasible, match="no block 'lama'; blocks are gpt2, llama, qwen2, qwen3, olmoe, gpt_oss"):
        SINGLE.build(dataclasses.replace(SMALL, block="lama"), "data=1", TRAIN, first_devices(1))


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
