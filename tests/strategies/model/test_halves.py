"""Layers on two halves of the batch: the same results and bytes, in twice as many collectives that are independent."""

import dataclasses
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Literal

from benchmarks.devices.topology import Topology
from benchmarks.program.compiled import read_program
from strategies import STRATEGIES, TrainConfig
from strategies.model.halves import by_halves
from tests.strategies.jaxprs import collective, gradients_of, inner, loops
from tests.strategies.models import SMALL


def test_a_half_knows_nothing_of_the_other():
    """What a layer mixes over its batch stays within each half; the order is kept."""
    x = jnp.arange(4.0).reshape(4, 1, 1)
    found = by_halves(lambda half: (half + 10 * half.sum(0, keepdims=True), {}), x)[0]
    np.testing.assert_array_equal(found.ravel(), [10, 11, 52, 53])


def test_gradients_of_the_halves_are_joined_and_not_padded():
    """The gradient of the batch is that of both halves, one after the other.

    Padded to the whole and added up, they take more memory traffic, and XLA for GPUs hides less of what is sent.
    """
    _, backward = jax.vjp(lambda x: by_halves(lambda half: (jnp.sin(half), {}), x)[0], jnp.arange(4.0))
    written = [equation.primitive.name for equation in jax.make_jaxpr(backward)(jnp.ones(4)).eqns]
    assert "concatenate" in written
    assert "pad" not in written


def collectives(program, looped=False):
    """(primitive, elements) of each collective over `tensor` inside loops, with how often it is written there."""
    found = Counter()
    for equation in program.eqns:
        name, axes = collective(equation)
        if looped and "tensor" in axes:
            found[name, sum(x.aval.size for x in equation.invars)] += 1
        for part, _ in inner(equation):
            found += collectives(part, looped or equation.primitive.name == "scan")
    return found


def test_a_layer_has_twice_as_many_collectives_of_half_the_size():
    """Each gather and each sum of a layer becomes two, of half as many elements."""
    whole, halves = (
        collectives(gradients_of(step))
        for step in (
            STRATEGIES["tensor"].build(SMALL, "tensor=4", TrainConfig(16, halves=halves)) for halves in ("off", "on")
        )
    )
    assert whole
    assert halves == {(name, elements // 2): 2 * count for (name, elements), count in whole.items()}


def independent_matmuls(body, features):
    """For each all-to-all, how many matmuls with that many features neither depend on it, nor it on them."""
    before, matmuls, exchanges = {}, [], []
    for index, equation in enumerate(body.eqns):
        inputs = (before.get(var, set()) for var in equation.invars if not isinstance(var, Literal))
        dependencies = {index}.union(*inputs)
        before |= dict.fromkeys(equation.outvars, dependencies)
        shapes = [var.aval.shape for var in (*equation.invars, *equation.outvars)]
        if equation.primitive.name == "dot_general" and any(features in shape for shape in shapes):
            matmuls.append((index, dependencies))
        if equation.primitive.name == "all_to_all":
            exchanges.append((index, dependencies))
    return [
        sum(exchange not in of_matmul and matmul not in of_exchange for matmul, of_matmul in matmuls)
        for exchange, of_exchange in exchanges
    ]


@pytest.mark.parametrize(("halves", "parts"), [("off", 1), ("on", 2)])
def test_an_exchange_of_tokens_waits_for_no_matmul_that_may_hide_it(halves, parts):
    """Forward and backward no exchange and no matmul of the shared expert depend on each other. So a compiler may run
    the matmuls from the start of the exchange to its end; on two halves also those of the experts for the other half.
    """
    config = dataclasses.replace(SMALL, experts=4, expert_mlp=24, shared_mlp=40, capacity_factor=1.0, layers=3)
    train = TrainConfig(16, halves=halves, dispatch="all_to_all", remat="full")
    step = STRATEGIES["expert"].build(config, "expert=2", train)
    program = gradients_of(step)
    forward, backward = (loop.params["jaxpr"].jaxpr for loop in loops(program) if loop.params["length"] == 3)
    (backward,) = (each.params["jaxpr"] for each in backward.eqns if each.primitive.name == "remat2")
    # Gate, up and down. Backward, gate and up again, and two gradients of each matmul.
    assert independent_matmuls(forward, config.shared_mlp) == [3 * parts] * 2 * parts
    assert independent_matmuls(backward, config.shared_mlp) == [8 * parts] * 3 * parts
    assert independent_matmuls(forward, config.expert_mlp) == [3 * (parts - 1)] * 2 * parts
    assert min(independent_matmuls(backward, config.expert_mlp)) > 8 * (parts - 1)


@pytest.mark.libtpu
@pytest.mark.factorisations
def test_tpus_exchange_more_tokens_beside_matmuls_on_halves():
    """Compiled for v5e, all-to-alls have matmuls between their start and end: those of the shared expert without
    halves, and with them most.
    """
    config = dataclasses.replace(SMALL, block="llama", embed=512, sequence=512, experts=8, expert_mlp=512)
    config, shares = dataclasses.replace(config, shared_mlp=512, capacity_factor=1.0), []
    for halves in ("off", "on"):
        train = TrainConfig(16, halves=halves, dispatch="all_to_all", dtype="bfloat16", remat="full")
        step = STRATEGIES["expert"].build(config, "expert=8", train, Topology.parse("v5e:2x4").devices())
        program = read_program(step.lower().compile().as_text() or "", step.mesh.shape)
        found: Counter[bool] = Counter()
        for each in program.collectives:
            if each.kind == "all_to_all":
                found[bool(each.overlapped and each.overlapped.flops)] += each.times * int(each.sent_bytes)
        shares.append(found[True] / found.total())
    assert 0.5 < shares[0] < shares[1]
