"""Strategies with one fault each, on a model of one number; `-p tests.benchmarks.planted` offers them to a run."""

import dataclasses
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import strategies
from strategies import STRATEGIES, State, Step, Strategy


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


def nan(step: Step) -> Step:
    """The loss is not a number."""
    return changed(step, lambda metrics: metrics | {"loss": metrics["loss"] * jnp.nan})


def wrong(step: Step) -> Step:
    """The gradients are 1% too large."""
    return changed(step, lambda metrics: metrics | {"grad_norm": metrics["grad_norm"] * 1.01})


def diverging(step: Step) -> Step:
    """The loss is a number in the first steps, but not for long."""
    return changed(step, lambda m: m | {"loss": jnp.where(m["grad_norm"] < 2, jnp.nan, m["loss"])})


def uncompilable(step: Step) -> Step:
    """The compiler refuses the step."""
    return changed(step, raiser(ValueError("no such instruction\nin line 7")))


def huge(step: Step) -> Step:
    """The step does not fit into the device's memory."""
    return changed(step, raiser(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")))


def stopped(step: Step) -> Step:
    """Somebody presses Ctrl-C while the step is compiled."""
    return changed(step, lambda metrics: signal.raise_signal(signal.SIGINT))


def stopped_once(step: Step) -> Step:
    """Somebody presses Ctrl-C while the step of a batch of 8 is compiled, unless the file ONCE is there already."""

    def stop(metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
        if step.train.batch_size == 8 and not Path(os.environ["ONCE"]).exists():
            Path(os.environ["ONCE"]).touch()
            signal.raise_signal(signal.SIGINT)
        return metrics

    return changed(step, stop)


def broken(step: Step) -> Step:
    """The state cannot be made."""
    return dataclasses.replace(step, init=jax.jit(raiser(ZeroDivisionError("no weights"))))


def retraced(step: Step) -> Step:
    """Every call compiles a program of its own."""
    return dataclasses.replace(step, update=Retraced(step.update))


def hanging(step: Step) -> Step:
    """A step never ends."""

    def hang(metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
        loss = jax.pure_callback(lambda loss: time.sleep(1e6), metrics["loss"], metrics["loss"])
        return metrics | {"loss": loss}

    return changed(step, hang)


def aborting(step: Step) -> Step:
    """The backend aborts, and the process with it."""
    return changed(step, lambda metrics: os.abort())


FAULTS = (hanging, aborting, nan, wrong, diverging, uncompilable, huge, stopped, stopped_once, broken, retraced)


@dataclasses.dataclass(frozen=True)
class Retraced:
    """It says that it is compiled, and is not."""

    update: Callable[..., Any]

    def lower(self, *shapes: Any) -> "Retraced":
        """As a jitted function does it."""
        return self

    def compile(self) -> "Retraced":
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
        """A new function each time, which no cache knows."""
        return jax.jit(lambda *arguments: self.update(*arguments))(state, batch)


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


def plant(name: str, fault: Callable[[Step], Step]) -> Strategy:
    """A strategy with a fault, on the meshes of `data`."""
    return Strategy(name, ("data",), lambda *sizes: fault(toy(STRATEGIES["data"].build(*sizes))))


PLANTED = {fault.__name__: plant(fault.__name__, fault) for fault in FAULTS}
TOYS = PLANTED | {name: plant(name, lambda step: step) for name in ("single", "data")}


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Offer the faulty ones beside the real ones, before anything asks for the registry."""
    strategies.STRATEGIES = MappingProxyType({**STRATEGIES, **PLANTED})
