"""A backward pass split into input gradients and weight gradients equals the whole and repeats no matmul."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from benchmarks.program.compiled import read_program
from strategies import PRESETS, TrainConfig
from strategies.model.gpt import GPT
from strategies.pipelining.split_backward import SplitBackward
from tests.strategies.quick import compiled

CONFIG = dataclasses.replace(PRESETS["nano"], layers=2, embed=32, heads=4, vocab=64, sequence=16)
X_BTD = jax.random.normal(jax.random.key(1), (2, 16, 32))


@functools.cache
def halves(remat):
    """The blocks of a model: the backward pass, its residuals, and its two halves."""
    model = GPT(CONFIG, TrainConfig(2, remat=remat), nnx.Rngs(0))
    weights = nnx.to_pure_dict(nnx.state(model.blocks))
    rest = {name: part for name, part in nnx.to_pure_dict(nnx.state(model)).items() if name != "blocks"}

    def run(weights, x_BTD):
        return nnx.merge(nnx.graphdef(model), {**rest, "blocks": weights}).run(x_BTD)

    kept = jax.eval_shape(lambda *inputs: jax.vjp(run, *inputs)[1], weights, X_BTD)

    def backward(known, dy_BTD):
        return jax.tree.unflatten(jax.tree.structure(kept), jax.tree.leaves(known))(dy_BTD)

    known = jax.tree.leaves(jax.vjp(run, weights, X_BTD)[1])
    return backward, known, SplitBackward(backward, known, jnp.ones_like(X_BTD))


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_both_halves_make_the_whole(remat):
    """The two halves give the gradients of inputs and weights that the whole backward pass gives, to rounding."""
    backward, known, parts = halves(remat)
    dy_BTD = jax.random.normal(jax.random.key(2), X_BTD.shape)

    def in_two(known, dy_BTD):
        dx_BTD, between = parts.first(known, dy_BTD)
        return parts.second(known, between), dx_BTD

    whole, both = (compiled(jax.jit(function).lower(known, dy_BTD))(known, dy_BTD) for function in (backward, in_two))
    for mine, expected in zip(jax.tree.leaves(both), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-6 * float(jnp.abs(expected).max()))


@pytest.mark.parametrize("remat", ["none", "dots"])
def test_no_matmul_is_in_both_halves(remat):
    """The FLOPs of both halves add up to the whole, and the second half has the weights' matmuls only."""
    backward, known, parts = halves(remat)
    dy_BTD = jnp.ones_like(X_BTD)
    _, between = jax.eval_shape(parts.first, known, dy_BTD)

    def flops(function, *inputs):
        return read_program(jax.jit(function).lower(*inputs).compile().as_text() or "", {"data": 1}).flops

    first, second = flops(parts.first, known, dy_BTD), flops(parts.second, known, between)
    assert first + second == flops(backward, known, dy_BTD)
    matmul_weights = CONFIG.layers * (4 * CONFIG.embed**2 + 2 * CONFIG.embed * CONFIG.mlp_dim)
    assert second == 2 * matmul_weights * 2 * CONFIG.sequence


def test_only_activation_gradients_lie_between_the_halves():
    """Between the halves only gradients of activations are kept: 11 D elements for each token and layer.

    Three for queries, keys and values, four for the MLP's hidden layer, and four as wide as the residual stream.
    """
    _, known, parts = halves("dots")
    _, between = jax.eval_shape(parts.first, known, X_BTD)
    elements = sum(part.size for part in between)
    assert elements == 11 * CONFIG.layers * X_BTD.size
