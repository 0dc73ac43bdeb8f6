"""Attention is softmax attention to no later token, and blocks of it add up to the whole."""

import math
from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from strategies.model.attention import QKV, causal_attention, dense
from strategies.model.attention.dense import Mix, Queries, blocks_of, delta, gradients, merged, mix, normalised
from strategies.model.remat import LAYER_POLICIES
from tests.strategies.sampling import nightly

BATCH, HEADS, TOKENS, HEAD_DIM = 2, 3, 12, 4
SHAPE = (BATCH, HEADS, TOKENS, HEAD_DIM)
ROUNDING = 12 * math.sqrt(TOKENS) * 2**-24
"""A dozen operations one after another, each of which rounds sums of at most `TOKENS` terms (see equality.py)."""


def normal(seed, shape=SHAPE, size=1.0):
    """Of standard deviation `size`."""
    return size * jax.random.normal(jax.random.key(seed), shape)


def inputs(size=1.0):
    """Queries, keys, values and the gradient of what is made of them; scores are of that size."""
    return normal(0, size=math.sqrt(size)), normal(1, size=math.sqrt(size)), normal(2), normal(3)


def softmax_attention(q, k, v, causal=True):
    """In float64 numpy."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    scores = np.where(np.tri(*scores.shape[-2:], dtype=bool) | (not causal), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def attended(q, k, v):
    """`causal_attention`, with heads apart."""
    mixed_BTA = causal_attention(QKV.of(*(x.swapaxes(1, 2) for x in (q, k, v))), "xla")
    return mixed_BTA.reshape(BATCH, -1, HEADS, q.shape[-1]).swapaxes(1, 2)


def distance(mine, reference):
    """Between two arrays, relative to the norm of the second."""
    return np.linalg.norm(np.asarray(mine) - np.asarray(reference)) / np.linalg.norm(reference)


def cut(x, sizes):
    """Into blocks of these many tokens."""
    return jnp.split(x, np.cumsum(sizes)[:-1], axis=2)


@pytest.mark.parametrize("size", [10, *nightly(1)])
@pytest.mark.parametrize("tokens", [1, 2, 11, TOKENS])
def test_it_is_causal_softmax_attention(tokens, size):
    """As written independently, in each head by itself, however sharp its maxima are, with halves and without."""
    q, k, v = (x[:, :, :tokens] for x in inputs(size)[:3])
    assert distance(attended(q, k, v), softmax_attention(q, k, v)) < size * ROUNDING


@pytest.mark.parametrize("tokens", [1, 2, 11, TOKENS])
def test_each_query_sees_its_keys_once(tokens):
    """Blocks have all pairs that causality leaves, none of them twice; of an even number, not all that it masks."""
    seen = np.zeros((tokens, tokens), int)
    for queries, keys in blocks_of(tokens):
        seen[queries, keys] += 1
    assert (seen[np.tri(tokens, dtype=bool)] == 1).all()
    assert seen.sum() == (tokens**2 if tokens % 2 else tokens**2 * 3 // 4)


@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize("sizes", [[12], [6, 6], [1, 4, 2, 5]], ids=str)
def test_blocks_of_keys_add_up_to_all_keys(sizes, size):
    """Whatever the blocks, in whatever order: maxima so far apart that exponentials vanish do not matter."""
    q, k, v, _ = inputs(size)
    mixes = [mix(q, *kv) for kv in zip(cut(k, sizes), cut(v, sizes), strict=True)]
    for order in (mixes, mixes[::-1]):
        mixed, log_total = normalised(reduce(merged, order), v.dtype)
        assert distance(mixed, softmax_attention(q, k, v, causal=False)) < size * ROUNDING
        assert distance(log_total, normalised(mix(q, k, v), v.dtype)[1]) < ROUNDING


@pytest.mark.parametrize("planted", [False, True])
def test_bfloat16_keeps_scores_in_float32(planted, monkeypatch):
    """In bfloat16 attention is off by two roundings, however large its scores: of the weights and of the result.

    Each is at most u = 2^-9 of a number. A score s that is rounded changes its exponential by u s of it: caught.
    """
    size, head_dim = 30, 64
    shape = (BATCH, HEADS, TOKENS, head_dim)  # the scale is a power of two, and rounds nothing
    q, k, v = (normal(i, shape, math.sqrt(s)).astype(jnp.bfloat16) for i, s in enumerate((size, size, 1)))
    if planted:
        scores = dense._scores

        def rounded_scores(*of):
            return scores(*of).astype(jnp.bfloat16).astype(jnp.float32)

        monkeypatch.setattr(dense, "_scores", rounded_scores)
    off = distance(attended(q, k, v).astype(jnp.float32), softmax_attention(q, k, v))
    assert (off < 2 * 2**-9) != planted


def test_merging_is_commutative():
    """A mix has no first block."""
    q, k, v, _ = inputs()
    one, other = (mix(q, *kv) for kv in zip(cut(k, [5, 7]), cut(v, [5, 7]), strict=True))
    assert isinstance(one, Mix)
    jax.tree.map(np.testing.assert_array_equal, merged(one, other), merged(other, one))


@pytest.mark.parametrize("tokens", [11, TOKENS])
def test_its_gradients_are_those_of_softmax(tokens):
    """Written by hand, they are what autodiff makes of attention written in one line."""
    q, k, v, dmixed = (x[:, :, :tokens] for x in inputs())

    def plain(q, k, v):
        scores = jnp.where(jnp.tri(tokens, dtype=bool), q @ k.swapaxes(2, 3) / math.sqrt(HEAD_DIM), -jnp.inf)
        return jax.nn.softmax(scores) @ v

    mine, theirs = (jax.vjp(function, q, k, v)[1](dmixed) for function in (attended, plain))
    assert max(map(distance, mine, theirs)) < ROUNDING


def test_gradients_of_blocks_add_up():
    """Over the blocks of keys for the queries, over those of queries for keys and values; masked blocks have none."""
    q, k, v, dmixed = inputs()
    mixed, log_total = normalised(mix(q, k, v, causal=True), v.dtype)
    chunks_of_each = [cut(x, [6, 6]) for x in (q, dmixed, log_total, delta(mixed, dmixed))]
    early, late = (Queries(*(chunks[chunk] for chunks in chunks_of_each)) for chunk in (0, 1))
    (k0, k1), (v0, v1) = cut(k, [6, 6]), cut(v, [6, 6])
    dq0, dk0, dv0 = gradients(early, k0, v0, causal=True)
    dq1, dk1, dv1 = gradients(late, k1, v1, causal=True)
    dq10, dk10, dv10 = gradients(late, k0, v0)
    sums = [(dq0, dq1 + dq10), (dk0 + dk10, dk1), (dv0 + dv10, dv1)]
    whole = jax.vjp(attended, q, k, v)[1](dmixed)
    for parts, expected in zip(sums, whole, strict=True):
        assert distance(jnp.concatenate(parts, 2), expected) < ROUNDING


@pytest.mark.parametrize(("remat", "forwards"), [("none", 1), ("dots", 1), ("full", 2)])
def test_the_forward_kernel_of_cudnn_runs_once(remat, forwards, monkeypatch):
    """Its output and its sums are kept for the backward pass, unless nothing is. Traced where there is no cuDNN."""
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91_000)

    @partial(jax.checkpoint, policy=LAYER_POLICIES[remat])
    def layer(qkv_BTCA):
        return jnp.sin(causal_attention(QKV(qkv_BTCA, 64), "cudnn"))

    qkv_BTCA = jnp.zeros((1, 128, 3, 64), jnp.bfloat16)
    program = jax.make_jaxpr(jax.grad(lambda x: layer(x).astype(jnp.float32).sum()))(qkv_BTCA)
    assert str(program).count(" dot_product_attention_fwd_wrapper[") == forwards
