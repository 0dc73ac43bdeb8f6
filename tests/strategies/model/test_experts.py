"""A layer with experts on one device: what a loop over tokens and experts computes, and what its formulas say."""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from strategies import PRESETS, GPTConfig
from strategies.costs.layer import flops_per_token
from strategies.model.block import block_of
from strategies.model.experts import Experts
from strategies.model.gpt import param_count, weight_specs
from strategies.model.hooks import ONE_DEVICE, LayerInfo
from strategies.model.router import choose
from tests.strategies.models import MOE, MOE_DROPPING, MOE_ROUTERS, active_param_count


def part(config, deviation=1.0):
    """The experts of a layer with weights far from zero, and tokens."""
    experts, draw = Experts(config, nnx.Rngs(0)), np.random.default_rng(0)
    for _, weight in nnx.to_flat_state(nnx.state(experts, nnx.Param)):
        weight[...] = jnp.asarray(draw.normal(0, deviation / math.sqrt(config.embed), weight.shape), jnp.float32)
    return experts, jnp.asarray(draw.normal(size=(2, config.sequence, config.embed)), jnp.float32)


def run(experts, x_BTD):
    """The output of the experts, and their losses."""
    kept = experts.config.capacity_factor is None
    hooks = dataclasses.replace(ONE_DEVICE, grouped_matmuls="skipping_loop" if kept else None)
    info = LayerInfo(hooks, "xla", None, x_BTD.shape[1])

    def outputs_and_losses(x_BTD):
        y_BTD, sums = experts(jnp.zeros_like(x_BTD), x_BTD, info)
        return y_BTD, experts.extras_of(sums, hooks)

    return jax.jit(outputs_and_losses)(x_BTD)


def silu(x):
    """In numpy."""
    return x / (1 + np.exp(-x))


def by_loop(config, weights, x_BTD):
    """What a plain loop over groups, tokens and their experts computes in float64; and how many choices it drops."""
    w = {name: np.asarray(weight, np.float64) for name, weight in weights.items()}
    y_BTD, dropped, group = np.zeros(x_BTD.shape), 0, config.expert_group or config.sequence
    for b, start in np.ndindex(len(x_BTD), config.sequence // group):
        taken = dict.fromkeys(range(config.experts), 0)
        for t in range(start * group, (start + 1) * group):
            x_D = np.asarray(x_BTD[b, t], np.float64)
            logits_E = x_D @ w["router_DE"]
            scores_E = np.exp(logits_E) / np.exp(logits_E).sum()
            if config.router == "sigmoid":
                scores_E = 1 / (1 + np.exp(-logits_E))
            biased_E = scores_E + w.get("router_bias_E", 0)
            of_groups = np.split(np.arange(config.experts), config.router_groups)
            best = sorted(of_groups, key=lambda group: -sum(sorted(biased_E[group])[-2:]))[: config.groups_per_token]
            chosen = sorted(np.concatenate(best), key=lambda e: -biased_E[e])[: config.experts_per_token]
            total = 1 if config.router == "softmax" else sum(scores_E[chosen]) / config.routed_scale
            for e in chosen:
                taken[e] += 1
                factor = config.capacity_factor
                if factor and taken[e] > math.ceil(group * config.experts_per_token / config.experts * factor):
                    dropped += 1
                    continue
                hidden_F = silu(x_D @ w["gate_EDF"][e]) * (x_D @ w["up_EDF"][e])
                y_BTD[b, t] += scores_E[e] / total * (hidden_F @ w["down_EFD"][e])
            if config.shared_mlp:
                hidden_H = silu(x_D @ w["shared_gate_DH"]) * (x_D @ w["shared_up_DH"])
                y_BTD[b, t] += hidden_H @ w["shared_down_HD"]
    return y_BTD, dropped


@pytest.mark.parametrize("config", [MOE, MOE_DROPPING, *MOE_ROUTERS], ids=str)
def test_it_computes_what_a_loop_over_tokens_and_experts_computes(config):
    """For every kind of router. With a capacity, the later tokens of a group are dropped, and some are."""
    experts, x_BTD = part(config)
    weights = {name: weight for (name,), weight in nnx.to_flat_state(nnx.state(experts, nnx.Param))}
    expected, dropped = by_loop(config, {name: weight[...] for name, weight in weights.items()}, x_BTD)
    np.testing.assert_allclose(run(experts, x_BTD)[0], expected, rtol=1e-4, atol=1e-5)
    assert (dropped > 0) == (config.capacity_factor is not None)


@pytest.mark.parametrize("router", ["softmax", "renormalised", "sigmoid"])
def test_gradients_are_those_of_all_experts_for_all_tokens(router):
    """Without drops: autodiff of every expert's output for every token, weighted by its score if it is chosen."""
    config = dataclasses.replace(MOE, router=router)
    experts, x_BTD = part(config)
    graph, weights = nnx.split(experts, nnx.Param)
    along_BTD = jnp.asarray(np.random.default_rng(1).normal(size=x_BTD.shape), jnp.float32)

    def dense(w, x_BTD):
        routes = choose(x_BTD.reshape(-1, config.embed) @ w.router_DE[...], config)
        chosen_NkE = jax.nn.one_hot(routes.experts_Nk, 6)
        weight_BTE = (routes.weights_Nk[..., None] * chosen_NkE).sum(1).reshape(*x_BTD.shape[:2], -1)
        gate, up = (jnp.einsum("btd,edf->btef", x_BTD, each[...]) for each in (w.gate_EDF, w.up_EDF))
        outputs = jnp.einsum("btef,efd->bted", jax.nn.silu(gate) * up, w.down_EFD[...])
        return (outputs * weight_BTE[..., None]).sum(2)

    mine, reference = (
        jax.jit(jax.grad(lambda w, x, function=function: (function(nnx.merge(graph, w), x) * along_BTD).sum(), (0, 1)))(
            weights, x_BTD
        )
        for function in (lambda w, x: run(w, x)[0], dense)
    )
    for got, expected in zip(jax.tree.leaves(mine), jax.tree.leaves(reference), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


def test_losses_of_a_router_that_does_not_know():
    """With equal logits each token adds the factor to the load-balancing loss, and factor x (log E)^2 to the z-loss.

    And one that sends all tokens to one expert, of its one choice, adds E times the factor.
    """
    config = dataclasses.replace(MOE_DROPPING, balance_loss=0.5, router_z_loss=0.25, experts_per_token=1)
    experts, x_BTD = part(config)
    tokens = 2 * config.sequence
    experts.router_DE[...] = jnp.zeros_like(experts.router_DE[...])
    losses = run(experts, x_BTD)[1]
    assert float(losses["balance_loss"]) == pytest.approx(0.5 * tokens)
    assert float(losses["router_z_loss"]) == pytest.approx(0.25 * tokens * math.log(6) ** 2)
    experts.router_DE[...] = jnp.zeros_like(experts.router_DE[...]).at[0, 3].set(100)
    sure = run(experts, x_BTD.at[..., 0].set(1))[1]
    assert float(sure["balance_loss"]) == pytest.approx(6 * 0.5 * tokens)


def test_the_gradient_of_the_load_balancing_loss_is_that_of_the_mean_probabilities():
    """The shares of choices are numbers: E sum_e f_e dP_e (Fedus et al. 2021, after equation 4)."""
    config = dataclasses.replace(MOE_DROPPING, balance_loss=1.0)
    experts, x_BTD = part(config)
    graph, weights = nnx.split(experts, nnx.Param)
    got = jax.grad(lambda w: run(nnx.merge(graph, w), x_BTD)[1]["balance_loss"])(weights)["router_DE"]
    x_ND = x_BTD.reshape(-1, config.embed)
    chosen_Nk = choose(x_ND @ experts.router_DE[...], config).experts_Nk
    share_E = np.bincount(np.asarray(chosen_Nk).reshape(-1), minlength=6) / chosen_Nk.size
    expected = jax.grad(lambda w: 6 * (share_E * jax.nn.softmax(x_ND @ w).sum(0)).sum())(experts.router_DE[...])
    np.testing.assert_allclose(got[...], expected, rtol=1e-4, atol=1e-4)


def test_the_load_balancing_loss_of_sequences_is_their_mean():
    """It is that of each sequence alone, averaged, and so is its gradient. Over both together it is another."""
    whole = dataclasses.replace(MOE_DROPPING, balance_loss=1.0)
    experts, x_BTD = part(whole)
    graph, weights = nnx.split(experts, nnx.Param)

    def of(config, weights, x_BTD):
        experts = nnx.merge(graph, weights)
        experts.config = config
        return run(experts, x_BTD)[1]["balance_loss"]

    over = dataclasses.replace(whole, balance_over="sequence")
    got = jax.value_and_grad(lambda w: of(over, w, x_BTD))(weights)
    expected = jax.value_and_grad(lambda w: sum(of(whole, w, x_TD[None]) for x_TD in x_BTD))(weights)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), got, expected)
    assert float(got[0]) != pytest.approx(float(of(whole, weights, x_BTD)), rel=1e-3)


def test_counts_and_flops_are_those_of_the_active_experts():
    """A token is multiplied with the router and k of E experts; every expert counts as parameters."""
    config = dataclasses.replace(MOE_ROUTERS[0], vocab_multiple=1)
    expert, dense = 3 * config.embed * 20, 3 * config.embed * 28 + config.embed * 6
    without = dataclasses.replace(GPTConfig(layers=4, embed=48, heads=4, vocab=257, sequence=24, mlp=1))
    mlp = 2 * config.embed + 1 + config.embed
    assert param_count(config) - param_count(without) == 4 * (6 * expert + dense - mlp)
    assert flops_per_token(config) - flops_per_token(without) == 6 * 4 * (3 * expert + dense - 2 * config.embed)


@pytest.mark.parametrize(
    ("preset", "total", "active", "published"),
    [
        ("mixtral-8x7b", 46_702_792_704, 12_879_925_248, "46.7B, 12.9B"),
        ("mixtral-8x22b", 140_620_634_112, 39_152_031_744, "141B, 39B"),
        ("qwen3-30b-a3b", 30_532_122_624, 3_353_032_704, "30.5B, 3.3B"),
        ("qwen3-235b-a22b", 235_093_634_560, 22_190_763_520, "235B, 22B"),
        ("olmoe-1b-7b", 6_919_161_856, 1_282_017_280, "6.9B, 1.3B"),
        ("dots1", 142_774_381_696, 14_016_588_928, "142B, 14B"),
    ],
)
def test_counts_of_presets_are_the_published_ones(preset, total, active, published):
    """Parameters, and those that a token uses with both embeddings.

    To a unit of the last digit they are those of the announcements of Mistral AI (2023, 2024), of Qwen3's cards, and of
    the papers of OLMoE and dots.llm1.
    """
    config = PRESETS[preset]
    counts = param_count(config), active_param_count(config)
    assert counts[0] == total
    assert counts[1] == active
    for count, text in zip(counts, published.split(", "), strict=True):
        digits = len(text.partition(".")[2].rstrip("B"))
        assert abs(count / 1e9 - float(text.rstrip("B"))) < 10**-digits
    expert = 3 * config.embed * config.dim_sizes["expert_mlp"]
    assert counts[0] - counts[1] == config.blocks * (config.dim_sizes["experts"] - config.experts_per_token) * expert


@pytest.mark.parametrize(
    ("preset", "total", "active", "attention", "dense", "mixture", "biases"),
    [
        ("deepseek-v2-lite", 15_706_484_224, 2_451_435_008, 13_763_072, 81_007_104, 584_847_872, 0),
        ("moonlight-16b-a3b", 15_960_108_544, 2_579_230_208, 13_763_072, 82_973_184, 584_847_872, 1664),
        ("deepseek-v3", 671_026_404_352, 36_625_603_584, 187_107_328, 583_483_392, 11_507_286_016, 14_848),
        ("kimi-k2", 1_026_408_209_408, 31_687_072_768, 101_124_096, 497_500_160, 17_059_364_864, 23_040),
    ],
)
def test_counts_of_models_with_latent_attention(preset, total, active, attention, dense, mixture, biases):
    """Parameters without routers' biases, which are buffers in transformers and parameters here; of them, those that a
    token uses, without the embedding; and those of one layer's attention, a dense layer, and a layer with experts.

    Totals of DeepSeek-V3, V2-Lite and Moonlight equal transformers 5.24's. In the reports active ones are 2.4B, 37B and
    32B; that of Moonlight omits both tables and is 2.24B.
    """
    config = PRESETS[preset]
    # The report of DeepSeek-V3 alone names a balance loss, in section 4.2.
    of_sequences = (1e-4, "sequence") if preset == "deepseek-v3" else (0, "batch")
    assert (config.balance_loss, config.balance_over) == of_sequences
    sizes = config.dim_sizes
    counts = {name: math.prod(sizes[dim] for dim in spec.dims) for name, spec in weight_specs(config).items()}

    def layer(prefix: str, layers: int) -> int:
        found = sum(count for name, count in counts.items() if name.startswith(prefix) and "router_bias" not in name)
        assert found % layers == 0
        return found // layers

    assert counts.get("blocks.experts.router_bias_E", 0) == biases
    assert param_count(config) - biases == total
    assert active_param_count(config) - biases - config.vocab * config.embed == active
    assert layer("blocks.attention.", config.blocks) == layer("lead.attention.", config.dense_layers) == attention
    assert layer("lead.", config.dense_layers) == dense
    assert layer("blocks.", config.blocks) == mixture


def test_experts_take_the_place_of_the_mlp():
    """Of any kind of block; the other parts stay."""
    assert [*block_of(MOE).parts] == ["norm1", "attention", "norm2", "experts"]
    assert block_of(MOE) is block_of(MOE_DROPPING)
