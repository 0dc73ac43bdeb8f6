"""Each strategy communicates as its docstring says, read from the program that autodiff makes.

The primitives are counted in the jaxpr of the gradients, those in loops once for each iteration, with the elements of
what a device hands to them. What the compiler then makes of them is another matter, and not looked at here. Pipelines,
whose ticks are full of while loops that run zero or one times, are looked at in test_laws.py.
"""

import dataclasses
import functools

import pytest

from strategies import MeshSpec
from strategies.core.sizes import BYTES
from strategies.costs.predict import predict
from strategies.model.gpt import param_count
from tests.strategies.communication import CONFIG, communication
from tests.strategies.equality import TRAIN

RESIDUAL = TRAIN.batch_size * CONFIG.sequence * CONFIG.embed
"""Elements of the residual stream x[B,T,D]."""
WEIGHTS = param_count(CONFIG)
HELD_ALIKE = (6 * CONFIG.layers + 2 + CONFIG.sequence) * CONFIG.embed
"""Elements of norms, positions and the biases after a sum, which the tensor axis does not split."""
LOSS = 2 * TRAIN.batch_size * CONFIG.sequence
"""Elements summed for the loss: of each token the sum of exponentials and the target's logit, not again backward."""


def test_single_communicates_nothing():
    """One device has nobody to talk to."""
    assert not communication("single", "data=1")


@pytest.mark.parametrize("microbatches", [1, 2])
def test_data_sums_each_gradient_once_a_step(microbatches):
    """However many microbatches are accumulated; besides, the loss."""
    assert communication("data", "data=8", microbatches=microbatches) == {("psum", ("data",)): WEIGHTS + 1}


def test_data_sums_the_same_in_buckets():
    """Cutting gradients into buckets sends nothing more."""
    whole = communication("data", "data=8", part="update")
    assert communication("data", "data=8", part="update", bucket_bytes=10_000) == whole


@pytest.mark.parametrize(("name", "scatters"), [("zero1", 1), ("zero2", 2)])
def test_zero_scatters_gradients_and_gathers_what_it_updated(name, scatters):
    """Of two microbatches zero1 scatters the sum and zero2 each; weights are gathered once, in float32.

    Besides there are two sums of one number: the loss, and the norm of gradients that no device has whole.
    """
    counted = communication(name, "data=8", part="update", unit="bytes", microbatches=2, dtype="bfloat16")
    assert counted == {
        ("reduce_scatter", ("data",)): 4 * scatters * WEIGHTS,
        ("all_gather", ("data",)): 4 * WEIGHTS / 8,
        ("psum", ("data",)): 4 * 2,
    }


@pytest.mark.parametrize(("remat", "unneeded"), [("none", 13), ("dots", 9), ("full", 1)])
def test_fsdp_gathers_each_weight_forward_and_backward(remat, unneeded):
    """Its part is gathered twice, the whole is scattered once: never kept in between, whatever else is.

    Not gathered again are the embedding, which has no use for it, the head, whose backward pass comes at once, and the
    vectors of a layer that the backward pass does not need: the bias at its end, all biases where what they are added
    to is kept, and any vector where nothing is computed again.
    """
    counted = communication("fsdp", "fsdp=8", remat=remat)
    assert counted["reduce_scatter", ("fsdp",)] == WEIGHTS
    assert counted["psum", ("fsdp",)] == 1
    once = (2 * CONFIG.vocab + CONFIG.sequence + 2) * CONFIG.embed
    assert 8 * counted["all_gather", ("fsdp",)] == 2 * WEIGHTS - once - unneeded * CONFIG.layers * CONFIG.embed


def test_fsdp_gathers_a_tied_table_for_each_of_its_uses():
    """A tied head communicates as much as one of its own would."""
    tied = dataclasses.replace(CONFIG, tied=True)
    assert communication("fsdp", "fsdp=8", tied) == communication("fsdp", "fsdp=8")


def test_fsdp_gathers_and_scatters_for_each_microbatch():
    """Accumulating gradients costs the communication of every microbatch; the loss is summed once."""
    once, twice = communication("fsdp", "fsdp=8"), communication("fsdp", "fsdp=8", microbatches=2)
    for kind in ("all_gather", "reduce_scatter"):
        assert twice[kind, ("fsdp",)] == 2 * once[kind, ("fsdp",)]
    assert twice["psum", ("fsdp",)] == 1


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_fsdp_keeps_what_it_gathered_if_told_to(remat):
    """Without regathering each weight is gathered once a microbatch, exactly, whatever else is computed again."""
    counted = communication("fsdp", "fsdp=8", remat=remat, regather=False, microbatches=2)
    assert counted == {
        ("all_gather", ("fsdp",)): 2 * WEIGHTS / 8,
        ("reduce_scatter", ("fsdp",)): 2 * WEIGHTS,
        ("psum", ("fsdp",)): 1,
    }


@pytest.mark.parametrize("microbatches", [1, 2])
def test_fsdp_gathers_once_a_step_if_told_to(microbatches):
    """Each weight is gathered once and its gradient scattered once, however many microbatches there are."""
    counted = communication("fsdp", "fsdp=8", gather="step", microbatches=microbatches)
    assert counted == {
        ("all_gather", ("fsdp",)): WEIGHTS / 8,
        ("reduce_scatter", ("fsdp",)): WEIGHTS,
        ("psum", ("fsdp",)): 1,
    }


@pytest.mark.parametrize("options", [{}, {"regather": False}, {"gather": "step", "microbatches": 2}], ids=str)
@pytest.mark.parametrize("reduce_dtype", ["float32", "bfloat16"])
def test_fsdp_gathers_in_the_compute_dtype_and_sums_gradients_in_another(options, reduce_dtype):
    """In bfloat16 a gathered element is two bytes, but for vectors; one of gradients four unless told otherwise."""
    elements = communication("fsdp", "fsdp=8", **options)
    train = {"dtype": "bfloat16", "reduce_dtype": reduce_dtype, **options}
    counted = communication("fsdp", "fsdp=8", unit="bytes", **train)
    cost = predict("fsdp", CONFIG, MeshSpec.parse("fsdp=8"), dataclasses.replace(TRAIN, **train))
    wide = sum(weight.elements for weight in cost.plan.weights.values() if cost.plan.dtype(weight) == "float32")
    assert 8 * wide == (13 * CONFIG.layers + 2) * CONFIG.embed
    assert {axes for _, axes in counted} == {("fsdp",)}
    # The last norm, and all biases of a layer, because what they are added to is kept with them.
    unneeded = (9 * CONFIG.layers + 2) * CONFIG.embed // 8
    again = 0 if options else wide - unneeded
    gathered = counted["all_gather", ("fsdp",)] - 2 * elements["all_gather", ("fsdp",)]
    assert gathered == 2 * (wide + again)
    assert counted["reduce_scatter", ("fsdp",)] == BYTES[reduce_dtype] * elements["reduce_scatter", ("fsdp",)]
    assert counted["psum", ("fsdp",)] == 4


@pytest.mark.parametrize(
    ("name", "mesh", "kind", "options"),
    [
        ("data", "data=4", "psum", {}),
        ("data", "data=4", "psum", {"bucket_bytes": 10_000}),
        ("zero1", "data=4", "reduce_scatter", {}),
        ("zero2", "data=4", "reduce_scatter", {}),
        ("fsdp", "fsdp=4", "reduce_scatter", {}),
        ("hsdp", "data=2,fsdp=2", "psum", {}),
        ("context", "context=4", "psum", {}),
        ("tensor", "tensor=4", "psum", {}),
        ("pipeline", "pipeline=4", "psum", {"microbatches": 4}),
        ("three_d", "data=2,tensor=2", "psum", {}),
    ],
    ids=str,
)
def test_gradients_are_summed_in_reduce_dtype(name, mesh, kind, options):
    """In float32 by default, whatever the compute dtype; in bfloat16 they are half as many bytes. So is the formula."""
    spec, default = MeshSpec.parse(mesh), dataclasses.replace(TRAIN, dtype="bfloat16", **options)
    half = dataclasses.replace(default, reduce_dtype="bfloat16")
    count = functools.partial(communication, name, mesh, unit="bytes", dtype="bfloat16", **options)
    counts = [count(), count(reduce_dtype="bfloat16")]
    predicted = [
        sum(each.operand_bytes for each in predict(name, CONFIG, spec, train).traffic if each.array == "gradients")
        for train in (default, half)
    ]
    assert predicted[0] == 2 * predicted[1] > 0
    sums = [sum(counted[key] for key in counted if key[0] in (kind, "reduce_scatter")) for counted in counts]
    assert sums[0] - sums[1] == predicted[0] - predicted[1]


@pytest.mark.parametrize("options", [{"microbatches": 2}, {"gather": "step"}], ids=str)
def test_hsdp_is_fsdp_in_a_group_and_sums_parts_between_groups(options):
    """Inside a group as fsdp over as many devices; between groups each device's part of the gradients, once a step. The
    loss is summed over all devices at once.
    """
    counted, alone = communication("hsdp", "data=2,fsdp=4", **options), communication("fsdp", "fsdp=4", **options)
    assert counted.pop(("psum", ("data",))) == WEIGHTS / 4
    assert counted.pop(("psum", ("data", "fsdp"))) == 1
    counted["psum", ("fsdp",)] += 1
    assert counted == alone


@pytest.mark.parametrize(("remat", "again"), [("none", 0), ("dots", 0), ("full", 1)])
def test_tensor_scatters_and_gathers_the_tokens_twice_a_layer_each_way(remat, again):
    """And once each way at either end; gathered tokens are not kept for the backward pass, but gathered again.

    Only rematerialisation in full sums again: after the attention, not after the MLP, whose sum is the next layer's x.
    What every device holds alike has its gradient summed once a step.
    """
    counted = communication("tensor", "tensor=8", remat=remat)
    assert counted["reduce_scatter", ("tensor",)] == ((4 + again) * CONFIG.layers + 2) * RESIDUAL
    assert counted["all_gather", ("tensor",)] == (6 * CONFIG.layers + 2) * RESIDUAL / 8
    assert counted["psum", ("tensor",)] == HELD_ALIKE + LOSS
    assert counted["pmax", ("tensor",)] == LOSS / 2


@pytest.mark.parametrize(("remat", "again"), [("none", 0), ("dots", 0), ("full", 1)])
def test_tensor_without_sequence_parallelism_sums_the_residual_stream_twice_a_layer_each_way(remat, again):
    """And once for the embedding, once for the head; the loss takes a few numbers a token."""
    counted = communication("tensor", "tensor=8", remat=remat, sequence_parallel=False)
    assert set(counted) == {("psum", ("tensor",)), ("pmax", ("tensor",))}
    sums = (4 + again) * CONFIG.layers + 2
    assert counted["psum", ("tensor",)] == sums * RESIDUAL + LOSS


@pytest.mark.parametrize(("remat", "again"), [("none", 0), ("dots", 0), ("full", 1)])
@pytest.mark.parametrize("devices", [2, 8])
def test_context_sends_keys_and_values_around_a_ring(devices, remat, again):
    """To each of the others forward and backward, their gradients on the way back, and then home.

    Only rematerialisation in full goes around once more. Gradients of the weights are summed once a step.
    """
    counted = communication("context", f"context={devices}", remat=remat)
    hops = (1 + again) * (devices - 1) + (devices - 1) + devices
    assert counted == {
        ("ppermute", ("context",)): hops * CONFIG.layers * 2 * RESIDUAL / devices,
        ("psum", ("context",)): WEIGHTS + 1,
    }


@pytest.mark.parametrize(("remat", "times"), [("none", 2), ("dots", 2), ("full", 3)])
def test_context_exchanges_tokens_for_heads_and_back(remat, times):
    """Queries, keys, values and what attention makes of them, once each way; recomputed only where all is."""
    counted = communication("context", "context=8", remat=remat, context_attention="ulysses")
    assert counted == {
        ("all_to_all", ("context",)): times * CONFIG.layers * 4 * RESIDUAL / 8,
        ("psum", ("context",)): WEIGHTS + 1,
    }


@pytest.mark.parametrize("name", ["fsdp", "tensor"])
def test_logits_in_chunks_communicate_as_much(name):
    """Sums over a split vocabulary are made for each token; a table that is gathered is so for all chunks at once."""
    mesh, logits_bytes = f"{name}=8", 4 * CONFIG.vocab * 8
    chunked, whole = communication(name, mesh, logits_bytes=logits_bytes), communication(name, mesh)
    assert chunked == whole
