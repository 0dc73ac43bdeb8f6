"""Strategies with one fault each, on a model of one number; `-p tests.benchmarks.planting` offers them to a run.

With SINGLE=NAME in the environment that one is called `single`, `data` is a toy too, and little is timed. With ONCE a
folder keeps what has happened. As the report is about to be written somebody presses Ctrl-C with TWICE, and makes room
on the disk with ROOM.
"""

import ctypes
import dataclasses
import functools
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
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


def inexact(step: Step) -> Step:
    """So they are, and it says that it does not mean to be exact."""
    return dataclasses.replace(wrong(step), inexact="gradients of another size")


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
    """Somebody presses Ctrl-C while the step of a batch of 8 is compiled, and stops the job at a batch of 16."""
    return happening_once(step, {8: lambda: signal.raise_signal(signal.SIGINT), 16: stop_job})


def full_once(step: Step) -> Step:
    """The disk becomes full while the step of a batch of 8 is compiled, and again at a batch of 16."""
    return happening_once(step, {8: fill_disk, 16: fill_disk})


def broken(step: Step) -> Step:
    """The state cannot be made."""
    return dataclasses.replace(step, init=jax.jit(raiser(ZeroDivisionError("no weights"))))


def retraced(step: Step) -> Step:
    """Every call compiles a program of its own: a new function each time, which no cache knows."""
    return uncompiled(step, lambda state, batch: jax.jit(lambda *arguments: step.update(*arguments))(state, batch))


def hanging(step: Step) -> Step:
    """A step never ends."""

    def hang(metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
        loss = jax.pure_callback(lambda loss: time.sleep(1e6), metrics["loss"], metrics["loss"])
        return metrics | {"loss": loss}

    return changed(step, hang)


def deaf(step: Step) -> Step:
    """The step never compiles, and no signal is heard meanwhile, as in the code of a backend."""

    def hang(metrics: dict[str, jax.Array]) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        Path(os.environ["ONCE"], "hanging").touch()
        time.sleep(1e6)

    return changed(step, hang)


def pausing(step: Step) -> Step:
    """Somebody stops the supervisor while the step is compiled, and lets it go on."""

    def pause(metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
        os.kill(os.getppid(), signal.SIGSTOP)
        while Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.1)
        time.sleep(1)
        os.kill(os.getppid(), signal.SIGCONT)
        return metrics

    return changed(step, pause)


def stopped_above(step: Step) -> Step:
    """Somebody presses Ctrl-C where only the supervisor hears it, at a batch of 8."""

    def stop(metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
        if step.train.batch_size == 8:
            os.kill(os.getppid(), signal.SIGINT)
            time.sleep(60)
        return metrics

    return changed(step, stop)


def held(step: Step) -> Step:
    """The step never compiles, and no other thread of Python runs: C code keeps the interpreter's lock."""
    return changed(step, lambda metrics: ctypes.PyDLL(None).sleep(1_000_000))


def aborting(step: Step) -> Step:
    """The backend aborts, and the process with it."""
    return changed(step, lambda metrics: os.abort())


def hanging_later(step: Step) -> Step:
    """A step of a batch of 8 never ends when it takes its turn; the first steps do."""

    def hang() -> None:
        if step.train.batch_size == 8:
            Path(os.environ["ONCE"], "hanging").touch()
            time.sleep(1e6)

    return in_turn(step, hang)


def killed_later(step: Step) -> Step:
    """The system ends the process when the step takes its turn, as it does where memory is short."""
    return in_turn(step, lambda: os.kill(os.getpid(), signal.SIGKILL))


def elsewhere(step: Step) -> Step:
    """The compiler of another process than the first refuses the step."""
    return uncompilable(step) if jax.process_index() else step


def killed_elsewhere(step: Step) -> Step:
    """The system ends another process than the first when the step of a batch of 8 takes its turn."""
    return killed_later(step) if jax.process_index() and step.train.batch_size == 8 else step


def stopped_elsewhere_once(step: Step) -> Step:
    """Somebody presses Ctrl-C in another process than the first, at a batch of 8, unless it has happened before."""

    def stop() -> None:
        mark = Path(os.environ["ONCE"], "stopped")
        if jax.process_index() and step.train.batch_size == 8 and not mark.exists():
            mark.touch()
            signal.raise_signal(signal.SIGINT)

    return in_turn(step, stop)


FAULTS = (
    *(nan, wrong, inexact, diverging, uncompilable, huge, stopped, stopped_once, full_once, broken, retraced),
    *(
        deaf,
        pausing,
        stopped_above,
        hanging,
        held,
        aborting,
        hanging_later,
        killed_later,
        elsewhere,
        killed_elsewhere,
        stopped_elsewhere_once,
    ),
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


def stop_job() -> None:
    """Stop the process that was started, which has started this one."""
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(60)


def fill_disk() -> None:
    """Nothing more is written: the file FILLER takes all room, or no file may become larger than the journal is."""
    if "FILLER" in os.environ:
        with suppress(OSError), Path(os.environ["FILLER"]).open("wb", buffering=0) as file:
            while True:
                file.write(bytes(2**16))
        return
    journal_bytes = Path(os.environ["MESHMARK_JOURNAL"]).stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (journal_bytes, resource.RLIM_INFINITY))


def in_turn(step: Step, happen: Callable[[], None]) -> Step:
    """Something happens when the step takes its turn, and not in the first steps."""

    def update(state: Any, batch: Any) -> Any:
        if any(frame.f_code.co_name == "time_interleaved" for frame, _ in traceback.walk_stack(None)):
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


@functools.cache
def base(config: Any, mesh: Any, train: Any, devices: tuple[Any, ...]) -> Step:
    """What toys are made of."""
    return STRATEGIES["data"].build(config, mesh, train, devices)


def plant(name: str, fault: Callable[[Step], Step]) -> Strategy:
    """A strategy with a fault, on the meshes of `data`."""

    def build(config: Any, mesh: Any, train: Any, devices: Sequence[Any]) -> Step:
        return fault(toy(base(config, mesh, train, tuple(devices))))

    return Strategy(name, ("data",), build)


SHORT_BLOCK_SECONDS = 0.005
"""For tests that time steps and do not look at how long they take."""
PLANTED = {fault.__name__: plant(fault.__name__, fault) for fault in FAULTS}
TOYS = PLANTED | {name: plant(name, lambda step: step) for name in ("single", "data")}


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Offer the faulty ones beside the real ones, before anything asks for the registry."""
    offered = {**STRATEGIES, **PLANTED}
    name = os.environ.get("SINGLE")
    if name:
        offered |= {"single": TOYS[name], "data": TOYS["data"]}
    strategies.STRATEGIES = MappingProxyType(offered)
    from benchmarks.timing import machine, measure  # they have the registry from now on

    measure.BLOCK_SECONDS = SHORT_BLOCK_SECONDS
    if name:
        machine.matmul_flops_per_second = lambda dtype: 1e11


def pytest_benchmark_update_json() -> None:
    """Be impatient, or helpful, if asked to."""
    if "TWICE" in os.environ:
        signal.raise_signal(signal.SIGINT)
    if "ROOM" in os.environ:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
