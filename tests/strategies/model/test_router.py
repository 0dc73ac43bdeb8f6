"""Which experts tokens go to, and in which rows: routers, forced routings and blocks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from strategies import TrainConfig
from strategies.core.expert_rows import blocks_here, computed_blocks
from strategies.core.share import Share
from strategies.model.expert_rows import blocks_of, filled_blocks
from strategies.model.router import block_slots, choose, forced, zipf_shares
from tests.strategies.models import MOE
from tests.strategies.sampling import nightly


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


@pytest.mark.parametrize(
    ("tokens", "here"), [(6, 6), (42, 1), (198, 3), *nightly((6, 1), (6, 3), (42, 3), (42, 6), (198, 1), (198, 6))]
)
def test_blocks_have_a_row_for_every_choice_whatever_the_experts(tokens, here):
    """Each choice of an expert that is here has a row of its own, in a block of its expert; other rows are empty.

    Blocks without rows come last, and belong to no expert. With balanced routing of 2 of 6 experts as many are filled
    as are counted, and padding is at most half of their rows where blocks are not the smallest.
    """
    draw, most, choices = np.random.default_rng(tokens), tokens * min(2, here), tokens * 2 * here // 6
    blocks = blocks_of(most, choices, here)
    assert most <= blocks[0] * blocks[1] <= most + max(choices / 2, 7 * here)
    filled = 0
    for experts_Nk in (
        np.full((tokens, 2), [1, 0]),
        draw.permuted(np.tile(np.arange(6), (tokens, 1)), axis=1)[:, :2],
        np.stack([np.arange(tokens) % 6, (np.arange(tokens) + 1) % 6], 1),  # balanced
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
    assert filled == filled_blocks(choices, here, *blocks)


@pytest.mark.parametrize(
    ("devices", "dispatch", "blocks", "computed"),
    [
        (1, "all_to_all", (20, 16), 18),  # 6 experts with 40 rows each: 3 blocks of 16
        (2, "all_gather", (17, 32), 9),  # 3 experts with 80 rows each: 3 blocks of 32
    ],
)
def test_blocks_that_are_computed_are_those_that_balanced_routing_fills(devices, dispatch, blocks, computed):
    """Five sequences of 24 tokens on a device, 2 of 6 experts a token: by hand, and counted in a device's blocks."""
    config = dataclasses.replace(MOE, routing="balanced")
    train = TrainConfig(5, dispatch=dispatch)
    share = Share(config, train, 120, experts=devices, grouped_matmuls="skipping_loop")
    assert blocks_here(share) == blocks
    experts_Nk = jnp.tile(forced(config, jnp.arange(24)), (5 * devices, 1))
    held = 6 // devices
    _, expert_S = block_slots(jnp.minimum(experts_Nk, held), held, *blocks)
    assert computed_blocks(share) == computed == (expert_S < held).sum()
    assert computed_blocks(dataclasses.replace(share, grouped_matmuls="loop")) == blocks[0]


def test_a_softmax_over_the_chosen_logits_is_a_renormalised_one():
    """The two definitions of the router of Mixtral and gpt-oss agree; OLMoE's weights sum to less than one."""
    logits_NE = jnp.asarray(np.random.default_rng(0).normal(size=(50, 6)), jnp.float32)
    routes = choose(logits_NE, MOE)
    top_Nk, experts_Nk = jax.lax.top_k(logits_NE, 2)
    np.testing.assert_array_equal(routes.experts_Nk, experts_Nk)
    np.testing.assert_allclose(routes.weights_Nk, jax.nn.softmax(top_Nk), rtol=1e-6)
    assert (choose(logits_NE, dataclasses.replace(MOE, router="softmax")).weights_Nk.sum(1) < 1).all()
