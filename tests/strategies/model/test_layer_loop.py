"""Loops over layers have as many layers in an iteration as was asked for, and no more."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from strategies import strategy
from strategies.backends.backend import CPU
from strategies.model.layers import scan_layers, unstacked
from tests.strategies.equality import ROUNDING, assert_equal, build, initial, single, trained
from tests.strategies.jaxprs import gradients_of, loops
from tests.strategies.models import DROPPING
from tests.strategies.sampling import nightly


def iterations(jaxpr: Any) -> list[tuple[int, int]]:
    """(iterations, layers that each runs) of the loops, of which one may be inside another."""
    loops = [each.params for each in jaxpr.eqns if each.primitive.name == "scan"]
    return [
        (loop["length"] // loop["unroll"], math.prod(inner[0] if inner else (loop["unroll"],)))
        for loop in loops
        for inner in [iterations(loop["jaxpr"].jaxpr)]
    ]


@pytest.mark.parametrize(
    ("layers", "unroll", "loop"),
    [
        (8, 1, (8, 1)),
        (8, 4, (2, 4)),
        (6, 4, (2, 3)),
        (7, 4, (7, 1)),
        (3, 2, (3, 1)),
        (4, 4, (1, 4)),
        (2, 4, (1, 2)),
        (1, 4, (1, 1)),
    ],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_all_iterations_have_equally_many_layers(layers: int, unroll: int, loop: tuple[int, int], reverse: bool):
    """Their number divides that of all layers and is `unroll` at most, so none runs outside; no result changes."""

    def step(x, w):
        return x * w + 1, x

    def run(w):
        return scan_layers(step, jnp.float32(1), w, unroll=unroll, reverse=reverse)

    weights = jnp.linspace(0.5, 1.5, layers)
    assert iterations(jax.make_jaxpr(run)(weights).jaxpr) == [loop]
    for found, expected in zip(run(weights), jax.lax.scan(step, jnp.float32(1), weights, reverse=reverse), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "mesh", "looped"),
    [("single", "data=1", False), ("fsdp", "fsdp=2", True), *nightly(("auto", "data=2", False))],
)
def test_layers_of_one_iteration_are_no_loop_where_loops_copy(name: str, mesh: str, looped: bool, monkeypatch):
    """Without a loop the step computes the same, with losses of a router. Layers that gather weights remain a loop."""
    monkeypatch.setattr(strategy, "backend_of", lambda device: dataclasses.replace(CPU, copies_into_stacks=True))
    config = dataclasses.replace(DROPPING, layers=2)
    step = build(name, mesh, config, remat="full", unroll=2)
    found = loops(gradients_of(step))
    assert any(loop.params["length"] == 2 for loop in found) == looped
    if not looped:
        assert_equal(trained(step, initial(step), range(3))[0], single(config), ROUNDING["float32"])


def test_gradients_of_unstacked_layers_are_stacked():
    """Autodiff of slices would pad the gradient of each layer and add it to those of all others."""
    stack, factors = jnp.ones((3, 2)), jnp.arange(3.0)

    def loss(stack: jax.Array) -> jax.Array:
        return jnp.stack([each * factor for each, factor in zip(unstacked(stack), factors, strict=True)]).sum()

    np.testing.assert_array_equal(jax.grad(loss)(stack), np.repeat(factors[:, None], 2, 1))
    program = str(jax.make_jaxpr(jax.grad(loss))(stack))
    assert "pad[" not in program
    assert "add_any" not in program
