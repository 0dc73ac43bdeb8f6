"""The learning rate: optax's warmup with cosine decay, by AdamW's own count of updates."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from strategies import TrainConfig
from strategies.core.rules import adamw_rule, clipped, learning_rate_at


def adamw(train, specs):
    """AdamW with clipping."""
    return clipped(adamw_rule(train, specs), train, specs)


SCHEDULED = TrainConfig(4, learning_rate=1e-2, warmup_steps=4, decay_steps=10, final_learning_rate=1e-3)


def test_it_is_that_of_optax():
    """Warmup and cosine decay are `optax.warmup_cosine_decay_schedule` from 1 / (warmup + 1) of the peak, as nanoGPT's;
    the highest learning rate comes after the warmup, and the final one stays after the decay.
    """
    expected: Any = optax.warmup_cosine_decay_schedule(1e-2 / 5, 1e-2, 4, 10, end_value=1e-3)
    found = [float(learning_rate_at(SCHEDULED, updates)) for updates in range(14)]
    np.testing.assert_allclose(found, [float(expected(updates)) for updates in range(14)], rtol=1e-6)
    np.testing.assert_allclose(found[:5], np.arange(1, 6) / 5 * 1e-2, rtol=1e-6)
    np.testing.assert_allclose(found[10:], 1e-3, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, [1e-2, 1e-2, 1e-2]), ({"warmup_steps": 1}, [5e-3, 1e-2, 1e-2]), ({"decay_steps": 2}, [1e-2, 5e-3, 0])],
    ids=str,
)
def test_warmup_and_decay_go_without_each_other(options, expected):
    """Without warmup the first update has the highest rate, without decay all later ones do."""
    train = TrainConfig(4, learning_rate=1e-2, **options)
    np.testing.assert_allclose([learning_rate_at(train, updates) for updates in range(3)], expected, rtol=1e-6)


def test_a_constant_is_no_array():
    """Without warmup and decay it is a Python float, so the compiled step has a constant and no count to read."""
    assert type(learning_rate_at(TrainConfig(4), jnp.int32(3))) is float


def test_updates_are_those_of_optax_with_the_schedule():
    """Clipping apart, updates equal those of `optax.adamw` with the schedule, and the state has AdamW's count alone."""
    schedule = optax.warmup_cosine_decay_schedule(1e-2 / 5, 1e-2, 4, 10, end_value=1e-3)
    reference = optax.adamw(schedule, SCHEDULED.beta1, SCHEDULED.beta2, weight_decay=SCHEDULED.weight_decay)
    weights = {"up": jnp.linspace(-1, 1, 12).reshape(3, 4)}
    ours = adamw(SCHEDULED, {"up": P()})
    state, expected_state = ours.init(weights), reference.init(weights)
    assert jax.tree.structure(state) == jax.tree.structure(adamw(TrainConfig(4), {"up": P()}).init(weights))
    for seed in range(12):
        grads = {"up": jnp.asarray(1e-2 * np.random.default_rng(seed).normal(size=(3, 4)), jnp.float32)}
        updates, state, norm = ours.update(grads, state, weights)
        assert norm < SCHEDULED.clip_norm
        expected: Any
        expected, expected_state = reference.update(grads, expected_state, weights)
        np.testing.assert_allclose(updates["up"], expected["up"], rtol=1e-5)
