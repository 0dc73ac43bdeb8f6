"""Which experts tokens go to, and in which rows: routers, forced routings and blocks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from strategies.model.expert_rows import blocks_of, filled_blocks
from strategies.model.router import block_slots, choose, forced, zipf_shares
from tests.strategies.model.test_experts import MOE


@pytest.mark.parametrize(("experts", "chosen"), [(8, 2), (6, 4), (8, 8)])
def test_forced_routings_have_the_shares_that_they_say(experts, chosen):
    """Of every 24 consecutive tokens: distinct experts of each, and counts within two of those of the shares.

    No gradient is lost: that of the router is not zero, wherever a token has a choice of weights.
    """
    even = (chosen / experts,) * experts
    shares = {"balanced": even, "one": (1.0,) * chosen + (0.0,) * (experts - chosen)}
    shares |= {f"zipf={x}": zipf_shares(experts, chosen, x) for x in (0.5, 1.2, 8.0)}
    for routing, expected in shares.items():
        config = dataclasses.replace(MOE, experts=experts, experts_per_token=chosen, routing=routing, sequence=96)
        forced_Tk = forced(config, jnp.arange(96))
        assert all(len(set(forced_k)) == chosen for forced_k in forced_Tk.tolist())
        for part_tk in np.split(np.asarray(forced_Tk), 4):
            counts = np.bincount(part_tk.reshape(-1), minlength=experts)
            np.testing.assert_allclose(sorted(counts), sorted(24 * np.array(expected)), atol=2)
        assert sum(expected) == pytest.approx(chosen)
        router = jax.grad(lambda w, config=config, x=forced_Tk: choose(w, config, x).weights_Nk[:, 0].sum())
        assert np.abs(router(jnp.zeros((96, experts)))).max() > 0


@pytest.mark.parametrize("tokens", [3, 40, 200])
@pytest.mark.parametrize("here", [6, 1, 3])
def test_blocks_have_a_row_for_every_choice_whatever_the_experts(tokens, here):
    """Each choice of an expert that is here has a row of its own, in a block of its expert; other rows are empty.

    Blocks without rows come last, and belong to no expert. With equally many choices of all as many are filled as are
    counted.
    """
    draw, most = np.random.default_rng(tokens), min(2, here)
    blocks = blocks_of(tokens * most, tokens * most, here)
    assert blocks[0] * blocks[1] <= max(1.5 * most * tokens, (here + most * tokens / 8) * 8)
    by_token = np.stack([np.arange(tokens) % 6, (np.arange(tokens) + 1) % 6], 1)
    for experts_Nk in (
        np.full((tokens, 2), [5, 0]),
        by_token,
        draw.permuted(np.tile(np.arange(6), (tokens, 1)), axis=1)[:, :2],
    ):
        found, expert_S = block_slots(jnp.minimum(jnp.asarray(experts_Nk), here), here, *blocks)
        row_M, choice_R = np.asarray(found.row_Nk).reshape(-1), np.asarray(found.choice_R)
        (chosen,) = np.nonzero(experts_Nk.reshape(-1) < here)
        np.testing.assert_array_equal(np.asarray(expert_S)[row_M[chosen] // blocks[1]], experts_Nk.reshape(-1)[chosen])
        np.testing.assert_array_equal(choice_R[row_M[chosen]], chosen)
        assert (choice_R == 2 * tokens).sum() == choice_R.size - len(chosen)
        assert (np.delete(row_M, chosen) == choice_R.size).all()
        counts, filled = np.bincount(experts_Nk.reshape(-1), minlength=6)[:here], (np.asarray(expert_S) < here).sum()
        assert filled == np.ceil(counts / blocks[1]).sum()
        assert (np.asarray(expert_S)[filled:] == here).all()
        if (counts == counts[0]).all():
            assert filled == filled_blocks(counts.sum(), here, *blocks)


def test_a_softmax_over_the_chosen_logits_is_a_renormalised_one():
    """The two definitions of the router of Mixtral and gpt-oss agree; OLMoE's weights sum to less than one."""
    logits_NE = jnp.asarray(np.random.default_rng(0).normal(size=(50, 6)), jnp.float32)
    routes = choose(logits_NE, MOE)
    top_Nk, experts_Nk = jax.lax.top_k(logits_NE, 2)
    np.testing.assert_array_equal(routes.experts_Nk, experts_Nk)
    np.testing.assert_allclose(routes.weights_Nk, jax.nn.softmax(top_Nk), rtol=1e-6)
    assert (choose(logits_NE, dataclasses.replace(MOE, router="softmax")).weights_Nk.sum(1) < 1).all()
