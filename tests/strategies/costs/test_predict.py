"""What a step costs is what formulas say: bytes sent and arguments to the byte, and FLOPs to the last one.

Compiled programs are held to formulas, and formulas to numbers by hand, those of the strategies' docstrings. Programs
are compiled for float32: XLA's CPU backend sends bfloat16 as float32, by `test_bfloat16_is_sent_as_float32`.
"""

import dataclasses
import os
import subprocess
import sys
import textwrap

import pytest

from strategies import PRESETS, STRATEGIES, Infeasible, MeshSpec, TrainConfig
from strategies.costs.predict import predict, strategies_with_formulas
from strategies.model.gpt import param_count
from tests.strategies.costs.steps import (
    AT_NIGHT,
    BATCH,
    BLOCKS,
    BTD,
    CASES,
    DENSE,
    EVERY_DAY,
    PARAMS,
    SMALL,
    TOKENS,
    UNTIED,
    VECTORS,
    WIDE,
    D,
    L,
    V,
    assert_exact,
    assert_held,
    by_axes,
    compiled,
    cost,
    sent,
)
from tests.strategies.sampling import nightly


@pytest.mark.parametrize("fast", [True, *nightly(False)], ids=["quick", "as used"])
@pytest.mark.parametrize(("name", "mesh", "config", "train"), [*EVERY_DAY, *nightly(*AT_NIGHT)], ids=str)
def test_compiled_program_is_what_formulas_say(name, mesh, config, train, fast):
    """Each kind of collective over each axis sends as many bytes, matmuls do as many FLOPs, arguments are as large.

    And no two collectives may be in flight together. Formulas of one more layer on each stage, or of one more turn of
    layers that alternate, are wrong in all of this; but stages send what is between layers. At night programs are
    compiled as they are used; those of the default matrix are held to the formulas by each run (test_predicted.py).
    """
    program, memory = compiled(name, mesh, config, fast, **train)
    predicted = cost(name, mesh, config, **train)
    assert_exact(program, memory, predicted)
    assert_held(memory, predicted)

    stages = MeshSpec.parse(mesh).sizes.get("pipeline", 1)
    more = stages * (config.full_attention_every or 1)
    wrong = cost(name, mesh, dataclasses.replace(config, layers=config.layers + more), **train)
    assert (sent(program) == by_axes(wrong)) == (name in ("single", "pipeline"))
    assert program.flops * wrong.plan.mesh.size < sum(wrong.flops.values())
    assert memory.argument_size_in_bytes < sum(wrong.arguments.values())


@pytest.mark.parametrize(
    ("name", "mesh", "train", "elements"),
    [
        ("data", "data=8", {}, {"all_reduce.data": 2 * (PARAMS + 1) * 7 / 8}),
        (
            "fsdp",
            "fsdp=8",
            {},
            # Fewer gathers than its docstring has: outside the loop over layers the compiler gathers nothing twice.
            {
                # Not needed backward: a layer's last bias, and those of queries, keys and values, kept with them.
                "all_gather.fsdp": (PARAMS + BLOCKS - 4 * L * D) * 7 / 8,
                "reduce_scatter.fsdp": (PARAMS + V * D) * 7 / 8,  # the table twice: as embedding and as head
                "all_reduce.fsdp": 2 * 2 * 7 / 8,  # loss and norm
            },
        ),
        (
            "tensor",
            "tensor=4",
            {},
            {
                "all_gather.tensor": (6 * L + 2) * BTD * 3 / 4,
                "reduce_scatter.tensor": (4 * L + 2) * BTD * 3 / 4,
                "all_reduce.tensor": 2 * (3 * TOKENS + VECTORS + 1) * 3 / 4,
            },
        ),
        (
            "tensor",
            "tensor=4",
            {"sequence_parallel": False},
            {"all_reduce.tensor": 2 * ((4 * L + 2) * BTD + 3 * TOKENS + 1) * 3 / 4},
        ),
        (
            "context",
            "context=4",
            {},
            {"permute.context": (3 * 4 - 2) * 2 * L * BTD / 4, "all_reduce.context": 2 * (PARAMS + 1) * 3 / 4},
        ),
        (
            "context",
            "context=4",
            {"context_attention": "ulysses"},
            {"all_to_all.context": 8 * L * BTD * 3 / 4**2, "all_reduce.context": 2 * (PARAMS + 1) * 3 / 4},
        ),
        (
            "pipeline",
            "pipeline=2",
            {"microbatches": 4},
            {
                # Of two stages one sends each microbatch forward and one back, of which two times both at once.
                "permute.pipeline": (4 + 4 - 2) * BTD / 4,
                "all_reduce.pipeline": 2 * (4 * BTD + 3 * TOKENS + 2 * D + 1) / 2,
            },
        ),
        (
            "three_d",
            "data=2,pipeline=2,tensor=2",
            {"microbatches": 2},
            # For half of the sequences, and half of the layers.
            {
                "all_gather.tensor": (6 * L / 2 + 2) * BTD / 2 / 2,
                "reduce_scatter.tensor": (4 * L / 2 + 2) * BTD / 2 / 2,
                "permute.pipeline": 2 * BTD / 2 / 2,
                "all_reduce.pipeline": 2 * (4 * BTD / 2 / 2 + 2 * D + 1) / 2,
                "all_reduce.several": 2 * (3 * TOKENS / 2 + 1) * 3 / 4,
                "all_reduce.tensor": 2 * (VECTORS - 6 * L / 2 * D) / 2,
                "all_reduce.data": 2 * (V * D / 4 + VECTORS - 6 * L / 2 * D + (BLOCKS / L - 6 * D) / 2 + 1) / 2,
            },
        ),
    ],
)
def test_formulas_are_what_docstrings_say(name, mesh, train, elements):
    """A step sends what its strategy's docstring says, and single numbers for the loss and the norm: no byte more."""
    sent = {
        f"{kind}.{axes[0] if len(axes) == 1 else 'several'}": sent
        for (kind, axes), sent in by_axes(cost(name, mesh, **train)).items()
    }
    assert sent == {key: 4 * count for key, count in elements.items()}


@pytest.mark.parametrize(("remat", "times"), [("dots", 4), ("full", 6)])
def test_a_ring_sends_what_a_window_reaches(remat, times):
    """Keys and values of W - 1 tokens of each sequence, and their gradients: 4 L B (W-1) D elements, or 6."""
    sent = cost("context", "context=4", WIDE, remat=remat).sent["permute", ("context",)]
    assert sent == {"keys and values": 4 * times * WIDE.layers * BATCH * 23 * WIDE.embed}
    widest = dataclasses.replace(WIDE, attention_window=63)  # more than there are on the three other devices
    sent = cost("context", "context=4", widest, remat=remat).sent["permute", ("context",)]
    assert sent == {"keys and values": 4 * times * WIDE.layers * BATCH * 48 * WIDE.embed}


@pytest.mark.parametrize("how", ["ring", "ulysses"])
def test_a_fused_kernel_holds_no_scores(how):
    """By cuDNN any number of heads has the same temporaries. By XLA they grow with it: most of them are scores."""

    def held(heads, attention):
        config = dataclasses.replace(DENSE, heads=heads, sequence=4096)
        options = {"dtype": "bfloat16", "remat": "full", "context_attention": how, "attention": attention}
        cost = predict("context", config, MeshSpec.parse("context=4"), TrainConfig(BATCH, **options), "cuda")
        return sum(cost.temporaries.values())

    assert held(16, "cudnn") == held(8, "auto") < held(8, "xla") / 4
    assert held(16, "xla") > 1.5 * held(8, "xla")


def test_every_strategy_by_hand_has_formulas_and_is_held_to_them():
    """Every strategy that the compiler does not partition has formulas, and is among the programs compiled here.

    Of what the compiler partitions nothing is known, and nothing is made up.
    """
    by_hand = {name for name, strategy in STRATEGIES.items() if not strategy.twins}
    assert set(strategies_with_formulas()) == by_hand == {name for name, *_ in CASES}
    with pytest.raises(Infeasible, match="auto has no formulas; strategies with formulas are single, data"):
        predict("auto", PRESETS["nano"], MeshSpec.parse("data=8"), TrainConfig(BATCH))


@pytest.mark.parametrize("config", [*PRESETS.values(), UNTIED], ids=str)
def test_weights_are_those_of_the_model(config):
    """On one device the formulas have as many parameters as the model, and those of a padded vocabulary."""
    tables = 1 if config.tied else 2
    padding = tables * config.embed * (config.vocab_rows() - config.vocab)
    elements = predict("single", config, MeshSpec.parse("data=1"), TrainConfig(BATCH)).plan.elements
    assert elements == param_count(config) + padding
    unpadded = dataclasses.replace(config, vocab_multiple=1)
    plan = predict("single", unpadded, MeshSpec.parse("data=1"), TrainConfig(BATCH)).plan
    assert plan.elements == param_count(config)


def test_bfloat16_is_sent_as_float32():
    """Half the bytes, but for gradients and vectors, which are float32; XLA's CPU backend sends all as in float32."""
    program, _ = compiled("fsdp", "fsdp=4", SMALL, dtype="bfloat16")
    half, whole = cost("fsdp", "fsdp=4", dtype="bfloat16"), cost("fsdp", "fsdp=4")
    assert sent(program) == by_axes(whole)
    gathered = "all_gather", ("fsdp",)
    vectors = sum(w.elements for w in half.plan.weights.values() if half.plan.dtype(w) == "float32")
    wide = 2 * by_axes(half)[gathered] - by_axes(whole)[gathered]
    # All but the last norm, the bias at a layer's end, and those of queries, keys and values.
    again = vectors - (4 * SMALL.layers + 2) * SMALL.embed // 4
    assert wide == 4 * 3 * (vectors + again)
    assert by_axes(half)["reduce_scatter", ("fsdp",)] == by_axes(whole)["reduce_scatter", ("fsdp",)]
    assert half.sent["all_reduce", ("fsdp",)] == whole.sent["all_reduce", ("fsdp",)] == {"loss": 6, "norm": 6}


def test_it_takes_no_devices_and_no_time():
    """A model of 175 billion parameters on 1,024 devices is one call, with JAX unable to find any device."""
    code = """
        from strategies import PRESETS, MeshSpec, TrainConfig
        from strategies.costs.predict import predict
        train = TrainConfig(batch_size=1536, microbatches=12, dtype="bfloat16")
        cost = predict("three_d", PRESETS["gpt3-175b"], MeshSpec.parse("data=16,pipeline=8,tensor=8"), train)
        print(cost.sent_bytes, cost.arguments, cost.temporaries, cost.hardware_flops, cost.bubble)
    """
    environment = os.environ | {"JAX_PLATFORMS": "none such"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
