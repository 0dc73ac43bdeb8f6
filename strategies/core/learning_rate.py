"""The learning rate: constant, or a linear warmup followed by a cosine decay (Loshchilov & Hutter 2017, "SGDR")."""

from typing import Any

import optax

from strategies.config import TrainConfig


def learning_rate_at(train: TrainConfig, updates: Any) -> Any:
    """The learning rate of the next update, after so many updates.

    Args:
        train: `learning_rate`, `warmup_steps`, `decay_steps` and `final_learning_rate` are used.
        updates: AdamW's count, which is the only count of updates in the state. It may be traced.

    Returns:
        A Python float if the learning rate is constant, so that the compiled step has a constant; otherwise an array.
    """
    if train.warmup_steps == 0 and train.decay_steps is None:
        return train.learning_rate
    return schedule(train)(updates)


def schedule(train: TrainConfig) -> optax.Schedule:
    """The learning rate as an optax schedule. In the warmup, update k of w has k / (w + 1) of the peak, from 1 on."""
    peak, warmup = train.learning_rate, train.warmup_steps
    after = optax.constant_schedule(peak)
    if train.decay_steps is not None:
        after = optax.cosine_decay_schedule(peak, train.decay_steps - warmup, train.final_learning_rate / peak)
    if warmup == 0:
        return after
    return optax.join_schedules([optax.linear_schedule(peak / (warmup + 1), peak, warmup), after], [warmup])
