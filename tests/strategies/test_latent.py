"""Latent attention: kernels whose values are narrower than keys, and what devices send of latents.

That steps equal one device and send what formulas say is in test_laws.py.
"""

import math
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu import splash_attention as kernels

from strategies import Infeasible
from strategies.model.attention import LatentQKV, Reach, causal, causal_attention, cudnn
from strategies.model.gpt import param_count
from tests.strategies.formulas import cost
from tests.strategies.model.attention.kernels_by_hand import plain_attended, plain_gradients
from tests.strategies.models import LATENT, LATENT_KEYS

BATCH, HEADS, PLAIN, ROTARY, VALUES, RANK = 2, 3, 10, 4, 6, 8
RING, ULYSSES = {"context_attention": "ring"}, {"context_attention": "ulysses"}
PAYLOADS = "latent", "expanded"
EXPANDED = {"context_payload": "expanded"}


def drawn(tokens):
    """Queries, latents with rotary keys, and weights of keys and values; and the gradient of the result."""
    shapes = (
        (BATCH, tokens, HEADS, PLAIN + ROTARY),
        (BATCH, tokens, RANK + ROTARY),
        (RANK, HEADS * PLAIN),
        (RANK, HEADS * VALUES),
        (BATCH, tokens, HEADS * VALUES),
    )
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]


def by_hand(q_BTHK, latent_BTL, up_CE, up_CA, reach=None):
    """Attention as the paper's equations have it, head by head."""
    tokens = q_BTHK.shape[1]
    position = jnp.arange(tokens)
    seen = position[:, None] >= position
    if reach:
        seen &= position[:, None] - position < reach.window
    mixed = []
    for head in range(HEADS):
        plain = latent_BTL[..., :RANK] @ up_CE[:, head * PLAIN : (head + 1) * PLAIN]
        k_BTK = jnp.concatenate([plain, latent_BTL[..., RANK:]], -1)
        v_BTV = latent_BTL[..., :RANK] @ up_CA[:, head * VALUES : (head + 1) * VALUES]
        scores = jnp.einsum("btk,bsk->bts", q_BTHK[:, :, head], k_BTK) / math.sqrt(PLAIN + ROTARY)
        mixed.append(jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)) @ v_BTV)
    return jnp.concatenate(mixed, -1)


@pytest.mark.parametrize(
    ("kind", "tokens", "reach"),
    [("xla", 16, None), ("xla", 11, None), ("xla", 32, Reach(5)), ("cudnn", 16, None), ("splash", 256, None)],
    ids=str,
)
def test_every_kernel_takes_values_narrower_than_keys(kind, tokens, reach, monkeypatch):
    """Values and all gradients, of the latents and of the weights, are those of the equations.

    Splash attention is interpreted. For cuDNN, which CPUs do not have, its kernels are written in plain JAX.
    """
    interpreted = partial(kernels.make_splash_mha_single_device, interpret=True)
    monkeypatch.setattr(kernels, "make_splash_mha_single_device", interpreted)
    monkeypatch.setattr(cudnn, "attended", lambda q, k, v, reach, causal=True: plain_attended(q, k, v, causal=causal))
    monkeypatch.setattr(cudnn, "gradients", lambda *arrays, causal=True: plain_gradients(*arrays[:-1], causal=causal))
    monkeypatch.setattr(causal, "available", lambda: True)
    *inputs, dmixed = drawn(tokens)

    def ours(*arrays):
        return causal_attention(LatentQKV(*arrays, rank=RANK), kind, reach)

    with jax.default_matmul_precision("highest"):
        mixed, grads = jax.jit(lambda *arrays: (ours(*arrays), jax.vjp(ours, *arrays)[1](dmixed)))(*inputs)
        expected, pull = jax.vjp(partial(by_hand, reach=reach), *inputs)
    rounding = 12 * math.sqrt(tokens) * 2**-24
    for one, other in zip((mixed, *grads), (expected, *pull(dmixed)), strict=True):
        assert np.linalg.norm(one - other) < rounding * np.linalg.norm(other)


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_a_ring_sends_latents_in_place_of_keys_and_values(devices):
    """C + R in place of H (N + R + V) features a token, in each hop forward and backward."""
    latent, expanded = (cost("context", f"context={devices}", LATENT, **RING, **how) for how in ({}, EXPANDED))
    sent = [each.sent["permute", ("context",)]["keys and values"] for each in (latent, expanded)]
    sizes = LATENT.dim_sizes
    assert sent[0] * LATENT.heads * (LATENT.head_dim + LATENT.value_dim) == sent[1] * sizes["latents_and_key"]


def test_ulysses_gathers_latents_without_further_flops():
    """Each device computes the keys and values of its own heads, of all tokens. A gather sends N times as much."""
    latent, expanded = (cost("context", "context=4", LATENT, **ULYSSES, context_payload=how) for how in PAYLOADS)
    assert latent.flops["latents again"] > 0  # the backward pass computes them again, as on one device
    assert latent.flops["latents again"] == cost("single", "data=1", LATENT).flops["latents again"]
    assert expanded.flops["latents again"] == 0
    features, devices = LATENT.query_features + LATENT.head_features, 4
    exchanged = [each.sent["all_to_all", ("context",)]["tokens and heads"] for each in (latent, expanded)]
    assert exchanged[1] == 2 * exchanged[0]  # queries and the result have as many features as keys and values
    gathered = latent.sent["all_gather", ("context",)]["latents"]
    assert gathered * 2 * features == exchanged[0] * devices * LATENT.dim_sizes["latents_and_key"]


def test_auto_sends_what_is_less():
    """24 latents and 80 features of keys and values: a ring of any size sends latents, Ulysses on up to 3 devices."""
    cases = [("context=2", RING), ("context=4", RING), ("context=2", ULYSSES), ("context=4", ULYSSES)]
    found = [cost("context", mesh, LATENT, **how).plan.train.context_payload for mesh, how in cases]
    assert found == ["latent", "latent", "latent", "expanded"]


def test_devices_sum_gradients_of_latents_at_the_latents():
    """A tensor axis sums Q + C + R features a token backward, where another attention sums D."""
    config = replace(LATENT, query_rank=4, latent_rank=8, rotary_size=4)
    found = cost("tensor", "tensor=4", config, sequence_parallel=False)
    features = config.layers * (3 * config.embed + 4 + 8 + 4)
    assert found.sent["all_reduce", ("tensor",)]["layers"] == found.plan.tokens * features * 4 * 2 * 3 // 4


def test_queries_without_latents_have_one_matrix():
    """As DeepSeek-V2-Lite's."""
    rank, features = LATENT.query_rank, LATENT.query_features
    assert rank is not None
    more = rank * (LATENT.embed + features + 1) - LATENT.embed * features
    assert param_count(LATENT) - param_count(LATENT_KEYS) == LATENT.layers * more


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latent_rank": None}, "query_rank=28 is for latent attention; set latent_rank"),
        ({"value_size": None}, "latent_rank=20 needs head_size, rotary_size and value_size"),
        ({"rotary_size": 5}, "rotary_size=5; it must be even and less than head_size=14"),
        ({"rotary_size": 14}, "rotary_size=14; it must be even and less than head_size=14"),
        ({"key_heads": 2}, "key_heads=2 does not go with latent_rank"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes, message):
    """With the numbers, and what to do."""
    with pytest.raises(Infeasible, match=message):
        replace(LATENT, **changes)


@pytest.mark.parametrize(
    ("name", "mesh", "config", "options", "message"),
    [
        ("single", "data=1", replace(LATENT, block="qwen3"), {}, "latent_rank=20 does not go with block=qwen3"),
        ("explicit", "tensor=2", LATENT, {}, "explicit has no rule for latents.*use auto, tensor or three_d"),
        ("context", "context=2", replace(LATENT, attention_window=4), RING, "attention_window=4.*use .*ulysses"),
        (
            "context",
            "context=2",
            replace(LATENT, latent_rank=None, query_rank=None, rotary_size=None, value_size=None),
            EXPANDED,
            "context_payload=expanded is for models with latent attention; omit it",
        ),
    ],
)
def test_steps_without_a_rule_are_refused(name, mesh, config, options, message):
    """With the way out."""
    with pytest.raises(Infeasible, match=message):
        cost(name, mesh, config, **options)
