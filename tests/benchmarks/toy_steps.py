"""A training step on a model of one number, and ways to change it; `faults` makes broken steps of them."""

import dataclasses
import os
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from strategies import State, Step


def toy(step: Step) -> Step:
    """Nothing wrong: the weight falls, and the loss with it. It compiles in a fraction of a model's time."""

    def init(key: jax.Array) -> State:
        return State({"weight": jnp.float32(5)}, {})

    def update(state: State, batch: jax.Array) -> tuple[State, dict[str, jax.Array]]:
        weight = state.params["weight"]
        return State({"weight": 0.9 * weight}, {}), {"loss": weight * batch.mean(), "grad_norm": weight}

    replicated = NamedSharding(step.mesh, P())
    return dataclasses.replace(
        step,
        init=jax.jit(init, out_shardings=replicated),
        update=jax.jit(update, donate_argnums=0, out_shardings=replicated),
        state=State({"weight": jax.ShapeDtypeStruct((), jnp.float32, sharding=replicated)}, {}),
    )


def happening_once(step: Step, events: Mapping[int, Callable[[], None]]) -> Step:
    """Something happens while the step of a batch size is compiled, unless it has happened before."""

    def happen(metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
        event, mark = events.get(step.train.batch_size), Path(os.environ["ONCE"], str(step.train.batch_size))
        if event and not mark.exists():
            mark.touch()
            event()
        return metrics

    return changed(step, happen)


def in_turn(step: Step, happen: Callable[[], None]) -> Step:
    """Something happens when the step takes its turn, and not in the first steps."""

    def update(state: Any, batch: Any) -> Any:
        if any(frame.f_code.co_name == "take_turns" for frame, _ in traceback.walk_stack(None)):
            happen()
        return step.update(state, batch)

    return uncompiled(step, update)


def uncompiled(step: Step, update: Callable[[Any, Any], Any]) -> Step:
    """The step with an update that says that it is compiled, and is not."""
    return dataclasses.replace(step, update=Uncompiled(update))


@dataclasses.dataclass(frozen=True)
class Uncompiled:
    """It says that it is compiled, and is not."""

    update: Callable[[Any, Any], Any]

    def lower(self, *shapes: Any) -> "Uncompiled":
        """As a jitted function does it."""
        return self

    def compile(self, options: Any = None) -> "Uncompiled":
        """As a lowered function does it."""
        return self

    def memory_analysis(self) -> None:
        """Nothing is planned."""

    def cost_analysis(self) -> None:
        """Nothing is counted."""

    def as_text(self) -> str:
        """A program that does nothing."""
        return "HloModule nothing\n\nENTRY %main () -> f32[] {\n  ROOT %zero = f32[] constant(0)\n}\n"

    def __call__(self, state: Any, batch: Any) -> Any:
        """As a compiled function does it."""
        return self.update(state, batch)


def changed(step: Step, change: Callable[[dict[str, jax.Array]], Any]) -> Step:
    """The step with other metrics."""

    def update(state: Any, batch: Any) -> Any:
        state, metrics = step.update(state, batch)
        return state, change(metrics)

    return dataclasses.replace(step, update=jax.jit(update, donate_argnums=0))


def raiser(error: Exception) -> Callable[[Any], Any]:
    """A function that fails."""

    def fail(_: Any) -> Any:
        raise error

    return fail
