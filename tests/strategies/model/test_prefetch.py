"""Weights that are gathered one layer ahead: the same numbers, gathered in the iteration before."""

import dataclasses

import jax
import numpy as np
import pytest

from strategies import STRATEGIES, TrainConfig
from tests.strategies.formulas import cost
from tests.strategies.jaxprs import follow, gradients_of, loop_bodies
from tests.strategies.models import ODD, SMALL, UNTIED
from tests.strategies.quick import compiled


@pytest.mark.parametrize("prefetch", ["on", "off"])
def test_an_iteration_communicates_for_its_neighbours(prefetch):
    """With prefetch=on no matmul of a loop takes what the same iteration gathers, and no reduce-scatter what it
    multiplies. Otherwise some do.

    Both loops gather: the forward and the backward one, whose recomputation needs the weights again.
    """
    built = STRATEGIES["fsdp"].build(ODD, "fsdp=8", TrainConfig(16, remat="full", prefetch=prefetch))
    program = gradients_of(built)
    loops = [*loop_bodies(program)]

    def counted(source, sink):
        return [follow(body, [False] * len(body.invars), source, sink)[1:] for body in loops]

    gathers, products = counted("all_gather", "dot_general"), counted("dot_general", "reduce_scatter")
    assert len(loops) == 2
    assert all(count > 0 for count, _ in (*gathers, *products))
    assert [late == 0 for _, late in gathers] == [prefetch == "on"] * 2
    assert (sum(late for _, late in products) == 0) == (prefetch == "on")


@pytest.mark.parametrize(("microbatches", "waits"), [(1, False), (2, True)])
def test_gathers_of_both_ends_wait_for_no_layer(microbatches, waits):
    """With prefetch=on no gather takes what a matmul gave, also of embedding and head: compilers may begin each
    ahead. With several microbatches the gathers before the two loops wait (`is_ordered`).
    """
    train = TrainConfig(16, remat="full", prefetch="on", microbatches=microbatches)
    built = STRATEGIES["fsdp"].build(UNTIED, "fsdp=8", train)
    program = gradients_of(built)
    _, products, gathers = follow(program, [False] * len(program.invars), "dot_general", "all_gather")
    assert products > 0
    assert (gathers > 0) == waits


@pytest.mark.factorisations
@pytest.mark.parametrize("layers", [2, 3])
def test_few_layers_are_gathered_ahead_too(layers):
    """With loops of no or one iteration, and sums over replicas in them, gradients are those without prefetch."""
    config = dataclasses.replace(SMALL, layers=layers)
    found = []
    for prefetch in ("on", "off"):
        options = TrainConfig(16, remat="full", reduce="layer", prefetch=prefetch)
        built = STRATEGIES["hsdp"].build(config, "data=2,fsdp=4", options)
        tokens = np.random.default_rng(0).integers(0, config.vocab, built.batch.shape).astype(np.int32)
        state = compiled(built.init.lower(jax.random.key(0)))(jax.random.key(0))
        lowered = built.gradients.lower(built.state, built.batch)
        found.append(compiled(lowered)(state, built.place(tokens)))
    for mine, expected in zip(*map(jax.tree.leaves, found), strict=True):
        assert np.linalg.norm(expected) > 0
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("remat", ["none", "full"])
def test_the_last_layer_is_gathered_once(remat):
    """The formula of gathers again counts one layer less."""
    on, off = (cost("fsdp", "fsdp=8", ODD, remat=remat, prefetch=prefetch) for prefetch in ("on", "off"))
    again = ("all_gather", ("fsdp",))
    less = off.sent[again]["weights again"] - on.sent[again]["weights again"]
    assert less * ODD.layers == off.sent[again]["weights again"] > 0
    assert on.sent[again]["weights"] == off.sent[again]["weights"]


def test_evaluation_keeps_no_residuals():
    """A forward pass alone holds the weights of one layer more than without prefetch, and no residuals of layers."""
    config = dataclasses.replace(SMALL, layers=8, sequence=128)
    held = []
    for prefetch in ("on", "off"):
        built = STRATEGIES["fsdp"].build(config, "fsdp=8", TrainConfig(8, remat="none", prefetch=prefetch))
        memory = compiled(built.evaluation.lower(built.state.params, built.batch)).memory_analysis()
        assert memory
        held.append(memory.temp_size_in_bytes)
    layer = sum(x.dtype.itemsize * x.size // config.layers for x in jax.tree.leaves(built.state.params["blocks"]))
    assert held[0] - held[1] < 1.5 * layer < config.layers * 4 * config.sequence * config.embed
