"""Load balancing without a loss: what moves the biases of a router."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from strategies import GPTConfig, Infeasible, TrainConfig
from strategies.data import DATA
from strategies.single import SINGLE
from tests.strategies import quick

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
    _, grads = quick.jit(step.gradients)(state, batch)
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


def test_compressed_loads_are_refused():
    """With the numbers."""
    with pytest.raises(Infeasible, match=r"router_bias_rate=0.01 does not go with compression=int8; leave one of them"):
        DATA.build(BIASED, "data=2", TrainConfig(4, compression="int8"))
