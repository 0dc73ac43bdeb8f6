"""Context parallelism: sequences are split over devices, and the ring shares causal attention equally."""

import dataclasses
import math
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from benchmarks.program.compiled import read_program
from strategies import GPTConfig, Strategy, TrainConfig, context, tensor
from strategies.context import contiguous, ulysses_attention
from strategies.costs.predict import predict
from strategies.model.attention import QKV, causal_attention, ring_attention, zigzag
from strategies.single import SINGLE
from tests.strategies.context_mesh import SPLIT, around
from tests.strategies.quick import compiled

BATCH, TOKENS, HEADS, HEAD_DIM = 2, 16, 8, 4
ROUNDING = 12 * math.sqrt(TOKENS) * 2**-24
"""About twelve operations in sequence, each of which rounds sums of at most `TOKENS` terms (see equality.py)."""
MODES = {"ring": (zigzag, ring_attention), "ulysses": (contiguous, ulysses_attention)}


@pytest.mark.parametrize("devices", [1, 4])
def test_device_i_has_chunks_i_and_2n_minus_1_minus_i(devices):
    """Zig-zag layout: of 2n chunks device i has chunk i and chunk 2n-1-i, and each token is on one device."""
    places = around(partial(zigzag, dim=1), devices, SPLIT)(jnp.arange(TOKENS)[None])
    chunks = np.asarray(places).reshape(devices, 2, -1) * 2 * devices // TOKENS
    assert (chunks == chunks[..., :1]).all()
    assert (chunks[:, 0, 0] == np.arange(devices)).all()
    assert (chunks[:, 1, 0] == 2 * devices - 1 - np.arange(devices)).all()
    assert sorted(np.asarray(places).ravel()) == list(range(TOKENS))


@pytest.mark.parametrize("size", [1.0, 10.0])
@pytest.mark.parametrize("devices", [2, 8])
@pytest.mark.parametrize("mode", MODES)
def test_it_attends_as_one_device(mode, devices, size):
    """Values and gradients of both modes are those of one device, also where scores differ widely by chunk."""
    own, attention = MODES[mode]
    qkv_BTCA = jax.random.normal(jax.random.key(0), (BATCH, TOKENS, 3, HEADS * HEAD_DIM))
    qkv_BTCA = qkv_BTCA * jnp.array([size, size, 1])[:, None]
    weight_BTA = jax.random.normal(jax.random.key(1), (BATCH, TOKENS, HEADS * HEAD_DIM))

    def here(qkv_BTCA, weight_BTA):
        return (attention(QKV(own(qkv_BTCA, 1), HEAD_DIM), "xla") * own(weight_BTA, 1)).sum()

    def mine(*inputs):
        return lax.psum(jax.value_and_grad(here)(*inputs), "context")

    def whole(qkv_BTCA, weight_BTA):
        return (causal_attention(QKV(qkv_BTCA, HEAD_DIM), "xla") * weight_BTA).sum()

    value, grads = jax.jit(around(mine, devices))(qkv_BTCA, weight_BTA)
    expected, expected_grads = jax.jit(jax.value_and_grad(whole))(qkv_BTCA, weight_BTA)
    assert abs(value - expected) < size**2 * ROUNDING * math.sqrt(weight_BTA.size)
    assert np.linalg.norm(grads - expected_grads) < size**2 * ROUNDING * np.linalg.norm(expected_grads)


@pytest.mark.parametrize("devices", [2, 8])
def test_the_ring_keeps_local_residuals_only(devices):
    """The ring's residuals are local queries, keys, values and outputs, and one number for each head and token."""
    qkv_BTCA = jax.ShapeDtypeStruct((BATCH, TOKENS // devices, 3, HEADS * HEAD_DIM), jnp.float32)

    def kept(qkv_BTCA):
        return jax.tree.leaves(jax.vjp(lambda qkv_BTCA: ring_attention(QKV(qkv_BTCA, HEAD_DIM)), qkv_BTCA)[1])

    elements = sum(math.prod(x.shape) for x in jax.eval_shape(around(kept, devices), qkv_BTCA))
    assert elements == BATCH * TOKENS // devices * (4 * HEADS * HEAD_DIM + HEADS)


CONFIG = GPTConfig(layers=2, embed=32, heads=8, vocab=128, sequence=64)
TRAIN = TrainConfig(batch_size=4)
MATMULS = 6 * TRAIN.batch_size * CONFIG.sequence * (12 * CONFIG.layers * CONFIG.embed**2 + CONFIG.embed * CONFIG.vocab)
SQUARE = 14 * CONFIG.layers * TRAIN.batch_size * CONFIG.sequence**2 * CONFIG.embed
"""FLOPs of full attention, not halved by causality: two matmuls forward and five backward."""


@cache
def program(strategy, mesh, **options):
    """The compiled gradients of a step: the text, and the facts for one device."""
    step = strategy.build(CONFIG, mesh, dataclasses.replace(TRAIN, **options))
    text = compiled(step.gradients.lower(step.state, step.batch)).as_text() or ""
    return text, read_program(text, step.mesh.shape)


def test_one_device_computes_three_quarters_of_the_square():
    """On one device, and with Ulysses, causal attention computes three quarters of the full square."""
    assert program(SINGLE, "data=1")[1].flops == MATMULS + SQUARE * 3 / 4
    assert 8 * program(context.CONTEXT, "context=8", context_attention="ulysses")[1].flops == MATMULS + SQUARE * 3 / 4


@pytest.mark.parametrize("devices", [2, 8])
def test_the_ring_computes_half_the_square_alike_on_each_device(devices):
    """Each device of the ring computes 2n + 1 of its 4n pairs of chunks, in one program without conditionals."""
    text, work = program(context.CONTEXT, f"context={devices}")
    assert devices * work.flops == MATMULS + SQUARE * (2 * devices + 1) / (4 * devices)
    assert "conditional" not in text


def first_gradients(step, tokens):
    """The gradients at the initial weights, on the host."""
    key, batch = jax.random.key(0), step.place(tokens)
    state = compiled(step.init.lower(key))(key)
    return jax.tree.map(np.asarray, compiled(step.gradients.lower(state, batch))(state, batch))


@pytest.mark.parametrize("mode", MODES)
def test_other_axes_split_what_this_one_leaves(mode):
    """Context combined with tensor parallelism has the loss and gradients of one device."""
    train = dataclasses.replace(TRAIN, context_attention=mode)
    combined = Strategy("combined", (context.AXIS, tensor.AXIS))
    both = combined.build(CONFIG, "context=2,tensor=2", train)
    alone = SINGLE.build(CONFIG, "data=1", SINGLE.applicable(train))
    tokens = np.random.default_rng(0).integers(0, CONFIG.vocab, both.batch.shape)
    (loss, grads), (expected, expected_grads) = (first_gradients(step, tokens) for step in (both, alone))
    depth = 2 * 12 * CONFIG.layers * math.sqrt(tokens.size) * 2**-24  # see equality.py
    assert abs(loss - expected) < depth * expected
    for mine, theirs in zip(jax.tree.leaves(grads), jax.tree.leaves(expected_grads), strict=True):
        whole = max(np.linalg.norm(theirs), 2**-12)
        assert np.linalg.norm(mine - theirs) < depth * whole


def test_heads_that_tensor_has_split_are_split_again():
    """Ulysses splits the heads that tensor leaves to a device: four of eight."""
    train = dataclasses.replace(TRAIN, context_attention="ulysses")
    assert predict("three_d", CONFIG, "context=4,tensor=2", train).plan.ulysses


@pytest.mark.parametrize(
    ("platform", "attention", "model"),
    [
        ("cuda", "cudnn", {"attention_window": 128}),
        ("cuda", "auto", {"attention_window": 128}),
        ("tpu", "splash", {"sequence": 384}),
    ],
)
def test_auto_with_stages_is_ulysses(platform, attention, model):
    """With pipeline stages `auto` is Ulysses, also where no ring could run the kernel that is asked for."""
    config = dataclasses.replace(GPTConfig(layers=4, embed=64, heads=4, vocab=128, sequence=1024), **model)
    train = TrainConfig(16, microbatches=4, dtype="bfloat16", attention=attention)
    told = "three_d", config, "pipeline=2,context=2"
    ulysses = predict(*told, dataclasses.replace(train, context_attention="ulysses"), platform)
    assert predict(*told, train, platform) == ulysses
