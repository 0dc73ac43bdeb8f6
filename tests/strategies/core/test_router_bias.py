"""Load balancing without a loss: what moves the biases of a router."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from strategies import STRATEGIES, GPTConfig, TrainConfig
from strategies.costs.predict import predict
from strategies.single import SINGLE
from tests.strategies import quick
from tests.strategies.sampling import nightly

BIASED = GPTConfig(
    layers=1,
    embed=48,
    heads=4,
    vocab=257,
    sequence=24,
    experts=6,
    expert_mlp=20,
    router="sigmoid",
    router_bias_rate=0.01,
    router_groups=3,
    groups_per_token=2,
)


@pytest.mark.factorisations  # every day test_expert.py compares biases on a mesh with those of one device
def test_biases_move_against_the_loads_of_the_whole_batch():
    """By the rate, and not where a load is the mean. They have no moments and are not in the norm of the gradients.

    Loads are the choices of each expert less their mean (Wang et al. 2024, algorithm 1), here over two microbatches.
    """
    step = SINGLE.build(BIASED, "data=1", TrainConfig(4, microbatches=2))
    state, batch = step.init(jax.random.key(0)), step.place(np.arange(100).reshape(4, 25) * 7 % 257)
    _, grads = jax.jit(step.gradients)(state, batch)
    loads_LE = np.asarray(grads["blocks"]["experts"].pop("router_bias_E")) * 4 * BIASED.sequence
    moved, metrics = quick.compiled(step.lower())(state, batch)
    counts_LE = loads_LE + 4 * BIASED.sequence * BIASED.experts_per_token / 6
    np.testing.assert_allclose(counts_LE, np.round(counts_LE), atol=1e-3)
    assert counts_LE.sum(1) == pytest.approx(4 * BIASED.sequence * BIASED.experts_per_token)
    expected = np.float32(0.01) * -np.sign(np.round(loads_LE))
    np.testing.assert_array_equal(moved.params["blocks"]["experts"]["router_bias_E"], expected)
    assert (expected > 0).any()
    assert (expected < 0).any()
    norm = math.sqrt(sum(float(jnp.square(grad).sum()) for grad in jax.tree.leaves(grads)))
    assert float(metrics["grad_norm"]) == pytest.approx(norm, rel=1e-5)
    assert "router_bias_E" not in moved.optimizer[0].mu["blocks"]["experts"]


@functools.cache
def loads(name: str, mesh: str, **options):
    """The loads of experts of the first step, in units of 1 / (tokens x experts), whole."""
    step = STRATEGIES[name].build(BIASED, mesh, TrainConfig(8, microbatches=2, **options))
    state, batch = step.init(jax.random.key(0)), step.place(np.arange(200).reshape(8, 25) * 7 % 257)
    _, grads = jax.jit(step.gradients)(state, batch)
    return np.asarray(grads["blocks"]["experts"]["router_bias_E"]) * step.tokens_per_step * BIASED.dim_sizes["experts"]


@pytest.mark.parametrize(
    ("name", "mesh", "options", "sums"),
    [
        ("data", "data=4", {}, 1),
        ("zero2", "data=2", {}, 2),
        *nightly(
            ("fsdp", "fsdp=2", {}, 2),
            ("fsdp", "fsdp=2", {"gather": "step"}, 1),
            ("zero2", "data=2", {"reduce": "layer"}, 2),
            ("tensor", "tensor=2", {}, 1),
            ("three_d", "data=2,tensor=2", {}, 1),
        ),
    ],
)
def test_loads_are_summed_in_float32(name, mesh, options, sums):
    """Loads are counts: with gradients summed in bfloat16 they are those of one device, to less than half a choice.

    The formulas say so, too: of all gradients these alone are sent in float32.
    """
    options = {"reduce_dtype": "bfloat16", **options}
    np.testing.assert_allclose(loads(name, mesh, **options), loads("single", "data=1"), atol=0.1)
    sent = predict(name, BIASED, mesh, TrainConfig(8, microbatches=2, **options)).traffic
    wide = {each.operand_bytes for each in sent if each.array == "gradients" and each.dtype == "float32"}
    assert wide == {sums * 4 * BIASED.layers * BIASED.dim_sizes["experts"]}
