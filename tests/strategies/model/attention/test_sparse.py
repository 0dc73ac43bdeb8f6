"""Sparse attention is exact softmax attention to what a token reaches, and computes no more than it says."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from strategies import GPTConfig
from strategies.costs.layer import flops_per_token
from strategies.model.attention import QKV, Reach, causal_attention
from strategies.model.attention.dense import attend
from tests.strategies.model.tiny_gpt import TINY, build, tokens
from tests.strategies.sampling import nightly

HEADS, HEAD_DIM = 2, 4
CONFIG = GPTConfig(layers=1, embed=8, heads=2, sequence=16)


def with_attention(config=CONFIG, **options):
    """The model with these options of attention."""
    return dataclasses.replace(config, **{f"attention_{name}": value for name, value in options.items()})


def reaches(options, tokens):
    """Which pairs of (query, key) attend, by the definitions of the paper, one pair at a time."""
    window, stride = options.get("window"), options.get("stride")
    summary = options.get("summary", 1)

    def attends(i, j):
        if j > i:
            return False
        if options.get("pattern") == "fixed":
            return i // stride == j // stride or j % stride >= stride - summary
        near = i - j < (window or stride or tokens)
        return near or (stride is not None and (i - j) % stride == 0)

    return np.array([[attends(i, j) for j in range(tokens)] for i in range(tokens)])


PATTERNS = [
    *((tokens, {"window": window}) for tokens in (7, 12, 16) for window in (1, 2, 3, 4, 5, 7, 11, 16, 99)),
    *((tokens, {"stride": stride}) for tokens, stride in ((12, 1), (12, 3), (16, 4), (16, 8), (12, 12))),
    *((16, {"window": window, "stride": 4}) for window in (1, 3, 6, 16)),
    *((12, {"stride": 4, "pattern": "fixed", "summary": summary}) for summary in (1, 2, 4)),
    (16, {"stride": 16, "pattern": "fixed"}),
    (24, {"stride": 3, "pattern": "fixed", "summary": 2}),
]
DAILY = PATTERNS[::5]


@pytest.mark.parametrize(
    ("tokens", "options"), [*DAILY, *nightly(*(each for each in PATTERNS if each not in DAILY))], ids=str
)
def test_it_is_softmax_attention_to_what_a_token_reaches(tokens, options):
    """Values and gradients are those of a masked softmax written in one line, whatever divides what."""
    config = with_attention(dataclasses.replace(CONFIG, sequence=tokens), **options)
    reached = reaches(options, tokens)
    qkv_BTCA = jax.random.normal(jax.random.key(0), (2, tokens, 3, HEADS * HEAD_DIM))
    weight_BTA = jax.random.normal(jax.random.key(1), (2, tokens, HEADS * HEAD_DIM))

    def mine(qkv_BTCA):
        return (causal_attention(QKV(qkv_BTCA, HEAD_DIM), "xla", Reach.of(config)) * weight_BTA).sum()

    def plain(qkv_BTCA):
        q, k, v = qkv_BTCA.reshape(2, tokens, 3, HEADS, HEAD_DIM).transpose(2, 0, 3, 1, 4)
        weights = jax.nn.softmax(jnp.where(reached, q @ k.swapaxes(2, 3) / math.sqrt(HEAD_DIM), -jnp.inf))
        return ((weights @ v).swapaxes(1, 2).reshape(weight_BTA.shape) * weight_BTA).sum()

    (value, grads), (expected, expected_grads) = (jax.jit(jax.value_and_grad(each))(qkv_BTCA) for each in (mine, plain))
    rounding = 12 * math.sqrt(tokens) * 2**-24  # see test_dense.py
    assert abs(value - expected) < rounding * np.linalg.norm(weight_BTA)
    assert np.linalg.norm(grads - expected_grads) < rounding * np.linalg.norm(expected_grads)


@pytest.mark.parametrize(("tokens", "options"), PATTERNS, ids=str)
def test_pairs_and_keys_are_counted(tokens, options):
    """The number of pairs, and of keys of the last token, are those of the definition; so is the mask."""
    reach = Reach.of(with_attention(dataclasses.replace(CONFIG, sequence=tokens), **options))
    reached = reaches(options, tokens)
    if reach is None:
        assert (reached == np.tri(tokens, dtype=bool)).all()
        return
    position = np.arange(tokens)
    assert (reach.mask(position[:, None], position) == reached).all()
    assert reach.pairs(tokens) == reached.sum()
    assert reach.most_keys(tokens) == reached[-1].sum()
    assert reach.computed_keys(tokens) >= reached.sum(1).max()


@pytest.mark.parametrize("options", [{}, {"window": 12}, {"window": 99}, {"stride": 1}, {"stride": 12}], ids=str)
def test_dense_is_the_whole_sequence_to_the_bit(options):
    """A window of the sequence is the program of dense attention, to the letter."""
    sparse, dense = with_attention(TINY, **options), TINY
    programs = [
        jax.jit(lambda x, reach=reach: jax.grad(lambda x: causal_attention(QKV(x, 4), "xla", reach).sum())(x))
        .lower(jax.ShapeDtypeStruct((2, 12, 3, 16), "float32"))
        .as_text()
        for reach in (Reach.of(sparse), Reach.of(dense))
    ]
    assert programs[0] == programs[1]
    assert flops_per_token(sparse) == flops_per_token(dense)


@pytest.mark.factorisations
@pytest.mark.parametrize(
    "options",
    [{"stride": 4, "pattern": "fixed"}, {"window": 3}, {"window": 5}, {"stride": 4}, {"window": 1, "stride": 3}],
    ids=str,
)
def test_no_token_sees_what_it_does_not_reach(options):
    """In one layer the gradient of a token's loss by the embeddings it does not reach is zero, exactly."""
    config = with_attention(dataclasses.replace(TINY, layers=1), **options)
    model, tokens_BS = build(config), tokens(config)
    x_BTD = model.embed(tokens_BS[:, :-1])

    def losses_T(x_BTD):
        return model.losses(model.run(x_BTD)[0], tokens_BS[:, 1:]).reshape(3, -1).sum(0)

    size_TT = np.abs(jax.jit(jax.jacrev(losses_T))(x_BTD)).sum((1, 3))
    assert ((size_TT > 0) == reaches(options, config.sequence)).all()


def test_skipped_blocks_take_no_time_and_no_memory():
    """As compiled, a smaller window does fewer FLOPs and takes fewer temporaries; dense attention takes the most."""
    shape = jax.ShapeDtypeStruct((2, 256, 3, 32), "float32")

    def costs(reach):
        program = (
            jax.jit(jax.grad(lambda x: (causal_attention(QKV(x, 8), "xla", reach) ** 2).sum())).lower(shape).compile()
        )
        analysis, memory = program.cost_analysis(), program.memory_analysis()
        assert analysis
        assert memory
        return analysis["flops"], memory.temp_size_in_bytes

    windows = [costs(reach) for reach in (Reach(8), Reach(32), None)]
    for strided in (costs(Reach(16, 16)), costs(Reach(16, 16, 1))):
        assert all(mine < dense for mine, dense in zip(strided, windows[-1], strict=True))
    for sizes in zip(*windows, strict=True):
        assert sizes[0] < sizes[1] < sizes[2]


def test_a_wide_window_is_masked():
    """A window of half the sequence or more skips no block: dense attention computes it, with a mask."""
    reach = Reach(9)
    assert not reach.skips(16)
    qkv = QKV(jax.random.normal(jax.random.key(0), (2, 16, 3, 8)), HEAD_DIM)
    np.testing.assert_array_equal(causal_attention(qkv, "xla", reach), attend(qkv, reach))


def test_a_window_that_no_blocks_fit_is_masked():
    """Where only small blocks divide the tokens, dense attention computes a window, with a mask."""
    reach = Reach(12)
    assert not reach.skips(37)
    qkv = QKV(jax.random.normal(jax.random.key(0), (2, 37, 3, 8)), HEAD_DIM)
    np.testing.assert_array_equal(causal_attention(qkv, "xla", reach), attend(qkv, reach))


@pytest.mark.parametrize(("reach", "before"), [(Reach(5), (4, 0)), (Reach(1), (0, 0)), (None, None)])
def test_the_fused_kernel_gets_the_window(reach, before, monkeypatch):
    """cuDNN's window is the tokens before the query, without it: W - 1; dense attention has none."""
    asked = []

    def fused(q_BTHK, k_BTHK, v_BTHK, **options):
        asked.append(options)
        return v_BTHK

    monkeypatch.setattr(jax.nn, "dot_product_attention", fused)
    causal_attention(QKV(jnp.zeros((2, 16, 3, 8)), HEAD_DIM), "cudnn", reach)
    assert asked == [{"is_causal": True, "local_window_size": before, "implementation": "cudnn"}]
