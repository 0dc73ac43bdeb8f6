"""A training step that trains one weight of a model, and functions that change it. The faults are made of them."""

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
    """A step without a fault whose weight and loss fall. It compiles in a fraction of a model's time."""

    size = step.config.embed

    def init(key: jax.Array) -> State:
        return weights(jnp.full(size, 5.0))

    def update(state: State, batch: jax.Array) -> tuple[State, dict[str, jax.Array]]:
        weight = state.params["head"]["norm"]["scale_D"]
        return weights(0.9 * weight), {"loss": weight.mean() * batch.mean(), "grad_norm": weight.mean()}

    replicated = NamedSharding(step.mesh, P())
    return dataclasses.replace(
        step,
        init=jax.jit(init, out_shardings=replicated),
        update=jax.jit(update, donate_argnums=0, out_shardings=replicated),
        state=weights(jax.ShapeDtypeStruct((size,), jnp.float32, sharding=replicated)),
    )


def weights(scale_D: Any) -> State:
    """The state of a toy: the weight that it trains."""
    return State({"head": {"norm": {"scale_D": scale_D}}}, {})


def happening_once(step: Step, events: Mapping[int, Callable[[], None]]) -> Step:
    """Trigger the event of a batch size while its step is compiled, once: a file in the folder ONCE marks it."""

    def happen(metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
        event, mark = events.get(step.train.batch_size), Path(os.environ["ONCE"], str(step.train.batch_size))
        if event and not mark.exists():
            mark.touch()
            event()
        return metrics

    return changed(step, happen)


def in_turn(step: Step, happen: Callable[[], None]) -> Step:
    """Run `happen` when a step is timed, but not in the first steps, which are checked."""

    def update(state: Any, batch: Any) -> Any:
        if any(frame.f_code.co_name == "time_interleaved" for frame, _ in traceback.walk_stack(None)):
            happen()
        return step.update(state, batch)

    return uncompiled(step, update)


def uncompiled(step: Step, update: Callable[[Any, Any], Any]) -> Step:
    """Replace the update by a Python function that passes for a compiled one."""
    return dataclasses.replace(step, update=Uncompiled(update))


@dataclasses.dataclass(frozen=True)
class Uncompiled:
    """A Python function with the methods of a jitted, lowered and compiled one."""

    update: Callable[[Any, Any], Any]

    def lower(self, *shapes: Any) -> "Uncompiled":
        """Return itself, as lowered."""
        return self

    def compile(self, options: Any = None) -> "Uncompiled":
        """Return itself, as compiled."""
        return self

    def memory_analysis(self) -> None:
        """No memory plan is known."""

    def cost_analysis(self) -> None:
        """No cost is known."""

    def as_text(self) -> str:
        """The text of a program that does nothing."""
        return "HloModule nothing\n\nENTRY %main () -> f32[] {\n  ROOT %zero = f32[] constant(0)\n}\n"

    def __call__(self, state: Any, batch: Any) -> Any:
        """Run the function."""
        return self.update(state, batch)


def changed(step: Step, change: Callable[[dict[str, jax.Array]], Any]) -> Step:
    """The step with `change` applied to its metrics, inside the compiled program."""

    def update(state: Any, batch: Any) -> Any:
        state, metrics = step.update(state, batch)
        return state, change(metrics)

    return dataclasses.replace(step, update=jax.jit(update, donate_argnums=0))


def raiser(error: Exception) -> Callable[[Any], Any]:
    """A function that raises an error."""

    def fail(_: Any) -> Any:
        raise error

    return fail
