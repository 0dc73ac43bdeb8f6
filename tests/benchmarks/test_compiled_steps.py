"""What compiled steps are found to do: what their strategies' docstrings say."""

import functools
from typing import Any

import jax
import pytest

from benchmarks.compiled import Program, read_program
from strategies import STRATEGIES, GPTConfig, MeshSpec, TrainConfig
from tests.benchmarks.test_compiled import text_of

SMALL = GPTConfig(layers=2, embed=32, heads=4, vocab=256, sequence=16)
L, T, D, F, V = SMALL.layers, SMALL.sequence, SMALL.embed, SMALL.mlp_dim, SMALL.vocab
PARAMS = SMALL.param_count
BLOCKS = L * (4 * D**2 + 2 * D * F + 9 * D + F)
VECTORS = (6 * L + 2 + T) * D  # of norms, biases behind cut matmuls, and positions: what the tensor axis does not cut
BATCH = 16
TOKENS = BATCH * T
BTD = TOKENS * D


@functools.cache
def program(strategy: str, mesh: str, **train: Any) -> Program:
    """Of a step of the small model."""
    spec = MeshSpec.parse(mesh)
    step = STRATEGIES[strategy].build(SMALL, spec, TrainConfig(BATCH, **train), jax.devices()[: spec.size])
    return read_program(text_of(step.lower()), step.mesh.shape)


@pytest.mark.parametrize(
    ("remat", "recomputed"),
    [
        # The backward pass of attention computes the scores again.
        ("dots", 2 * L * T * D),
        # And here that of a block all but its last matmul, and attention, whose scores it then has. The logits are
        # outside the loop over layers: the compiler finds them computed.
        ("full", 2 * L * T * D + 2 * L * (4 * D**2 + D * F) + 2 * L * T * D),
    ],
)
def test_flops_of_a_step_are_those_of_its_matmuls(remat: str, recomputed: int) -> None:
    """On one device a step does the model's FLOPs for each token, and those that it does again, to the last one."""
    assert program("single", "data=1", remat=remat).flops == TOKENS * (SMALL.flops_per_token + recomputed)


@pytest.mark.parametrize(("strategy", "mesh"), [("data", "data=8"), ("fsdp", "fsdp=8"), ("tensor", "tensor=4")])
def test_devices_share_the_flops(strategy: str, mesh: str) -> None:
    """Devices that share a step's sequences, or the dims of its layers, do equal parts of it, and nothing twice."""
    assert program(strategy, mesh).flops * MeshSpec.parse(mesh).size == program("single", "data=1", remat="dots").flops


@pytest.mark.parametrize(
    ("strategy", "mesh", "train", "elements"),
    [
        ("data", "data=8", {}, {"all_reduce.data": 2 * (PARAMS + 1) * 7 / 8}),
        (
            "fsdp",
            "fsdp=8",
            {},
            # Fewer gathers than its docstring has: outside the loop over layers the compiler gathers nothing twice.
            {
                "all_gather.fsdp": (PARAMS + BLOCKS - L * D) * 7 / 8,  # a layer's last bias is not needed backward
                "reduce_scatter.fsdp": (PARAMS + V * D) * 7 / 8,  # the table twice: as embedding and as head
                "all_reduce.fsdp": 2 * 2 * 7 / 8,  # loss and norm
            },
        ),
        (
            "tensor",
            "tensor=4",
            {},
            {
                "all_gather.tensor": (6 * L + 3) * BTD * 3 / 4,
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
                "all_gather.tensor": (6 * L / 2 + 3) * BTD / 2 / 2,
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
def test_strategies_send_what_they_say(
    strategy: str, mesh: str, train: dict[str, Any], elements: dict[str, float]
) -> None:
    """A step sends what its strategy's docstring says, and single numbers for the loss and the norm: no byte more."""
    row, prefix = program(strategy, mesh, **train).as_row(), "compiled.sent_bytes."
    sent = {key.removeprefix(prefix): count for key, count in row.items() if key.startswith(prefix) and count}
    assert sent == {key: 4 * count for key, count in elements.items()}
