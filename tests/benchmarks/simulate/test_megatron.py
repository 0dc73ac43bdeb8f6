"""What only Megatron-LM's kernels and stages do, as counted by hand."""

from dataclasses import replace

import pytest

from benchmarks.devices.topology import Topology
from benchmarks.simulate.stacks import MEGATRON
from tests.benchmarks.simulate.test_accounting import (
    EMBED,
    IDEAL,
    LAYERS,
    MODEL,
    SENDING,
    TOKENS,
    VOCAB,
    seconds,
    step,
)

STAGES, TENSORS = 4, 2
SPLIT, WHOLE = 12 * EMBED**2 + 7 * EMBED, 6 * EMBED
"""Parameters of a layer that a tensor axis splits, and those of norms and of biases of outputs, which it does not."""
FIRST = LAYERS / STAGES * (SPLIT / TENSORS + WHOLE) + EMBED * (VOCAB / TENSORS + TOKENS)
"""Parameters of a device of the first stage."""


@pytest.mark.parametrize(("hosts", "tied"), [(2, True), (1, True), (2, False)])
def test_the_first_stage_sums_the_gradients_of_the_whole_table(hosts, tied):
    """Over its replicas, and if the table is tied once more with the last stage, over the links between these two.

    Where all stages have the ends, they split it. Stages are numbered host by host, so replicas share a host. A
    gradient has two bytes.
    """
    model = replace(MODEL, tied=tied)
    cost = step("three_d", "data=2,pipeline=4,tensor=2", model, reduce_dtype="bfloat16", sequence_parallel=False)
    topology = Topology("h100", (hosts, 16 // hosts))
    found, shared = (
        seconds(cost, SENDING, topology, embedding_and_head=ends, lockstep=False, outermost=("pipeline",))["gradients"]
        for ends in ("first and last", "all")
    )
    of_table = 2 * EMBED * VOCAB / TENSORS / (50e9 if hosts == 2 else 450e9)
    more = 2 * (FIRST - cost.plan.elements) / 450e9 + (of_table if tied else 0)
    assert found - shared == pytest.approx(more, rel=1e-4)


def test_the_first_stage_updates_the_whole_table():
    """The optimizer moves its bytes for each parameter of the stage that has most."""
    cost = step("three_d", "data=2,pipeline=4,tensor=2")
    found = seconds(cost, replace(IDEAL, stack=MEGATRON))["optimizer"]
    assert found == pytest.approx(MEGATRON.kernels.optimizer_bytes * FIRST / 3350e9, rel=1e-4)


@pytest.mark.parametrize(("sequences", "tensors"), [(1, 8), (2, 8), (1, 4), (3, 4), (3, 8)])
def test_softmax_is_fused_for_multiples_of_four_sequences_and_heads(sequences, tensors):
    """Else it is five kernels in place of one, in each pass, and moves its float32 scores again and again.

    MODEL has 16 heads. Softmax alone reads and writes scores in two bytes; five kernels convert, scale, mask, compute
    and convert back. The backward pass reads the gradient, and of softmax its result, too.
    """
    fused = sequences * 16 // tensors % 4 == 0
    cost = step("tensor", f"tensor={tensors}", batch_size=sequences, microbatches=1)
    scores = LAYERS * sequences * 16 // tensors * TOKENS**2
    usual, found = (
        seconds(cost, replace(IDEAL, stack=stack, constants=replace(IDEAL.constants, kernel_seconds=1.0)))
        for stack in (replace(MEGATRON, kernels=replace(MEGATRON.kernels, softmax_multiple=1)), MEGATRON)
    )
    more = 0 if fused else (2 + 4) + 3 * (4 + 4) + (4 + 2) - 4 + (2 + 4) + (4 + 4 + 4) + 2 * (4 + 4) + (4 + 2) - 6
    assert found["memory"] - usual["memory"] == pytest.approx(more * scores / 3350e9)
    waited = found["launches"] - usual["launches"]
    assert waited == pytest.approx(0 if fused else LAYERS * 8, rel=1e-3)
