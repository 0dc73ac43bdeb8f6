"""Grouped-query attention: in every kernel query heads share KV heads, on one device and on several."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.pallas.ops.tpu import splash_attention as kernels

from strategies.context import contiguous, ulysses_attention, window_attention
from strategies.model.attention import QKV, Reach, causal_attention, cudnn, ring_attention, zigzag
from tests.strategies.context_mesh import around
from tests.strategies.model.attention.kernels_by_hand import plain_attended, plain_gradients
from tests.strategies.sampling import nightly

HEADS, HEAD_DIM = 4, 8
KEY_HEADS = [HEADS, HEADS // 2, 1]


def draw(tokens, key_heads):
    """Queries, keys and values, and the gradient of what is made of them."""
    counts = enumerate((HEADS, key_heads, key_heads, HEADS))
    *qkv, dmixed = (jax.random.normal(jax.random.key(i), (1, tokens, heads, HEAD_DIM)) for i, heads in counts)
    return qkv, dmixed.reshape(1, tokens, -1)


def plain(q_BTHK, k_BTJK, v_BTJK, reach=None):
    """Attention in one line, of keys and values that are repeated for each head of queries that attends to them."""
    k_BTHK, v_BTHK = (jnp.repeat(x, HEADS // x.shape[2], axis=2) for x in (k_BTJK, v_BTJK))
    position_T = jnp.arange(q_BTHK.shape[1])
    attends = position_T[:, None] >= position_T if reach is None else reach.mask(position_T[:, None], position_T)
    scores_BHTS = jnp.einsum("bthk,bshk->bhts", q_BTHK, k_BTHK) / math.sqrt(HEAD_DIM)
    weights_BHTS = jax.nn.softmax(jnp.where(attends, scores_BHTS, -jnp.inf))
    return jnp.einsum("bhts,bshk->bthk", weights_BHTS, v_BTHK).reshape(1, len(position_T), -1)


def require_close(mine, expected, tokens):
    """The result, and the gradients of queries, keys and values by themselves, are equal to float32 rounding."""
    rounding = 12 * math.sqrt(tokens) * 2**-24  # see equality.py
    for one, other in zip(mine, expected, strict=True):
        assert one.shape == other.shape
        assert np.linalg.norm(one - other) < rounding * np.linalg.norm(other)


def with_gradients(attention, qkv, dmixed):
    """The result, and the gradients of queries, keys and values."""
    with jax.default_matmul_precision("highest"):
        mixed, pull = jax.vjp(attention, *qkv)
        return mixed, *pull(dmixed)


@pytest.fixture
def stand_ins(monkeypatch):
    """Splash attention is interpreted. cuDNN's kernels, which CPUs do not have, are written in plain JAX."""
    interpreted = partial(kernels.make_splash_mha_single_device, interpret=True)
    monkeypatch.setattr(kernels, "make_splash_mha_single_device", interpreted)

    def repeated(function, q, k, v, *others, causal):
        groups = q.shape[1] // k.shape[1]
        grads = function(q, *(jnp.repeat(x, groups, axis=1) for x in (k, v)), *others, causal=causal)
        if function is plain_attended:
            return grads
        return grads[0], *(x.reshape(*k.shape[:2], groups, *k.shape[2:]).sum(2) for x in grads[1:])

    monkeypatch.setattr(cudnn, "attended", partial(repeated, plain_attended))
    monkeypatch.setattr(cudnn, "gradients", partial(repeated, plain_gradients))


@pytest.mark.parametrize("key_heads", [KEY_HEADS[1], *nightly(KEY_HEADS[0], KEY_HEADS[2])])
@pytest.mark.parametrize(
    ("kind", "tokens", "reach"),
    [
        ("xla", 32, Reach(5)),
        ("xla", 32, Reach(4, 4, 1)),
        ("splash", 256, None),
        *nightly(
            ("xla", 11, None),
            ("xla", 16, None),
            ("xla", 16, Reach(9)),  # masked
            ("xla", 32, Reach(8, 8)),
            ("splash", 256, Reach(40)),
        ),
    ],
    ids=str,
)
def test_query_heads_share_key_heads(kind, tokens, reach, key_heads, stand_ins):
    """Values and gradients are those of attention to repeated keys, whose gradients are summed."""
    qkv, dmixed = draw(tokens, key_heads)
    mine = jax.jit(partial(with_gradients, lambda *qkv: causal_attention(QKV.of(*qkv), kind, reach)))(qkv, dmixed)
    require_close(mine, with_gradients(partial(plain, reach=reach), qkv, dmixed), tokens)


ON_DEVICES = [
    (zigzag, ring_attention, "xla", None, 16),
    (zigzag, ring_attention, "cudnn", None, 16),
    (zigzag, ring_attention, "splash", None, 512),
    (contiguous, window_attention, "xla", Reach(5), 16),
]


@pytest.mark.parametrize(
    ("own", "attention", "kind", "reach", "tokens", "key_heads"),
    [
        *((*case, KEY_HEADS[1]) for case in ON_DEVICES if "splash" not in case),
        (contiguous, ulysses_attention, "xla", None, 16, KEY_HEADS[2]),
        *nightly(
            *((*case, KEY_HEADS[1]) for case in ON_DEVICES if "splash" in case),
            *((*case, key_heads) for case in ON_DEVICES for key_heads in KEY_HEADS[::2]),
            *((contiguous, ulysses_attention, "xla", None, 16, key_heads) for key_heads in KEY_HEADS[:2]),
        ),
    ],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_devices_exchange_the_heads_of_keys_that_there_are(own, attention, kind, reach, tokens, key_heads, stand_ins):
    """Around a ring and by Ulysses, two devices attend as one does."""
    qkv, dmixed = draw(tokens, key_heads)

    def attend_own(*qkv):
        return (attention(QKV.of(*(own(x, 1) for x in qkv)), kind, reach) * own(dmixed, 1)).sum()

    def mine(*qkv):
        value, grads = jax.value_and_grad(attend_own, argnums=(0, 1, 2))(*qkv)
        return lax.psum((value, grads), "context")

    with jax.default_matmul_precision("highest"):
        value, grads = jax.jit(around(mine, 2))(*qkv)
    mixed, *expected = with_gradients(partial(plain, reach=reach), qkv, dmixed)
    require_close(grads, expected, tokens)
    assert abs(value - (mixed * dmixed).sum()) < 12 * math.sqrt(tokens) * 2**-24 * math.sqrt(dmixed.size)


@pytest.mark.parametrize("key_heads", KEY_HEADS)
def test_devices_that_share_a_head_of_keys_have_copies(key_heads):
    """Query heads keep their order."""
    (q, k, v), _ = draw(3, key_heads)
    copies = HEADS // key_heads
    apart = QKV.of(q, k, v).for_devices(HEADS).apart
    for mine, given in zip(apart, (q, jnp.repeat(k, copies, 2), jnp.repeat(v, copies, 2)), strict=True):
        np.testing.assert_array_equal(mine, given)


def test_cudnn_takes_fewer_heads_of_keys(monkeypatch):
    """Its kernels, traced where there is no cuDNN, give gradients of as many heads as there are, in JAX's own form."""
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91_000)
    qkv_BTCE = jax.ShapeDtypeStruct((1, 128, 4, 2 * 64), jnp.bfloat16)

    def attention(qkv_BTCE):
        return causal_attention(QKV(qkv_BTCE, 64), "cudnn").astype(jnp.float32).sum()

    assert jax.eval_shape(jax.grad(attention), qkv_BTCE) == qkv_BTCE
    q_BHTK, k_BJTK = (jax.ShapeDtypeStruct((1, heads, 128, 64), jnp.bfloat16) for heads in (4, 2))
    log_total_BHT = jax.ShapeDtypeStruct((1, 4, 128), jnp.float32)
    shapes = jax.eval_shape(
        partial(cudnn.gradients, causal=True), q_BHTK, k_BJTK, k_BJTK, q_BHTK, log_total_BHT, q_BHTK
    )
    assert [each.shape for each in shapes] == [q_BHTK.shape, k_BJTK.shape, k_BJTK.shape]


@pytest.mark.parametrize("key_heads", KEY_HEADS)
def test_joining_is_the_inverse_of_taking_apart(key_heads):
    """Heads keep their order, however they are read."""
    qkv, _ = draw(3, key_heads)
    joined = QKV.of(*qkv)
    for mine, first, given in zip(joined.apart, joined.heads_first, qkv, strict=True):
        np.testing.assert_array_equal(mine, given)
        np.testing.assert_array_equal(first, given.swapaxes(1, 2))
