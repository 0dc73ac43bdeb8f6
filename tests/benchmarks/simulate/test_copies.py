"""What PyTorch's stacks copy, cast and add between the matmuls of a layer, and what they gather in one byte."""

from dataclasses import replace

import pytest

from benchmarks.simulate.layer import LayerEvents
from benchmarks.simulate.links import Network
from benchmarks.simulate.machines import machine
from benchmarks.simulate.memory_traffic import cast_bytes, copied_bytes, summed_bytes
from benchmarks.simulate.published import run_of
from benchmarks.simulate.queues import Event
from benchmarks.simulate.stacks import MAXTEXT, NEMO, TORCHTITAN, TORCHTITAN_ASYNC, TORCHTITAN_EAGER, VARIANTS
from tests.benchmarks.simulate.test_folding import DENSE

TOKENS, EMBED, HEADS, KEYS, MLP, TENSORS = 4096, 4096, 4096, 1024, 14336, 4
STREAM = TOKENS * EMBED
"""Elements of the residual stream of a microbatch, all of which each device of the tensor axis gathers."""


@pytest.mark.parametrize(
    ("recompute", "gathers", "scatters"), [("none", 2, 2), ("selective (op)", 4, 2), ("full", 4, 3)]
)
@pytest.mark.parametrize(("dtype", "itemsize"), [("bf16", 2), ("float8 tensorwise", 1), ("float8 rowwise", 2)])
def test_gathers_and_scatters_copy(recompute, gathers, scatters, dtype, itemsize):
    """FSDP2 copies gathered weights once in each pass, and gradients into float32.

    Each gather and each scatter of the sequence reads and writes all tokens of the tensor axis; a scatter takes three
    times as long without a compiler. Tensorwise float8 gathers one byte. Backward recomputation repeats gathers, and if
    it is full all scatters but the last.
    """
    weights = EMBED * (HEADS + 2 * KEYS + HEADS + 3 * MLP) // TENSORS + 2 * EMBED
    run = run_of({**DENSE, "dtype": dtype, "recompute": recompute})
    out, into = 2 * itemsize * weights, (2 + 4) * weights
    for stack, gather, scatter in (
        (TORCHTITAN, 2 * itemsize, 4),
        (TORCHTITAN_EAGER, 2 * itemsize, 12),
        (TORCHTITAN_ASYNC, 0, 0),
    ):
        forward = 2 * (gather + scatter) * STREAM
        backward = (gathers * gather + scatters * scatter) * STREAM
        assert copied_bytes(run.cost.plan, stack, run.precision) == pytest.approx(
            (out + forward, out + into + backward)
        )
    assert copied_bytes(run.cost.plan, MAXTEXT, run.precision) == (0, 0)


@pytest.mark.parametrize(
    ("dtype", "of_stream", "of_others", "scaled"),
    [("fp8", 6, 6, 0), ("float8 tensorwise", 6 / TENSORS + 2, 6, 0), ("float8 rowwise", 10, 10, 4)],
)
def test_torchao_casts_by_tensor_or_by_row(dtype, of_stream, of_others, scaled):
    """A scale for each row takes more passes, and results of the matmuls of gradients are multiplied by the scales.

    With one scale a device casts its own tokens and gathers them, and copies what it gathered as columns.
    """
    run = run_of({**DENSE, "dtype": dtype})
    assert run.precision
    forward, backward = cast_bytes(run.cost.plan, run.precision, fused=False)
    heads, keys, hidden = (TOKENS * features // TENSORS for features in (HEADS, KEYS, MLP))
    assert forward == pytest.approx(2 * of_stream * STREAM + of_others * (heads + hidden))
    gradients = 2 * of_stream * STREAM + of_others * (heads + 2 * keys + 2 * hidden)
    weights = EMBED * (HEADS + 2 * KEYS + HEADS + 3 * MLP) // TENSORS
    results = (3 + 2) * STREAM + heads + hidden + weights  # of queries, keys and values, of gate and up
    assert backward == pytest.approx(gradients + scaled * results)


def test_tensorwise_float8_gathers_half_of_the_bytes():
    """The two gathers of a layer's forward pass send half of what the two scatters send; else as much."""
    fast = machine("torchtitan_gpus", "h100")
    fast = replace(fast, constants=replace(fast.constants, link_seconds=0.0))
    seconds = {}
    for dtype in ("bf16", "float8 tensorwise", "float8 rowwise"):
        run = run_of({**DENSE, "dtype": dtype})
        network = Network(fast.running(run.stack, run.precision), run.topology, run.cost.plan.mesh)
        events = LayerEvents(run.cost.plan, run.cost.traffic, network, run.cost.plan.layers).events("forward")
        seconds[dtype] = sum(
            each.seconds for each in events if isinstance(each, Event) and each.part == "layer collectives"
        )
    assert seconds["float8 rowwise"] == pytest.approx(seconds["bf16"])
    assert seconds["float8 tensorwise"] == pytest.approx(0.75 * seconds["bf16"])


def test_without_a_compiler_gradients_of_shared_inputs_are_added():
    """Queries, keys and values take two sums of the gradients of their input, gate and up one: 6 bytes an element."""
    plan = run_of(DENSE).cost.plan
    assert summed_bytes(plan, TORCHTITAN_EAGER) == pytest.approx(6 * (2 + 1) * STREAM)
    assert summed_bytes(plan, TORCHTITAN) == 0


def test_dropped_tokens_go_the_way_that_can_drop_them():
    """Megatron-Core drops tokens with the plain all-to-all alone, and recipes that drop them do not hide it."""
    assert VARIANTS["Megatron-Bridge"]["token drop"] is NEMO
    assert not NEMO.deduplicates
    assert NEMO.until("tokens") == "at once"
