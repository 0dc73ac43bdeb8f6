"""What checks of many steps share: initial states, and the steps of one device."""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from strategies.checking import FirstSteps
from strategies.step import Step


@contextlib.contextmanager
def shared_runs() -> Iterator[None]:
    """Make once in this context what is equal: initial states, and the steps of one device."""
    module = importlib.import_module("strategies.checking.check")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("initial_state", "initial_weights"):
            patch.setattr(module, name, _made_once(getattr(module, name)))
        patch.setattr(module, "first_steps", _trained_once(module.first_steps))
        yield


def _made_once(make: Callable[[Step], Any]) -> Callable[[Step], Any]:
    """`make`, once for all steps with equal states. Steps donate their states, so each gets a copy."""
    made: dict[str, Any] = {}

    def shared(step: Step) -> Any:
        arrays = jax.tree.map(lambda array: (array.shape, array.dtype, array.sharding.spec), step.state)
        key = str((step.config, dict(step.mesh.shape), step.layer_slots, arrays))
        if key not in made:
            made[key] = make(step)(jax.random.key(0))
        return lambda _: jax.tree.map(jnp.copy, made[key])

    return shared


def _trained_once(train: Callable[..., FirstSteps]) -> Callable[..., FirstSteps]:
    """`first_steps`, once for all steps of one device with equal models and options."""
    trained: dict[Any, FirstSteps] = {}

    def shared(step: Step, batches: Any) -> FirstSteps:
        if step.mesh.size > 1:
            return train(step, batches)
        key = step.config, step.train
        if key not in trained:
            trained[key] = train(step, batches)
        return trained[key]

    return shared
