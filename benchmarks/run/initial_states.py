"""Initial training states, equal for all steps that are compared.

On CPUs they are computed once and copied to the other steps, because XLA takes half as long for the program that
initialises a state, which runs once, as for the step. On GPUs and TPUs every state is initialised where it is sharded:
one device or the host may be too small to hold it. A strategy that is not built in initialises its own state, too,
because no test compares it with that of `single`.
"""

from typing import Any

import jax
import numpy as np

from benchmarks.cases import case as cases
from benchmarks.cases.case import Case
from benchmarks.cluster import processes
from benchmarks.run.clock import Clock
from strategies import State, Step
from strategies.registry import BUILT_IN

MOST_BYTES = 2**30
"""Most bytes of states that are kept on the host, which a run on CPUs has in addition to the states of its steps."""


class InitialStates:
    """Initial states of a run, which all start from the same random key."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._programs: dict[Any, Any] = {}
        self._host_states: dict[Any, State] = {}

    def begin(self, case: Case, step: Step, key: jax.Array) -> State:
        """The initial state of a case, sharded as its step shards it.

        Args:
            case: the case.
            step: its step.
            key: the random key, the same in all calls.
        """
        values = (case.config, case.dtype, case.options, step.layer_slots, shapes_of(step))
        on_host = jax.devices()[0].platform == "cpu" and processes.count() == 1
        copies = on_host and cases.STRATEGIES[case.strategy] in BUILT_IN
        if copies and values in self._host_states:
            return jax.tree.map(_place, self._host_states[values], step.state)
        state = self._init(case, step)(key)
        if copies and _bytes(state) + sum(map(_bytes, self._host_states.values())) <= MOST_BYTES:
            self._host_states[values] = jax.device_get(state)
        return state

    def _init(self, case: Case, step: Step) -> Any:
        """The compiled initialisation of a step. It does not depend on the batch size."""
        layout = case.strategy, case.mesh, case.options
        if layout not in self._programs:
            with self._clock.phase("compile"):
                self._programs[layout] = step.init.lower(jax.random.key(0)).compile()
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
