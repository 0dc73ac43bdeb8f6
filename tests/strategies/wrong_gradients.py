"""Steps whose gradients are wrong, for tests of what must find them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from strategies import STRATEGIES, Step, Strategy

Change = Callable[[Any], Any]


def planted(step: Step, gradients: Change = lambda grads: grads, metrics: Change = lambda metrics: metrics) -> Step:
    """A step with other gradients, or other metrics."""

    def update(state: Any, batch: Any) -> Any:
        loss, grads = step.gradients(state, batch)
        state, of_apply = step.apply(state, gradients(grads))
        return state, metrics({"loss": loss, **of_apply})

    return dataclasses.replace(step, update=jax.jit(update), xla_options={})


def scaled(factor: float, *names: str) -> Change:
    """Gradients of which some, by parts of their path, are multiplied by a factor."""

    def change(grads: Any) -> Any:
        def each(path: Any, dw: Any) -> Any:
            return dw * factor if any(name in jax.tree_util.keystr(path) for name in names) else dw

        return jax.tree.map_with_path(each, grads)

    return change


def strategy_with(name: str, gradients: Change) -> Strategy:
    """A registered strategy with other gradients, under its name."""
    real = STRATEGIES[name]
    return Strategy(name, real.axes, make_step=lambda *arguments: planted(real.build(*arguments), gradients))
