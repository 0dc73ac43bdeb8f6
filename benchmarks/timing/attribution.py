"""Where the time of a step goes: the step is timed in turns with variants of itself that leave something out.

    step                                    all of it
    waiting        each collective exchanges one element: nothing is sent, but devices still wait for each other
    side by side   and all stages of a pipeline work at the same ticks
    alone          no device knows of another
    gradients      alone, and without the optimizer
    kept           and nothing is computed a second time in the backward pass
    optimizer      alone, and nothing but the optimizer
    nothing        one element of each array of the state is changed

All but the last three do the FLOPs of the step, and `kept` those of them that are not recomputed.
"""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from benchmarks.cases import Case
from benchmarks.cluster import processes
from benchmarks.program.deadlock import concurrent_collectives, require_no_deadlock
from benchmarks.program.hlo import parse
from benchmarks.timing.measure import Training, steps_per_block, told
from benchmarks.timing.turns import Turns, take_turns
from benchmarks.timing.variants import Silence
from strategies import State, Step

Update = Callable[[State, Any], tuple[State, dict[str, Any]]]

ALONE = Silence()


@dataclass(frozen=True)
class Attribution:
    """Seconds of a step, by what they are spent on. A difference of two times: noise can make it negative.

    Attributes:
        compute_seconds: forward and backward, nothing recomputed.
        exposed_communication_seconds: sending what is not hidden behind work.
        schedule_bubble_seconds: waiting for the first results of another stage, and at the end for the last.
        lockstep_bubble_seconds: waiting for the slower ones wherever devices communicate.
        recomputation_seconds: what keeping everything for the backward pass would save; nothing where it is slower.
        optimizer_seconds: clipping and AdamW.
        dispatch_seconds: launching a step that does nothing.
    """

    compute_seconds: float
    exposed_communication_seconds: float
    schedule_bubble_seconds: float
    lockstep_bubble_seconds: float
    recomputation_seconds: float
    optimizer_seconds: float
    dispatch_seconds: float

    @classmethod
    def of(cls, seconds: Mapping[str, float]) -> "Attribution":
        """What the times of the variants say; a variant that is missing is the one before it."""
        step, gradients, nothing = seconds["step"], seconds["gradients"], seconds["nothing"]
        waiting = seconds.get("waiting", step)
        side_by_side = seconds.get("side by side", waiting)
        alone = seconds.get("alone", waiting)
        recomputation = max(0.0, gradients - seconds.get("kept", gradients))
        return cls(
            compute_seconds=gradients - recomputation - nothing,
            exposed_communication_seconds=step - waiting,
            schedule_bubble_seconds=waiting - side_by_side,
            lockstep_bubble_seconds=side_by_side - alone,
            recomputation_seconds=recomputation,
            optimizer_seconds=seconds["optimizer"] - nothing,
            dispatch_seconds=nothing,
        )

    @property
    def total_seconds(self) -> float:
        """Their sum: the step's time as far as its two halves, timed apart, take as long as the whole."""
        return sum(getattr(self, part.name) for part in fields(self))


def attribute(
    case: Case, step: Step, training: Training, step_seconds: float, rounds: int, begin: Callable[[], None]
) -> Attribution:
    """Compile the variants of a case's step, and time all of them in turns with it, where its training has come to.

    The ratios that are measured are given as parts of `step_seconds`. `begin` is called before a variant is compiled,
    and before each of its turns.

    Raises:
        Exception: whatever went wrong; the training cannot be gone on with.
    """
    programs: dict[str, Any] = {"step": training.program}
    options = told(step, dict(case.compiler_options))
    for name, update in variants(case).items():
        begin()
        lowered = partial(jax.jit(update, donate_argnums=0).lower, step.state, step.batch)
        programs[name] = processes.together(lambda lowered=lowered: safe(step.mesh, lowered().compile(options)))
    runs = {name: Variant(training, program) for name, program in programs.items()}
    turns = {name: Turns(steps_per_block(run)) for name, run in runs.items()}
    take_turns(runs, turns, rounds, lambda name: begin())
    for turn in turns.values():
        if turn.error:
            raise turn.error
    # Blocks of the same round: what slows the machine for a while slows both.
    whole = turns["step"].seconds
    ratios = {
        name: statistics.median(part / all_of_it for part, all_of_it in zip(turn.seconds, whole, strict=True))
        for name, turn in turns.items()
    }
    return Attribution.of({name: ratio * step_seconds for name, ratio in ratios.items()})


def safe(mesh: Mesh, program: jax.stages.Compiled) -> jax.stages.Compiled:
    """The program of a variant, which is run without the checks that a step passes first.

    Raises:
        MayDeadlock: two of its collectives may be in flight at once, where that can deadlock.
    """
    require_no_deadlock(mesh, concurrent_collectives(parse(program.as_text() or "")))
    return program


def variants(case: Case) -> dict[str, Update]:
    """The variants that differ from one another on this mesh and with what this case recomputes.

    None of them moves the weights. They stay those of a model, and their gradients numbers of an ordinary size: with
    denormal ones a processor is many times slower.
    """
    step = case.build(learning_rate=0.0)
    found: dict[str, Update] = {}
    if case.mesh.size > 1:
        found["waiting"] = Silence(waits=True)(step.update)
        if step.mesh.shape.get("pipeline", 1) > 1:
            found["side by side"] = Silence(waits=True, side_by_side=True)(step.update)
        found["alone"] = ALONE(step.update)
    found["gradients"] = differentiation(step)
    if case.remat != "none":
        found["kept"] = differentiation(replace(case, remat="none").build())
    found["optimizer"] = lambda state, batch: ALONE(step.apply)(state, like_gradients(step, state.params))
    found["nothing"] = lambda state, batch: (touched(step.state, state, step.state, state), {})
    return found


def differentiation(step: Step) -> Update:
    """The step without its optimizer."""

    def update(state: State, batch: Any) -> tuple[State, dict[str, Any]]:
        loss, grads = ALONE(step.gradients)(state.params, batch)
        # All of them are made: what is behind the barrier takes them as a whole.
        params = touched(step.state.params, state.params, step.grads, lax.optimization_barrier(grads))
        return State(params, state.optimizer), {"loss": loss}

    return update


def like_gradients(step: Step, params: Any) -> Any:
    """The weights as if they were gradients; where devices have one each, each has all the weights."""
    return jax.tree.map(lambda grad, param: jnp.broadcast_to(param, grad.shape), step.grads, params)


def touched(shapes: Any, arrays: Any, other_shapes: Any, others: Any) -> Any:
    """Arrays of these shapes and shardings as they are, but the compiler thinks that they depend on the others."""
    specs, other_specs = (jax.tree.map(lambda shape: shape.sharding.spec, each) for each in (shapes, other_shapes))
    mesh = jax.tree.leaves(shapes)[0].sharding.mesh

    def touch(x: jax.Array, y: jax.Array) -> jax.Array:
        element = 0 * y[(0,) * y.ndim]
        return x.at[(0,) * x.ndim].add(element)

    touch_all = partial(jax.tree.map, touch)
    # Where others are split and arrays are not, devices do not know that they agree.
    spread = jax.shard_map(touch_all, mesh=mesh, in_specs=(specs, other_specs), out_specs=specs, check_vma=False)
    return spread(arrays, others)


@dataclass
class Variant:
    """A variant as something that takes turns. All of them go on with the same state, one after another."""

    training: Training
    program: Callable[..., Any]

    @property
    def dispatch_seconds(self) -> float:
        """Of the latest block."""
        return self.training.dispatch_seconds

    def block(self, steps: int) -> float:
        """As `Training.block`."""
        self.training.program = self.program
        return self.training.block(steps)
