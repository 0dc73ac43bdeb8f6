"""Formulas are what the docstrings of strategies say, in numbers by hand; programs are held to them in test_laws.py."""

import dataclasses
import os
import subprocess
import sys
import textwrap

import pytest

from strategies import PRESETS, MeshSpec, TrainConfig
from strategies.costs.predict import predict
from strategies.model.gpt import param_count
from tests.strategies.equality import TRAIN
from tests.strategies.formulas import by_axes, compiled, cost, sent
from tests.strategies.models import DENSE, SMALL, UNTIED, WIDE

BATCH = TRAIN.batch_size
L, T, D, F, V = SMALL.layers, SMALL.sequence, SMALL.embed, SMALL.mlp_dim, SMALL.vocab
PARAMS = param_count(SMALL)
BLOCKS = L * (4 * D**2 + 2 * D * F + 9 * D + F)
VECTORS = (6 * L + 2 + T) * D  # of norms, biases after cut matmuls, and positions: what the tensor axis does not cut
TOKENS = BATCH * T
BTD = TOKENS * D


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
                # Not needed backward: the biases, because what they are added to is kept with them.
                "all_gather.fsdp": (PARAMS + BLOCKS - L * (5 * D + F)) * 7 / 8,
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
    # All but the last norm, and the biases of a layer.
    again = vectors - (9 * SMALL.layers + 2) * SMALL.embed // 4
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
