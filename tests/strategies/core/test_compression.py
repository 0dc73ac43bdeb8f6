"""Compressed all-reduce: the bytes it sends, its error feedback, and that a model learns as well with it."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from benchmarks.run.corpus import batch, read_corpus
from strategies import STRATEGIES, GPTConfig, MeshSpec, TrainConfig
from strategies.core.compression import BLOCK, INT8, SIGNS, Errors, all_reduce, compressed, padded
from strategies.core.rules import adamw_rule, clipped
from tests.strategies.jaxprs import communicated
from tests.strategies.quick import compiled

CONFIG = GPTConfig(layers=2, embed=32, heads=2, vocab=256, sequence=32)
DEVICES = 4
SIZE = 12 * DEVICES * BLOCK - 100
"""The number of elements to sum, 100 fewer than fill their blocks."""


def summed(codec):
    """The compressed all-reduce, as a function of each device's elements [n,P] and of the errors kept so far."""
    mesh = Mesh(np.array(jax.devices()[:DEVICES]), "data")
    specs = P("data"), Errors(P("data"), P("data"))

    def body(x_1P, errors):
        return all_reduce(x_1P[0], errors, codec)

    return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=(P(), specs[1]))


def no_errors():
    """The errors before the first step."""
    size = padded(SIZE, DEVICES)
    return Errors(jnp.zeros(DEVICES * size), jnp.zeros(size))


@pytest.mark.parametrize(("codec", "bits"), [(INT8, 8), (SIGNS, 1)])
def test_codes_are_as_small_as_they_say(codec, bits):
    """A device sends each element in that many bits, and 4 bytes for each block, in an all-to-all and an all-gather."""
    program = jax.make_jaxpr(summed(codec))(jnp.zeros((DEVICES, SIZE)), no_errors())
    size = padded(SIZE, DEVICES)
    code_bytes = size * bits / 8 + 4 * size / BLOCK
    assert size == SIZE + 100
    assert communicated(program.jaxpr, unit="bytes") == {
        ("all_to_all", ("data",)): code_bytes,
        ("all_gather", ("data",)): code_bytes / DEVICES,
    }


def test_codes_are_as_close_as_they_can_be():
    """int8 is off by at most half a step of 1/127 of its block's largest element; signs lose sqrt(1 - 2/pi) of normal
    numbers.
    """
    x: Any = np.random.default_rng(0).normal(size=(8, BLOCK)).astype(np.float32)
    x[0] = 0
    largest = np.abs(x).max(-1, keepdims=True)
    assert (np.abs(INT8.decode(INT8.encode(x)) - x) <= largest / 127 * 0.5001).all()
    lost = np.linalg.norm(SIGNS.decode(SIGNS.encode(x)) - x, axis=-1)
    np.testing.assert_allclose(lost[1:] / np.linalg.norm(x[1:], axis=-1), math.sqrt(1 - 2 / math.pi), rtol=0.1)
    assert lost[0] == 0


@pytest.mark.parametrize("codec", [INT8, SIGNS])
def test_what_is_lost_in_one_step_comes_in_the_next(codec):
    """With error feedback, the sums delivered so far plus the current errors are the true sums, to float32 rounding."""
    add, errors, delivered, true = jax.jit(summed(codec)), no_errors(), 0.0, 0.0
    for seed in range(5):
        x_nP = np.random.default_rng(seed).normal(size=(DEVICES, SIZE)).astype(np.float32)
        total_P, errors = add(x_nP, errors)
        delivered, true = delivered + np.asarray(total_P, np.float64), true + x_nP.sum(0, dtype=np.float64)
    left = np.asarray(errors.shares).reshape(DEVICES, -1).sum(0) + np.asarray(errors.sums)
    assert np.linalg.norm(delivered - true) > 1e-3 * np.linalg.norm(true), "nothing was lost in the first place"
    np.testing.assert_allclose(delivered + left[:SIZE], true, atol=1e-4)


@pytest.mark.parametrize("schedule", [{}, {"warmup_steps": 3, "decay_steps": 6}], ids=str)
def test_momentum_in_bits_moves_weights_as_adamw_does(schedule):
    """1-bit Adam equals AdamW before and after its warm-up where compression is lossless.

    That is so with a constant and with a scheduled learning rate, where all gradients are equally large, and the same
    in each step: neither the signs nor the frozen
    variance lose anything.
    """
    train = TrainConfig(batch_size=4, compression="onebit", compression_warmup=2, **schedule)
    shapes = {"up": (2 * DEVICES, BLOCK), "down": (BLOCK, DEVICES)}
    rng = np.random.default_rng(0)
    weights = {name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()}
    grads = {name: jnp.asarray(0.3 * rng.choice([-1, 1], shape), jnp.float32) for name, shape in shapes.items()}
    shares = jax.tree.map(lambda grad: jnp.stack(DEVICES * [grad / DEVICES]), grads)
    specs = jax.tree.map(lambda _: P(), weights)
    plain = clipped(adamw_rule(train, specs), train, specs)
    ours = compressed(plain, train, DEVICES)
    state, kept = plain.init(weights), ours.init(weights)
    specs = P("data"), ours.specs(kept), P()
    mesh = Mesh(np.array(jax.devices()[:DEVICES]), "data")
    update = jax.jit(jax.shard_map(ours.update, mesh=mesh, in_specs=specs, out_specs=(P(), specs[1], P())))
    for _ in range(5):
        expected, state, norm = plain.update(grads, state, weights)
        updates, kept, our_norm = update(shares, kept, weights)
        np.testing.assert_allclose(our_norm, norm, rtol=1e-5)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4), updates, expected)


@functools.cache
def losses(compression):
    """The losses of 100 steps on the text, the first 20 of them as a warm-up."""
    train = TrainConfig(batch_size=16, learning_rate=1e-3, compression=compression)
    step = STRATEGIES["data"].build(CONFIG, MeshSpec.parse(f"data={DEVICES}"), train, jax.devices()[:DEVICES])
    key, text = jax.random.key(0), read_corpus(None, CONFIG)
    state, update, values = compiled(step.init.lower(key))(key), compiled(step.lower()), []
    for index in range(100):
        state, metrics = update(state, step.place(batch(text, index, 16, CONFIG)))
        values.append(float(metrics["loss"]))
    return np.array(values)


@pytest.mark.factorisations
@pytest.mark.parametrize(("compression", "margin"), [("onebit", 0.05), ("int8", 0.01)])
def test_it_learns_as_it_does_uncompressed(compression, margin):
    """The last losses with compression are within 1% (int8) or 5% (1 bit) of what was learnt without."""
    exact, ours = losses("none"), losses(compression)
    learnt = exact[0] - exact[-10:].mean()
    assert learnt > 1.5
    assert abs(ours[-10:].mean() - exact[-10:].mean()) < margin * learnt
    assert (ours != exact).any()
