"""Attribution of a step's time: the step is timed interleaved with variants that leave something out.

    step           the whole step
    synchronized   each collective exchanges a single element: no data is sent, but devices still wait for each other
    aligned        as synchronized, and all stages of a pipeline work at the same ticks
    isolated       devices do not communicate at all
    gradients      as isolated, without the optimizer
    no remat       as gradients, and nothing is recomputed in the backward pass
    optimizer      as isolated, with nothing but the optimizer
    empty          changes one element of each array of the state

All but the last three do the FLOPs of the step; `no remat` does those that are not recomputation.
"""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from benchmarks.cases.case import Case
from benchmarks.cluster import processes
from benchmarks.program.deadlock import concurrent_collectives, require_no_deadlock
from benchmarks.program.hlo import parse
from benchmarks.run.measure import BlockTimes, Training, timed
from benchmarks.run.variants import WithoutCommunication
from strategies import State, Step

Update = Callable[[State, Any], tuple[State, dict[str, Any]]]

ISOLATED = WithoutCommunication()


def attributed(seconds: Mapping[str, float]) -> dict[str, float]:
    """The columns of a row on the seconds of a step by cause, and on their sum over the time of the step.

    Each is a difference of two times, so noise can make it negative. They add up to the time of the step if gradients
    and optimizer, timed separately, take as long as both together. A missing variant equals the one before it.
    """
    step, gradients, empty = seconds["step"], seconds["gradients"], seconds["empty"]
    synchronized = seconds.get("synchronized", step)
    aligned = seconds.get("aligned", synchronized)
    isolated = seconds.get("isolated", synchronized)
    recomputation = max(0.0, gradients - seconds.get("no remat", gradients))
    parts = {
        "compute": gradients - recomputation - empty,
        "exposed_communication": step - synchronized,
        "schedule_bubble": synchronized - aligned,
        "lockstep_bubble": aligned - isolated,
        "recomputation": recomputation,
        "optimizer": seconds["optimizer"] - empty,
        "dispatch": empty,
    }
    columns = {f"attribution.{name}_seconds": part for name, part in parts.items()}
    return columns | {"attribution.total_over_step": sum(parts.values()) / step}


def attribute(
    case: Case, step: Step, training: Training, step_seconds: float, rounds: int, begin: Callable[[], None]
) -> dict[str, float]:
    """Compile the variants of a case's step, and time them interleaved with the step, from the training's current
    state; the columns of `attributed`. The training cannot be continued afterwards.

    The measured ratios are scaled to `step_seconds`. `begin` is called before each compilation and each block.
    """
    programs: dict[str, Any] = {"step": training.program}
    options = step.xla_options_with(dict(case.compiler_options))
    for name, update in variants(case).items():
        begin()
        lowered = partial(jax.jit(update, donate_argnums=0).lower, step.state, step.batch)
        programs[name] = processes.run_in_all(
            lambda lowered=lowered: require_safe(step.mesh, lowered().compile(options))
        )
    runs = {name: Variant(training, program) for name, program in programs.items()}
    times = timed(runs, rounds, lambda name: begin())
    return attributed({name: ratio * step_seconds for name, ratio in relative(times).items()})


def relative(times: Mapping[str, BlockTimes]) -> dict[str, float]:
    """The time of each variant as a fraction of the step's.

    It is the median of ratios within a round: a temporary slowdown of the machine affects both blocks. What an empty
    program takes is its dispatch. Where the devices run a step while the next is dispatched, no part of it waits for
    that. An optimizer alone may be too short to hide its own dispatch: then it is what the gradients leave of the step.
    """
    step = times["step"]
    ratios = {
        name: statistics.median(part / whole for part, whole in zip(variant.seconds, step.seconds, strict=True))
        for name, variant in times.items()
    }
    if step.hides_dispatch:
        ratios["empty"] = 0.0
        if not times["optimizer"].hides_dispatch:
            ratios["optimizer"] = ratios.get("isolated", 1.0) - ratios["gradients"]
    return ratios


def require_safe(mesh: Mesh, program: jax.stages.Compiled) -> jax.stages.Compiled:
    """Return the program of a variant if it cannot deadlock.

    Variants skip the other checks that a step passes first.
    """
    require_no_deadlock(mesh, concurrent_collectives(parse(program.as_text() or "")))
    return program


def variants(case: Case) -> dict[str, Update]:
    """The variants that differ from one another on this mesh and with this rematerialisation, by name.

    None of them changes the weights, so weights and gradients keep ordinary magnitudes. Denormal numbers would be many
    times slower.
    """
    step = case.build(learning_rate=0.0)
    updates: dict[str, Update] = {}
    if case.mesh.size > 1:
        updates["synchronized"] = WithoutCommunication(synchronizes=True)(step.update)
        if step.mesh.shape.get("pipeline", 1) > 1:
            updates["aligned"] = WithoutCommunication(synchronizes=True, aligned_stages=True)(step.update)
        updates["isolated"] = ISOLATED(step.update)
    updates["gradients"] = differentiation(step)
    if case.remat != "none":
        updates["no remat"] = differentiation(replace(case, remat="none").build())

    def optimize(state: State, batch: Any) -> Any:
        # The weights in the shapes of the gradients. Where gradients differ by device, each device has all weights.
        like = jax.tree.map(
            lambda grad, w: jnp.broadcast_to(w.astype(grad.dtype), grad.shape), step.grads, state.params
        )
        return ISOLATED(step.apply)(state, like)

    updates["optimizer"] = optimize
    updates["empty"] = lambda state, batch: (made_dependent(step.state, state, step.state, state), {})
    return updates


def differentiation(step: Step) -> Update:
    """The step without its optimizer and without communication."""

    def update(state: State, batch: Any) -> tuple[State, dict[str, Any]]:
        loss, grads = ISOLATED(step.gradients)(state, batch)
        # The barrier takes all gradients at once, so none is optimised away.
        params = made_dependent(step.state.params, state.params, step.grads, lax.optimization_barrier(grads))
        return state._replace(params=params), {"loss": loss}

    return update


def made_dependent(shapes: Any, arrays: Any, other_shapes: Any, others: Any) -> Any:
    """Return `arrays` unchanged, in a way that the compiler takes for dependent on `others`."""
    specs, other_specs = (jax.tree.map(lambda shape: shape.sharding.spec, tree) for tree in (shapes, other_shapes))
    mesh = jax.tree.leaves(shapes)[0].sharding.mesh

    def touch(x: jax.Array, y: jax.Array) -> jax.Array:
        element = 0 * y[(0,) * y.ndim].astype(x.dtype)
        return x.at[(0,) * x.ndim].add(element)

    touch_all = partial(jax.tree.map, touch)
    # Replication is not checked: arrays may be replicated where others are sharded.
    mapped = jax.shard_map(touch_all, mesh=mesh, in_specs=(specs, other_specs), out_specs=specs, check_vma=False)
    return mapped(arrays, others)


@dataclass
class Variant:
    """A variant that can be timed in blocks. All variants continue from the same training state, one after another."""

    training: Training
    program: Callable[..., Any]

    @property
    def dispatch_seconds(self) -> float:
        """Seconds of the latest block until its steps were dispatched."""
        return self.training.dispatch_seconds

    def block(self, steps: int) -> float:
        """Time a block of this variant (see `Training.block`)."""
        self.training.program = self.program
        return self.training.block(steps)
