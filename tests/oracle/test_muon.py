"""Muon equals PyTorch's and optax's, each by its own convention of the momentum."""

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from strategies.backends.backend import NO_DEVICES
from strategies.core.matrices import Muon
from strategies.core.plan import Plan
from strategies.core.rules import rule_of
from strategies.mesh import MeshSpec
from strategies.model.weights import by_name, nested
from tests.oracle.families import STEPS, difference, drawn, sketch
from tests.oracle.muon import CONFIG, FILE, TRAIN, VARIANTS, gradient, matrices, shapes

TOLERANCE = 1e-4
"""Relative to the norm of the weights; Newton-Schulz in float32 rounds the changes, which are about as large."""


def plan_of(train) -> Plan:
    """The plan of one device."""
    return Plan.of((), CONFIG, MeshSpec.parse("data=1"), train, NO_DEVICES)


def trees(of) -> Any:
    """A tree of float32 arrays, one for each weight."""
    return nested({name: jnp.asarray(of(name, shape), jnp.float32) for name, shape in shapes().items()})


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_torch(variant):
    """Weights after three steps with given gradients, for each kind of weight that has matrices."""
    train, golden = VARIANTS[variant], json.loads(FILE.read_text())[variant]
    weights = trees(drawn)
    muon = Muon(plan_of(train))
    rule = rule_of(train, jax.tree.map(lambda _: P(), weights), muon)
    state, update = rule.init(weights), jax.jit(rule.update)
    for step in range(STEPS):
        changes, state = update(trees(lambda name, shape, step=step: gradient(name, shape, step)), state, weights)
        weights = jax.tree.map(jnp.add, weights, changes)
    found = by_name(weights)
    parts = {name: matrices(np.asarray(found[name]), name, by_head=train.by_head) for name in muon.weights}
    made = {name: sketch(np.concatenate([each.reshape(-1) for each in of]), name) for name, of in parts.items()}
    assert max(difference(made, golden).values()) < TOLERANCE
    initial = {
        name: sketch(
            np.concatenate([each.reshape(-1) for each in matrices(drawn(name, shape), name, by_head=train.by_head)]),
            name,
        )
        for name, shape in shapes().items()
        if name in golden
    }
    assert min(difference(initial, golden).values()) > 100 * TOLERANCE


def test_orthogonalises_as_optax_does():
    """Updates equal those of `optax.contrib.muon`, whose momentum is corrected for its zero start, in each step."""
    names = [name for name in Muon(plan_of(TRAIN)).weights if "qkv" not in name]
    train = dataclasses.replace(TRAIN, matrix_scale="original")
    muon = Muon(plan_of(train))
    stacked = {name: shapes()[name] for name in names}
    dims: Any = {
        name: optax.contrib.MuonDimensionNumbers(len(shape) - 2, len(shape) - 1) for name, shape in stacked.items()
    }
    reference = optax.contrib.muon(1.0, beta=train.momentum, nesterov=True, muon_weight_dimension_numbers=dims)
    weights = {name: jnp.zeros(shape) for name, shape in stacked.items()}
    state = reference.init(weights)
    mean, b = {name: np.zeros(shape) for name, shape in stacked.items()}, train.momentum
    for step in range(STEPS):
        grads = {name: gradient(name, shape, step) for name, shape in stacked.items()}
        mean = {name: b * mean[name] + (1 - b) * grads[name] for name in names}
        expected: Any
        expected, state = reference.update(jax.tree.map(lambda g: jnp.asarray(g, jnp.float32), grads), state, weights)
        directions = {
            name: b * mean[name] / (1 - b ** (step + 2)) + (1 - b) * grads[name] / (1 - b ** (step + 1))
            for name in names
        }
        all_directions = {
            name: jnp.asarray(directions.get(name, np.zeros(shapes()[name])), jnp.float32) for name in muon.weights
        }
        found = muon.orthogonalised(all_directions)
        for name in names:
            np.testing.assert_allclose(-found[name], expected[name], atol=TOLERANCE * np.abs(expected[name]).max())
