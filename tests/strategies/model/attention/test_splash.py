"""Splash attention computes what XLA's attention computes, and skips the blocks that nobody attends to."""

import math
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu import splash_attention as kernels

from strategies import GPTConfig, Infeasible, TrainConfig
from strategies.backends.backend import TPU, backend_for
from strategies.model.attention import QKV, Reach, causal_attention, kernel_for, splash
from strategies.model.attention.dense import attend
from strategies.model.attention.splash import block_tokens, computed_keys
from tests.strategies.sampling import nightly

TOKENS, HEAD_DIM = 384, 8  # three blocks of 128
ROUNDING = 12 * math.sqrt(TOKENS) * 2**-24
"""A dozen operations one after another, each of which rounds sums of at most `TOKENS` terms (see equality.py)."""
REACHES = [None, Reach(40), Reach(128), Reach(129), Reach(200)]


@pytest.mark.parametrize("reach", [Reach(200), *nightly(None)], ids=str)
def test_it_is_the_attention_of_xla(reach, monkeypatch):
    """Its values and its gradients are those of XLA's attention, dense and with a window, as interpreted on a CPU."""
    interpreted = partial(kernels.make_splash_mha_single_device, interpret=True)
    monkeypatch.setattr(kernels, "make_splash_mha_single_device", interpreted)
    qkv = QKV(jax.random.normal(jax.random.key(0), (2, TOKENS, 3, 2 * HEAD_DIM)), HEAD_DIM)
    dmixed_BTA = jax.random.normal(jax.random.key(1), (2, TOKENS, 2 * HEAD_DIM))
    functions = [lambda qkv: causal_attention(qkv, "splash", reach), lambda qkv: attend(qkv, reach)]
    with jax.default_matmul_precision("highest"):
        (mixed, pull), (expected, expected_pull) = (jax.vjp(function, qkv) for function in functions)
        results = [
            (mixed, expected),
            *zip(*map(jax.tree.leaves, (pull(dmixed_BTA), expected_pull(dmixed_BTA))), strict=True),
        ]
    for mine, theirs in results:
        assert np.linalg.norm(mine - theirs) < ROUNDING * np.linalg.norm(theirs)


@pytest.mark.parametrize("reach", REACHES, ids=str)
def test_blocks_that_nobody_attends_to_are_skipped(reach):
    """The keys that are computed are those of the blocks with a pair that attends, counted one by one."""
    size, position = block_tokens(TOKENS, reach), np.arange(TOKENS)
    assert size
    attends = position[:, None] >= position
    if reach:
        attends &= np.asarray(reach.mask(position[:, None], position))
    blocks = attends.reshape(TOKENS // size, size, -1, size).any((1, 3)).sum()
    assert computed_keys(TOKENS, reach) == blocks * size**2 // TOKENS


@pytest.mark.parametrize("reach", REACHES, ids=str)
def test_the_kernel_visits_the_blocks_that_are_counted(reach):
    """The tables by which the kernels skip blocks have as many blocks as the formula counts, in each of the three."""
    kernel = splash._kernel(jnp.zeros((1, TOKENS, HEAD_DIM)), reach)
    size = block_tokens(TOKENS, reach)
    assert size
    for table in (kernel.fwd_mask_info, kernel.dq_mask_info, kernel.dkv_mask_info):
        visited = int((np.asarray(table.block_mask) > 0).sum())
        assert computed_keys(TOKENS, reach) == visited * size**2 // TOKENS


CONFIG = GPTConfig(layers=1, embed=32, heads=4, sequence=256)
HALF = {"dtype": "bfloat16"}
LONG = {"layers": 2, "sequence": 1024}


@pytest.mark.parametrize(
    ("platform", "config", "options", "kind"),
    [
        ("tpu", {}, HALF, "splash"),
        ("tpu", {}, {}, "splash"),
        ("tpu", {"attention_window": 64}, HALF, "splash"),
        ("tpu", {}, {"dtype": "float16"}, "xla"),
        ("tpu", {"sequence": 200}, HALF, "xla"),
        ("tpu", {"attention_stride": 16}, HALF, "xla"),
        ("tpu", {}, {**HALF, "attention": "xla"}, "xla"),
        ("cuda", {}, HALF, "cudnn"),
        ("cuda", {}, {}, "xla"),
        ("cuda", {"attention_stride": 16}, HALF, "xla"),
        ("cpu", {}, HALF, "xla"),
        (None, {}, HALF, "xla"),
        (None, {}, {**HALF, "attention": "splash"}, "splash"),
        ("tpu", LONG, {**HALF, "ring": 4}, "splash"),
        ("tpu", LONG, {**HALF, "ring": 8}, "xla"),
        ("cuda", LONG, {**HALF, "ring": 8}, "cudnn"),
        ("cuda", LONG | {"attention_window": 64}, {**HALF, "ring": 4}, "xla"),
        ("tpu", LONG | {"attention_window": 64}, {**HALF, "ring": 4}, "xla"),
    ],
    ids=str,
)
def test_auto_is_the_fused_kernel_of_the_platform(platform, config, options, kind):
    """Where it takes the model, or a ring's chunks of it; otherwise, and without a platform, it is XLA's attention."""
    train = {name: value for name, value in options.items() if name != "ring"}
    ring = options.get("ring", 1)
    assert kernel_for(backend_for(platform), replace(CONFIG, **config), TrainConfig(1, **train), ring=ring) == kind


def test_a_kernel_of_pallas_is_not_partitioned_by_the_compiler():
    """Where the compiler partitions a step, auto is XLA's attention, and splash is refused."""
    assert kernel_for(TPU, CONFIG, TrainConfig(1), partitioned=True) == "xla"
    with pytest.raises(Infeasible, match="attention=splash has no kernel that the compiler partitions; use auto or"):
        kernel_for(TPU, CONFIG, TrainConfig(1, attention="splash"), partitioned=True)


@pytest.mark.parametrize(
    ("platform", "config", "train", "message"),
    [
        ("cpu", {}, {}, "takes bfloat16 and float32 on TPUs, not float32 on cpu; use auto or xla"),
        ("tpu", {}, {"dtype": "float16"}, "takes bfloat16 and float32 on TPUs, not float16 on tpu; use auto or xla"),
        ("tpu", {"sequence": 200}, {}, "needs a multiple of 128 tokens, not sequence=200; use auto or xla"),
        ("tpu", {"attention_stride": 16}, {}, "has no kernel for attention_stride=16; use auto or xla"),
    ],
    ids=str,
)
def test_what_splash_does_not_take_is_refused(platform, config, train, message):
    """With the numbers and the way out."""
    with pytest.raises(Infeasible, match=f"attention=splash {message}"):
        kernel_for(backend_for(platform), replace(CONFIG, **config), TrainConfig(1, attention="splash", **train))
