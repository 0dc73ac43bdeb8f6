"""Training steps with one fault each, for tests of what a run does when a case fails.

Faults that happen once, in a run of several processes or one that is resumed, leave a mark in the folder that the
environment variable ONCE names.
"""

import ctypes
import dataclasses
import os
import resource
import signal
import time
from contextlib import suppress
from pathlib import Path

import jax
import jax.numpy as jnp

from strategies import Step
from tests.benchmarks.toy_steps import changed, happening_once, in_turn, raiser, uncompiled


def nan(step: Step) -> Step:
    """The loss is NaN."""
    return changed(step, lambda metrics: metrics | {"loss": metrics["loss"] * jnp.nan})


def wrong(step: Step) -> Step:
    """The gradients are 1% too large."""
    return changed(step, lambda metrics: metrics | {"grad_norm": metrics["grad_norm"] * 1.01})


def inexact(step: Step) -> Step:
    """The gradients are 1% too large, and the step declares that it is inexact by design."""
    return dataclasses.replace(wrong(step), inexact="gradients of another size")


def diverging(step: Step) -> Step:
    """The loss is finite in the first steps and NaN soon after."""
    return changed(step, lambda m: m | {"loss": jnp.where(m["grad_norm"] < 2, jnp.nan, m["loss"])})


def uncompilable(step: Step) -> Step:
    """The compiler rejects the step."""
    return changed(step, raiser(ValueError("no such instruction\nin line 7")))


def huge(step: Step) -> Step:
    """The step does not fit in the device's memory."""
    return changed(step, raiser(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")))


def stopped(step: Step) -> Step:
    """Ctrl-C is pressed while the step is compiled."""
    return changed(step, lambda metrics: press())


def stopped_once(step: Step) -> Step:
    """Ctrl-C is pressed while batch size 8 is compiled, and SIGTERM ends the job at batch size 16, once each."""
    return happening_once(step, {8: press, 16: stop_job})


def full_once(step: Step) -> Step:
    """The disk fills up while batch size 8 is compiled, and again at batch size 16."""
    return happening_once(step, {8: fill_disk, 16: fill_disk})


def broken(step: Step) -> Step:
    """Initialising the state raises an error."""
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
    """Compilation hangs with all signals blocked, as inside a backend's native code."""

    def hang(metrics: dict[str, jax.Array]) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        Path(os.environ["ONCE"], "hanging").touch()
        time.sleep(1e6)

    return changed(step, hang)


def pausing(step: Step) -> Step:
    """The supervisor is stopped by SIGSTOP while the step is compiled, and continued a second later."""

    def pause(metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
        os.kill(os.getppid(), signal.SIGSTOP)
        while Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.1)
        time.sleep(1)
        os.kill(os.getppid(), signal.SIGCONT)
        return metrics

    return changed(step, pause)


def stopped_above(step: Step) -> Step:
    """At batch size 8, SIGINT reaches the supervisor only."""

    def stop(metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
        if step.train.batch_size == 8:
            os.kill(os.getppid(), signal.SIGINT)
            time.sleep(60)
        return metrics

    return changed(step, stop)


def held(step: Step) -> Step:
    """Compilation hangs in native code that holds the GIL, so that no other Python thread runs."""
    return changed(step, lambda metrics: ctypes.PyDLL(None).sleep(1_000_000))


def aborting(step: Step) -> Step:
    """The backend calls abort(), which ends the process."""
    return changed(step, lambda metrics: os.abort())


def hanging_later(step: Step) -> Step:
    """A step of batch size 8 hangs when it is timed; the first steps do not."""

    def hang() -> None:
        if step.train.batch_size == 8:
            Path(os.environ["ONCE"], "hanging").touch()
            time.sleep(1e6)

    return in_turn(step, hang)


def killed_later(step: Step) -> Step:
    """SIGKILL ends the process when the step is timed, as the kernel's OOM killer would."""
    return in_turn(step, lambda: os.kill(os.getpid(), signal.SIGKILL))


def elsewhere(step: Step) -> Step:
    """The compiler of every process but the first rejects the step."""
    return uncompilable(step) if jax.process_index() else step


def killed_elsewhere(step: Step) -> Step:
    """SIGKILL ends every process but the first when the step of batch size 8 is timed."""
    return killed_later(step) if jax.process_index() and step.train.batch_size == 8 else step


def stopped_elsewhere_once(step: Step) -> Step:
    """Ctrl-C is pressed in a process other than the first when batch size 8 is timed, once."""

    def stop() -> None:
        mark = Path(os.environ["ONCE"], "stopped")
        if jax.process_index() and step.train.batch_size == 8 and not mark.exists():
            mark.touch()
            press()

    return in_turn(step, stop)


def press() -> None:
    """Press Ctrl-C, which stops the supervisor, and this process where it has none."""
    if "MESHMARK_JOURNAL" in os.environ:
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)
    signal.raise_signal(signal.SIGINT)


def stop_job() -> None:
    """Send SIGTERM to the supervisor, the process that started this one."""
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(60)


def fill_disk() -> None:
    """Let all further writes fail: fill the disk with the file FILLER, or limit file sizes to that of the journal."""
    if "FILLER" in os.environ:
        with suppress(OSError), Path(os.environ["FILLER"]).open("wb", buffering=0) as file:
            while True:
                file.write(bytes(2**16))
        return
    journal_bytes = Path(os.environ["MESHMARK_JOURNAL"]).stat().st_size
    for process in (os.getpid(), os.getppid()):
        resource.prlimit(process, resource.RLIMIT_FSIZE, (journal_bytes, resource.RLIM_INFINITY))


FAULTS = (
    *(nan, wrong, inexact, diverging, uncompilable, huge, stopped, stopped_once, full_once, broken, retraced),
    *(deaf, pausing, stopped_above, hanging, held, aborting, hanging_later, killed_later),
    *(elsewhere, killed_elsewhere, stopped_elsewhere_once),
)
