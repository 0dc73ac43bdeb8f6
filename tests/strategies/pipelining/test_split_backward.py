"""A backward pass in two equals the whole, repeats no matmul, and holds in between what matmuls of weights take."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from benchmarks.program.compiled import read_program
from strategies import PRESETS, TrainConfig
from strategies.model.gpt import GPT
from strategies.model.halves import by_halves
from strategies.pipelining.split_backward import SplitBackward
from tests.strategies.quick import compiled

CONFIG = dataclasses.replace(PRESETS["nano"], layers=2, embed=32, heads=4, vocab=64, sequence=16)
X_BTD = jax.random.normal(jax.random.key(1), (2, 16, 32))


def is_none(leaf):
    """Whether the other half gives this gradient."""
    return leaf is None


@functools.cache
def halves(remat, dtype: Any = "float32"):
    """The blocks of a model: the backward pass, its residuals, and its two halves."""
    model = GPT(CONFIG, TrainConfig(2, remat=remat, dtype=dtype), nnx.Rngs(0))
    weights = nnx.to_pure_dict(nnx.state(model.blocks))
    rest = {name: part for name, part in nnx.to_pure_dict(nnx.state(model)).items() if name != "blocks"}

    def run(weights, x_BTD):
        return nnx.merge(nnx.graphdef(model), {**rest, "blocks": weights}).run(x_BTD)[0]

    x_BTD = X_BTD.astype(dtype)
    kept = jax.eval_shape(lambda *inputs: jax.vjp(run, *inputs)[1], weights, x_BTD)
    residuals = jax.jit(lambda *inputs: jax.tree.leaves(jax.vjp(run, *inputs)[1]))

    def backward(known, dy_BTD):
        return jax.tree.unflatten(jax.tree.structure(kept), jax.tree.leaves(known))(dy_BTD)

    known = compiled(residuals.lower(weights, x_BTD))(weights, x_BTD)
    return backward, known, SplitBackward(backward, known, jnp.ones_like(x_BTD))


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_both_halves_make_the_whole(remat):
    """The two halves give the gradients of inputs and weights that the whole backward pass gives, to rounding."""
    backward, known, parts = halves(remat)
    dy_BTD = jax.random.normal(jax.random.key(2), X_BTD.shape)

    def in_two(known, dy_BTD):
        dx_BTD, at_once, between = parts.first(known, dy_BTD)
        later = parts.second(known, between)
        return jax.tree.map(lambda one, other: other if one is None else one, at_once, later, is_leaf=is_none), dx_BTD

    whole, both = (compiled(jax.jit(function).lower(known, dy_BTD))(known, dy_BTD) for function in (backward, in_two))
    for mine, expected in zip(jax.tree.leaves(both), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-6 * float(jnp.abs(expected).max()))


@pytest.mark.parametrize("remat", ["none", "dots"])
def test_no_matmul_is_in_both_halves(remat):
    """The FLOPs of both halves add up to the whole, and the second half has the weights' matmuls only.

    Of each layer it gives four gradients. Those of biases and norms, which take no matmul, come with the first.
    """
    backward, known, parts = halves(remat)
    dy_BTD = jnp.ones_like(X_BTD)
    _, at_once, between = jax.eval_shape(parts.first, known, dy_BTD)
    later = jax.eval_shape(parts.second, known, between)
    assert (len(jax.tree.leaves(at_once)), len(jax.tree.leaves(later))) == (8, 4)

    def flops(function, *inputs):
        return read_program(compiled(jax.jit(function).lower(*inputs)).as_text() or "", {"data": 1}).flops

    first, second = flops(parts.first, known, dy_BTD), flops(parts.second, known, between)
    assert first + second == flops(backward, known, dy_BTD)
    matmul_weights = CONFIG.layers * (4 * CONFIG.embed**2 + 2 * CONFIG.embed * CONFIG.mlp_dim)
    assert second == 2 * matmul_weights * 2 * CONFIG.sequence


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("remat", "width"), [("none", 9), ("dots", 9), ("full", 15)])
def test_inputs_and_gradients_of_matmuls_lie_between_the_halves(remat, width, dtype):
    """Between the halves are gradients of the outputs of matmuls: 9 D for each token and layer, in the compute dtype.

    They are of queries, keys and values 3 D, of the attention's output D, of the MLP's hidden layer 4 D, of its output
    D. With full rematerialisation there are also inputs, 6 D: of all but the first matmul, which takes the layer's
    input. Of that there are two numbers for each token.
    """
    _, _, parts = halves(remat, dtype)
    elements = width * CONFIG.embed + (2 if remat == "full" else 0)
    assert sum(part.size for part in parts.between) == elements * CONFIG.layers * X_BTD.size // CONFIG.embed
    assert {part.dtype for part in parts.between if part.size >= X_BTD.size} == {jnp.dtype(dtype)}


def test_halves_of_a_batch_are_not_kept_beside_the_batch():
    """A layer on two halves (model/halves.py) that is run again: gradients of the output lie between, and no inputs."""
    layer = jax.checkpoint(lambda w_DF, x_BTD: by_halves(lambda half_BTD: (half_BTD @ w_DF, {}), x_BTD)[0])

    def backward(known, dy_BTF):
        return jax.vjp(layer, *known)[1](dy_BTF)

    known, dy_BTF = (jnp.ones((32, 8)), X_BTD), jnp.ones((*X_BTD.shape[:2], 8))
    assert sum(part.size for part in SplitBackward(backward, known, dy_BTF).between) == dy_BTF.size
