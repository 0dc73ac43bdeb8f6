"""Compilations while something runs: the names of what is compiled, or an error where nothing may be."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax

from benchmarks.cases.failures import Recompiled

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


@contextmanager
def compilations() -> Iterator[list[str]]:
    """Collect the names of functions that are compiled in the body."""
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == COMPILE_EVENT:
            compiled.append(str(kwargs.get("fun_name", "a function")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@contextmanager
def no_compilation() -> Iterator[None]:
    """Check that nothing is compiled in the body."""
    with compilations() as compiled:
        yield
    if compiled:
        raise Recompiled(f"compiled while it was timed: {', '.join(compiled)}; a step must be compiled once")
