"""Steps in bfloat16 and float16: what rounding explains, in the same dtype and against float32.

That strategies equal one device in the same dtype, and AdamW's part, is derived in equality.py. float16 steps are
held to both bounds in training/test_loss_scaling.py, where they begin with steps that overflow.

What devices sum is no rounding of that kind: each computes the gradients of its sequences as one device does, and their
sum is held to the bound of float32 (`test_bfloat16_gradients_of_devices_are_summed_in_float32`).
"""

import dataclasses
import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from strategies import STRATEGIES, GPTConfig
from strategies.model import parts, self_attention
from tests.strategies.equality import CONFIG, ROUNDING, TO_FLOAT32, TRAIN, assert_equal, build, initial, single, train
from tests.strategies.meshes import WIDEST
from tests.strategies.models import FORCED
from tests.strategies.quick import compiled
from tests.strategies.sampling import nightly

ZIPF, BALANCED = FORCED, dataclasses.replace(FORCED, routing="balanced")
SHALLOW = dataclasses.replace(ZIPF, layers=2, experts=4, balance_loss=0.0, router_z_loss=0.0)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("three_d", {}),
        *nightly(("pipeline", {"reduce_dtype": "bfloat16", "microbatches": 4})),
        *nightly(("data", {"reduce_dtype": "bfloat16", "bucket_bytes": 10_000})),
        *nightly(*((name, {}) for name in STRATEGIES if name not in ("single", "three_d"))),
    ],
    ids=str,
)
def test_bfloat16_equals_one_device_and_float32(name, options):
    """Strategies compute in bfloat16 what one device computes in bfloat16, and what it computes in float32."""
    mine = train(name, WIDEST[name], dtype="bfloat16", **options)
    assert_equal(mine, single(dtype="bfloat16"), ROUNDING["bfloat16"])
    assert_equal(mine, single(), TO_FLOAT32["bfloat16"])


@pytest.mark.parametrize(
    ("name", "mesh", "config", "options"),
    [
        ("expert", "data=2,expert=2", SHALLOW, {}),
        *nightly(
            ("expert", "data=2,expert=2", ZIPF, {}),
            *(("expert", "data=2,expert=4", config, {"remat": "full"}) for config in (BALANCED, ZIPF)),
            ("expert", "expert=4", BALANCED, {"dispatch": "all_gather", "microbatches": 2}),
            *((name, WIDEST[name], ZIPF, {}) for name in ("zero1", "hsdp", "tensor")),
            ("context", "context=2", ZIPF, {}),
            *((name, WIDEST[name], BALANCED, {}) for name in ("data", "zero2", "fsdp", "auto")),
            ("explicit", "data=2,expert=4", ZIPF, {"microbatches": 2}),
            ("pipeline", "pipeline=2", BALANCED, {"microbatches": 4}),
            ("three_d", "fsdp=2,expert=2,tensor=2", ZIPF, {"microbatches": 2}),
        ),
    ],
    ids=lambda value: f"{value.layers}-{value.routing}" if isinstance(value, GPTConfig) else str(value),
)
def test_bfloat16_equals_one_device_where_routing_is_forced(name, mesh, config, options):
    """Strategies train experts in bfloat16 as one device does, tokens that are dropped included.

    A learned router may send a token to another expert where rounding differs: that is no law in bfloat16.
    """
    mine, reference = (
        train(name, mesh, config, dtype="bfloat16", **options),
        single(config, dtype="bfloat16", **options),
    )
    assert_equal(mine, reference, ROUNDING["bfloat16"] * math.sqrt(config.layers / CONFIG.layers))


def gradients(name, mesh, tokens, **options):
    """The loss and the gradients of a bfloat16 step at its initial weights."""
    config = dataclasses.replace(CONFIG, layers=2)
    step = build(name, mesh, config, batch_size=len(tokens), dtype="bfloat16", **options)
    state, batch = initial(step), step.place(tokens)
    found = compiled(step.gradients.lower(state, batch))(state, batch)
    return jax.tree.leaves(jax.tree.map(lambda x: np.asarray(x, np.float64), found))


@cache
def of_each_quarter():
    """Tokens, and the mean of the losses and gradients that one device computes for each quarter of them."""
    tokens = np.random.default_rng(0).integers(0, CONFIG.vocab, (TRAIN.batch_size, CONFIG.sequence + 1))
    parts = [gradients("single", "data=1", quarter) for quarter in np.split(tokens, 4)]
    return tokens, [np.mean(part, axis=0) for part in zip(*parts, strict=True)]


def apart(mine, expected):
    """The largest distance of two arrays, relative to the norm of the second, or of all if that is tiny."""
    whole = math.sqrt(sum(np.square(y).sum() for y in expected))
    return max(
        np.linalg.norm(x - y) / max(np.linalg.norm(y), 2**-12 * whole) for x, y in zip(mine, expected, strict=True)
    )


@pytest.mark.factorisations
@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("fsdp", "fsdp=4"),
        ("single", "data=1"),
        ("data", "data=4"),
        ("zero1", "data=4"),
        ("zero2", "data=4"),
        ("three_d", "data=4"),
        ("hsdp", "data=2,fsdp=2"),
    ],
)
def test_bfloat16_gradients_of_devices_are_summed_in_float32(name, mesh):
    """In bfloat16 the gradients of devices, or of microbatches on one device, are summed in float32.

    The same gradients summed in bfloat16 are caught.
    """
    tokens, expected = of_each_quarter()
    if name == "single":  # each microbatch has every fourth sequence
        turned = tokens.reshape(4, -1, tokens.shape[1]).swapaxes(0, 1).reshape(tokens.shape)
        assert apart(gradients(name, mesh, turned, microbatches=4), expected) < ROUNDING["float32"]
    else:
        assert apart(gradients(name, mesh, tokens), expected) < ROUNDING["float32"]
        planted = gradients(name, mesh, tokens, reduce_dtype="bfloat16")
        assert apart(planted, expected) > 10 * ROUNDING["float32"]


@pytest.mark.parametrize("dtype", ["bfloat16", *nightly("float16")])
def test_a_bfloat16_sum_of_gradients_is_caught(dtype, monkeypatch):
    """The checks fail if a bias gradient is summed over tokens in bfloat16, planted on one device.

    The check against the same dtype does, and so does that against float32.
    """
    reference, exact = single(dtype=dtype), single()

    def add_bias(x, bias):
        return (x + jnp.broadcast_to(bias.astype("bfloat16"), x.shape)).astype(x.dtype)

    for module in (self_attention, parts):
        monkeypatch.setattr(module, "add_bias", add_bias)
    planted = train("single", "data=1", dtype=dtype)
    for expected, rounding in ((reference, ROUNDING[dtype]), (exact, TO_FLOAT32[dtype])):
        with pytest.raises(AssertionError):
            assert_equal(planted, expected, rounding)
