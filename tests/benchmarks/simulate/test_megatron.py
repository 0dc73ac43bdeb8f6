"""What only Megatron-LM's kernels and stages do, as counted by hand."""

from dataclasses import replace

import pytest

from benchmarks.devices.topology import Topology
from tests.benchmarks.simulate.host import MEGATRON
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

    Where all stages have the ends, they split it. Stages share a host, and replicas do not if there are two. A gradient
    has two bytes.
    """
    model = replace(MODEL, tied=tied)
    cost = step("three_d", "data=2,pipeline=4,tensor=2", model, reduce_dtype="bfloat16", sequence_parallel=False)
    topology = Topology("h100", (hosts, 16 // hosts))
    found, shared = (
        seconds(cost, SENDING, topology, embedding_and_head=ends, lockstep=False)["gradients"]
        for ends in ("first and last", "all")
    )
    of_table = 2 * EMBED * VOCAB / TENSORS / 450e9
    more = 2 * (FIRST - cost.plan.elements) / (50e9 if hosts == 2 else 450e9) + (of_table if tied else 0)
    assert found - shared == pytest.approx(more, rel=1e-4)


def test_the_first_stage_updates_the_whole_table():
    """The optimizer moves its bytes for each parameter of the stage that has most."""
    cost = step("three_d", "data=2,pipeline=4,tensor=2")
    found = seconds(cost, replace(IDEAL, stack=MEGATRON))["optimizer"]
    assert found == pytest.approx(MEGATRON.kernels.optimizer_bytes * FIRST / 3350e9, rel=1e-4)
