"""The loss is cross entropy and z-loss, all at once or in chunks, which cost no more than the formulas state."""

import dataclasses
import math
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.program.compiled import read_program
from strategies import STRATEGIES, GPTConfig, MeshSpec, TrainConfig
from strategies.model.ends import losses, tokens_at_once
from strategies.model.hooks import ONE_DEVICE
from tests.strategies.quick import compiled

TOKENS, EMBED, ROWS, VOCAB = 48, 16, 40, 37
ROUNDING = 12 * math.sqrt(TOKENS) * 2**-24
"""A dozen operations one after another, each of which rounds sums of at most `TOKENS` terms (see equality.py)."""
X_ND = jax.random.normal(jax.random.key(0), (TOKENS, EMBED))
TABLE_VD = jax.random.normal(jax.random.key(1), (ROWS, EMBED)) / 2
TARGETS_N = jnp.array(np.random.default_rng(0).integers(0, VOCAB, TOKENS))
ONE_TOKEN = 4 * ROWS
"""Bytes of the float32 logits of one."""


def of(x_ND, token_VD, **options):
    """Losses of the tokens."""
    train = TrainConfig(batch_size=1, **options)
    return losses(x_ND, token_VD, TARGETS_N, ONE_DEVICE, vocab=VOCAB, train=train)


def value_and_grads(dtype="float32", **options):
    """Of a sum of losses that weighs each of them differently."""

    def total(x_ND, token_VD):
        return (of(x_ND.astype(dtype), token_VD.astype(dtype), **options) * jnp.arange(TOKENS)).sum()

    return jax.jit(jax.value_and_grad(total, argnums=(0, 1)))(X_ND, TABLE_VD)


def distance(mine, reference):
    """Between two arrays, relative to the norm of the second."""
    return np.linalg.norm(np.asarray(mine) - np.asarray(reference)) / np.linalg.norm(reference)


@pytest.mark.parametrize("options", [{}, {"logits_bytes": 3 * ONE_TOKEN}], ids=str)
@pytest.mark.parametrize("z_loss", [0.0, 1e-2])
def test_it_is_cross_entropy_and_z_loss(z_loss, options):
    """As written in float64 numpy: log Z less the target's logit, and z_loss times the square of log Z."""
    logits_NV = np.asarray(X_ND, np.float64) @ np.asarray(TABLE_VD[:VOCAB], np.float64).T
    log_z_N = np.log(np.exp(logits_NV).sum(-1))
    expected_N = log_z_N - logits_NV[np.arange(TOKENS), TARGETS_N] + z_loss * log_z_N**2
    assert distance(of(X_ND, TABLE_VD, z_loss=z_loss, **options), expected_N) < ROUNDING


def test_the_gradient_of_z_loss_is_softmax_times_two_log_z():
    """The derivative of log Z by the logits is softmax; padding has no part in it."""
    logits_NV = (X_ND @ TABLE_VD.T)[:, :VOCAB]
    log_z_N = jax.nn.logsumexp(logits_NV, axis=-1)
    (_, plain), (_, with_z) = value_and_grads(), value_and_grads(z_loss=1.0)
    dlogits_NV = (2 * log_z_N * jnp.arange(TOKENS))[:, None] * jax.nn.softmax(logits_NV)
    assert distance(with_z[0] - plain[0], dlogits_NV @ TABLE_VD[:VOCAB]) < 4 * ROUNDING
    assert distance((with_z[1] - plain[1])[:VOCAB], dlogits_NV.T @ X_ND) < 4 * ROUNDING
    assert (with_z[1][VOCAB:] == 0).all()


@pytest.mark.parametrize("tokens", [1, 7, TOKENS // 2, TOKENS])
def test_chunks_change_no_number(tokens):
    """One token at a time or all of them: the same losses, the same gradients."""
    (value, grads), (expected, expected_grads) = value_and_grads(logits_bytes=tokens * ONE_TOKEN), value_and_grads()
    assert distance(value, expected) < ROUNDING
    assert max(map(distance, grads, expected_grads)) < ROUNDING


def test_chunks_add_up_in_float32():
    """In bfloat16 the table's gradient is no farther from the exact one after 48 chunks than after one, but for the
    rounding of the sum to bfloat16."""
    exact, whole, chunked = (
        value_and_grads(dtype, logits_bytes=logits_bytes)[1][1]
        for dtype, logits_bytes in (("float32", None), ("bfloat16", None), ("bfloat16", ONE_TOKEN))
    )
    assert 0 < distance(chunked, exact) < distance(whole, exact) + 2**-9


@pytest.mark.parametrize("tokens", [1, 7, 48, 509])
@pytest.mark.parametrize("most", [1, 5, 12, 1000])
def test_a_chunk_is_the_largest_that_fits_and_divides(tokens, most):
    """Equal chunks within the limit; no larger ones are."""
    part = tokens_at_once(tokens, ROWS, most * ONE_TOKEN + ONE_TOKEN - 1)
    assert tokens % part == 0
    assert part <= most
    assert not [larger for larger in range(part + 1, min(most, tokens) + 1) if tokens % larger == 0]


CONFIG = GPTConfig(layers=1, embed=16, heads=2, vocab=4096, sequence=64)
BATCH = 8
LOGITS = 4 * BATCH * CONFIG.sequence * CONFIG.vocab


@cache
def program(logits_bytes) -> Any:
    """The compiled gradients of a step with a vocabulary much larger than all else."""
    train = TrainConfig(BATCH, logits_bytes=logits_bytes)
    step = STRATEGIES["single"].build(CONFIG, MeshSpec.parse("data=1"), train, jax.devices()[:1])
    return compiled(step.gradients.lower(step.state, step.batch))


def test_logits_cost_what_they_may():
    """What gradients need at once falls by what logits took, and grows with the limit by at most three times that:
    logits, their exponentials, and their gradients."""
    limits = LOGITS // 16, LOGITS // 64
    plans = [program(limit).memory_analysis() for limit in (None, *limits)]
    whole, large, small = (plan.temp_size_in_bytes for plan in plans if plan)
    assert whole - large > LOGITS - limits[0]
    assert 0 < large - small <= 3 * (limits[0] - limits[1])


def test_chunks_compute_the_logits_once_more():
    """Six FLOPs a token and weight of the table become eight, for logits are not kept; nothing else is recomputed."""
    whole, chunked = (read_program(program(limit).as_text() or "", {"data": 1}).flops for limit in (None, LOGITS // 16))
    assert chunked - whole == 2 * BATCH * CONFIG.sequence * CONFIG.embed * CONFIG.vocab


def test_a_limit_is_of_what_a_device_holds():
    """Of the vocabulary: one below a token on one device (test_refusals.py) is not below it on eight."""
    train = TrainConfig(8, logits_bytes=4 * CONFIG.vocab // 8)
    STRATEGIES["tensor"].build(dataclasses.replace(CONFIG, heads=8), "tensor=8", train)
