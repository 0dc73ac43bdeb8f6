"""The compiled programs of a run: steps and initial states; what else is compiled; and the clock of its phases."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.cases import case as cases
from benchmarks.cases.case import Case
from benchmarks.cases.failures import CompileError, Recompiled
from benchmarks.cluster import processes
from strategies import State, Step
from strategies.checking import initial_state, initial_weights, trained_weights
from strategies.registry import BUILT_IN

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
MOST_BYTES = 2**30
"""Most bytes of states that are kept on the host, which a run on CPUs has in addition to the states of its steps."""


class Clock:
    """Seconds spent in each phase of a run. Time outside all phases is overhead."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.running: dict[str, float] = {}  # phases with their begin, outer ones first

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the body to a phase, whether it succeeds or not."""
        start = self.running[name] = time.perf_counter()
        try:
            yield
        finally:
            self.running.pop(name, None)  # a phase may be inside another of its name
            self.seconds[name] += time.perf_counter() - start

    def running_seconds(self, name: str) -> float:
        """Seconds for which a phase is running; 0 if it is not."""
        return time.perf_counter() - self.running[name] if name in self.running else 0.0

    def __str__(self) -> str:
        """Time by phase, such as `80 s: compile 50 s, timed 20 s, other 10 s (12%)`."""
        total = time.perf_counter() - self.start
        other = total - sum(self.seconds.values())
        phases = "".join(f"{name} {seconds:.0f} s, " for name, seconds in self.seconds.items())
        return f"{total:.0f} s: {phases}other {other:.0f} s ({other / total:.0%})"


class Compilation(NamedTuple):
    """A compiled step, the seconds that it took, the number of programs that were compiled, and XLA's options."""

    program: jax.stages.Compiled
    seconds: float
    programs: int
    options: Mapping[str, Any]


def compile_step(step: Step, given: Mapping[str, Any] | Sequence[tuple[str, str]] = ()) -> Compilation:
    """Compile a step ahead of time, from shapes alone. The XLA options that are given go before those of the step."""
    options = step.xla_options_with(dict(given))
    start = time.perf_counter()
    try:
        with compilations() as compiled:
            program = step.lower().compile(options)
        return Compilation(program, time.perf_counter() - start, len(compiled), options)
    except (Exception, SystemExit) as error:
        raise CompileError(f"{type(error).__name__}: {error}") from error


def bytes_accessed(program: jax.stages.Compiled) -> int | None:
    """XLA's estimate of bytes read and written, with a loop's body counted once; None if not reported."""
    facts = program.cost_analysis()
    count = facts.get("bytes accessed") if isinstance(facts, dict) else None
    return None if count is None or count < 0 else int(count)


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


class InitialStates:
    """Initial states of a run, with the noise that lets errors show (checking/initial.py), from the same random key.

    On CPUs they are computed once and copied to the other steps, because XLA takes half as long for the program that
    initialises a state, which runs once, as for the step. On GPUs and TPUs every state is initialised where it is
    sharded: one device or the host may be too small to hold it. A strategy that is not built in initialises its own
    state, too, because no test compares it with that of `single`.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._programs: dict[Any, Any] = {}
        self._host_states: dict[Any, State] = {}

    def begin(self, case: Case, step: Step, key: jax.Array) -> State:
        """The initial state of a case, sharded as its step shards it; the key is the same in all calls."""
        values, copies = self._values(case, step), self._copies(case)
        if copies and values in self._host_states:
            return jax.tree.map(_place, self._host_states[values], step.state)
        state = self._compiled(initial_state, case, step)(key)
        if copies and _bytes(state) + sum(map(_bytes, self._host_states.values())) <= MOST_BYTES:
            self._host_states[values] = jax.device_get(state)
        return state

    def weights(self, case: Case, step: Step, key: jax.Array) -> list[jax.Array]:
        """The weights of that state, as the optimizer updates them: with master weights, those."""
        host = self._host_states.get(self._values(case, step)) if self._copies(case) else None
        if host is None:
            return self._compiled(initial_weights, case, step)(key)
        like = trained_weights(step, step.state)
        return [_place(weight, like[name]) for name, weight in trained_weights(step, host).items()]

    def _values(self, case: Case, step: Step) -> Any:
        """Equal for steps whose initial states have equal values."""
        return case.config, case.dtype, case.options, step.layer_slots, shapes_of(step)

    def _copies(self, case: Case) -> bool:
        """Whether states of the case are copied from the host."""
        on_host = jax.devices()[0].platform == "cpu" and processes.count() == 1
        return on_host and cases.STRATEGIES[case.strategy] in BUILT_IN

    def _compiled(self, initial: Callable[[Step], Any], case: Case, step: Step) -> Any:
        """A compiled initialisation of a step. It does not depend on the batch size."""
        layout = initial, case.strategy, case.mesh, case.options, shapes_of(step)
        if layout not in self._programs:
            with self._clock.phase("compile"):
                self._programs[layout] = initial(step).lower(jax.random.key(0)).compile()
        return self._programs[layout]


def shapes_of(step: Step) -> tuple[Any, ...]:
    """Structure, shapes and dtypes of a step's state, which a padded vocabulary or further optimizer state change."""
    leaves, structure = jax.tree.flatten(step.state)
    return structure, *((leaf.shape, leaf.dtype) for leaf in leaves)


def _bytes(state: State) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(state))


def _place(host: np.ndarray, like: jax.ShapeDtypeStruct) -> jax.Array:
    """A copy of a host array, sharded. The step donates it, so it must not share the host array's memory."""
    return jax.make_array_from_callback(like.shape, like.sharding, lambda part: np.array(host[part]))
