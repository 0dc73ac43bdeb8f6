"""What PyTorch's stacks copy, cast and add between the matmuls of a layer, and what they gather in one byte."""

from dataclasses import replace

import pytest

from benchmarks.simulate.kernels import layer
from benchmarks.simulate.layer import LayerEvents
from benchmarks.simulate.links import Network
from benchmarks.simulate.machines import machine
from benchmarks.simulate.memory_traffic import cast_bytes, copied_bytes, count_sharing, summed_bytes
from benchmarks.simulate.published import run_of
from benchmarks.simulate.queues import Event
from benchmarks.simulate.stack import NOT_COPIED, Stack
from benchmarks.simulate.stacks import MAXTEXT, TORCHTITAN, TORCHTITAN_ASYNC, TORCHTITAN_EAGER
from benchmarks.simulate.step import predict_seconds
from strategies.model.part import Part
from tests.benchmarks.simulate.test_folding import DENSE, MIXTURE

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

    def moved(stack: Stack) -> list[float]:
        kernels = layer(run.cost.plan, stack, run.precision)
        return [sum(kernel.moved_bytes for kernel in way) for way in (kernels.forward, kernels.backward)]

    for stack, gather, scatter in (
        (TORCHTITAN, 2 * itemsize, 4),
        (TORCHTITAN_EAGER, 2 * itemsize, 12),
        (TORCHTITAN_ASYNC, 0, 0),
    ):
        plain = replace(stack, kernels=replace(stack.kernels, copies_shards=False, sequence_bytes=NOT_COPIED))
        copied = [with_copies - without for with_copies, without in zip(moved(stack), moved(plain), strict=True)]
        forward, backward = 2 * (gather + scatter), gathers * gather + scatters * scatter
        assert copied == pytest.approx([out + forward * STREAM, out + into + backward * STREAM])
    assert copied_bytes(run.cost.plan, MAXTEXT, run.precision) == (0, 0)


def test_projections_that_gather_alone_copy_alone() -> None:
    """KempnerForge gathers for queries, keys, values, gate and up, and scatters the gradients of all their inputs."""
    plan = run_of({**DENSE, "recompute": "none"}).cost.plan
    each = replace(TORCHTITAN, gathers_inputs="projection")
    more = [a - b for a, b in zip(copied_bytes(plan, each, None), copied_bytes(plan, TORCHTITAN, None), strict=True)]
    assert more == pytest.approx([(5 - 2) * 4 * STREAM] * 2)


@pytest.mark.parametrize(
    ("dtype", "of_stream", "of_others", "scaled"),
    [
        ("fp8", 6 / TENSORS + 2, 6, 0),
        ("float8 tensorwise", 6 / TENSORS + 2, 6, 0),
        ("float8_rowwise", 10, 10, 4),
        ("float8 rowwise", 10, 10, 4),
    ],
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


@pytest.mark.parametrize(
    ("change", "of_stream"),
    [
        ({"stack": "Megatron-LM", "model": "gpt3-tiny", "kv_heads": "", "dtype": "float8 rowwise"}, 6),
        ({"tensor": 1, "fsdp": 8, "dtype": "float8"}, 6),
        ({"sequence_parallel": False, "dtype": "float8"}, 6),
    ],
)
def test_others_cast_all_tokens(change: dict[str, str], of_stream: float) -> None:
    """torchao's rules are of stacks that use it, and a device casts what it does not gather."""
    run = run_of({**DENSE, **change})
    share = run.cost.plan.share
    assert run.precision
    forward, _ = cast_bytes(run.cost.plan, run.precision, fused=False)
    hidden = sum(branch.activated_elements(share) for branch in run.cost.plan.block.branches())
    elements = 2 * share.tokens * EMBED + share.tokens * share.head_features + hidden
    assert forward == pytest.approx(of_stream * elements)


@pytest.mark.parametrize(("part", "share"), [("layer collectives", 0.75), ("gathers", 0.5)])
def test_tensorwise_float8_gathers_half_of_the_bytes(part: str, share: float) -> None:
    """Of weights, and along the sequence: two gathers of a forward pass beside two scatters. By row it gathers all."""
    fast = machine("torchtitan_gpus", "h100")
    fast = replace(fast, constants=replace(fast.constants, link_seconds=0.0))
    seconds = {}
    for dtype in ("bf16", "float8 tensorwise", "float8 rowwise"):
        run = run_of({**DENSE, "dtype": dtype})
        network = Network(fast.running(run.stack, run.precision), run.topology, run.cost.plan.mesh)
        events = LayerEvents(run.cost.plan, run.cost.traffic, network, run.cost.plan.layers).events("forward")
        seconds[dtype] = sum(each.seconds for each in events if isinstance(each, Event) and each.part == part)
    assert seconds["float8 rowwise"] == pytest.approx(seconds["bf16"])
    assert seconds["float8 tensorwise"] == pytest.approx(share * seconds["bf16"])


def test_without_a_compiler_gradients_of_shared_inputs_are_added() -> None:
    """Queries, keys and values take two sums of the gradients of their input, gate and up one: 6 bytes an element."""
    plan = run_of(DENSE).cost.plan
    moved = []
    for sum_bytes in (0, TORCHTITAN_EAGER.kernels.sum_bytes):
        stack = replace(TORCHTITAN_EAGER, kernels=replace(TORCHTITAN_EAGER.kernels, sum_bytes=sum_bytes))
        moved.append(sum(kernel.moved_bytes for kernel in layer(plan, stack).backward))
    assert moved[1] - moved[0] == pytest.approx(6 * (2 + 1) * STREAM)
    assert summed_bytes(plan, TORCHTITAN) == 0


def test_a_branch_that_takes_no_stream_adds_no_gradients() -> None:
    """Rows of experts are not the stream: only the projections of attention and the router share theirs."""
    plan = run_of(MIXTURE).cost.plan
    counts = [count_sharing(plan, branch) for branch in plan.block.branches()]
    assert counts[0] == 3
    assert count_sharing(plan, Part) == 0  # it has no weights
    assert summed_bytes(plan, TORCHTITAN_EAGER) == pytest.approx(
        6 * sum(count - 1 for count in counts) * plan.share.tokens * plan.config.embed
    )


def test_dropped_tokens_wait_for_the_plain_all_to_all() -> None:
    """Megatron-Core drops tokens with it alone, and the recipes that drop them hide nothing of it."""
    row = {**MIXTURE, "virtual_stages": 2, "schedule": "interleaved"}
    seconds = {}
    for variant in ("", "token drop"):
        run = run_of({**row, "variant": variant})
        parts = predict_seconds(run.cost, machine("megatron_bridge_h100").running(run.stack), run.topology).parts
        seconds[variant] = parts["layer collectives"]
    assert seconds["token drop"] > 2 * seconds[""]
