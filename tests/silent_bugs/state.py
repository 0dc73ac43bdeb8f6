"""State: it is of another time or another device."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from strategies.core.plan import Plan
from strategies.step import Implementation, Optimizer
from tests.silent_bugs.changed_implementations import Plant, by_name, chosen, optimized_as, unsummed
from tests.silent_bugs.museum import Bug


class Delayed(NamedTuple):
    """State of an optimizer whose updates come a step late.

    Attributes:
        optimizer: state of the wrapped optimizer.
        pending: what the last step should have added to the weights.
    """

    optimizer: Any
    pending: Any


def one_step_late(pattern: str) -> Plant:
    """Compute with some weights as they were a step before."""

    def change(plan: Plan, optimizer: Optimizer) -> Optimizer:
        def update(grads: Any, state: Delayed, weights: Any) -> tuple[Any, Delayed, Any]:
            updates, inner, norm = optimizer.update(grads, state.optimizer, weights)
            late = chosen(pattern, updates, lambda _, name: by_name(state.pending)[name])
            return late, Delayed(inner, updates), norm

        def init(weights: Any) -> Delayed:
            return Delayed(optimizer.init(weights), jax.tree.map(jnp.zeros_like, weights))

        def specs(state: Delayed) -> Delayed:
            return Delayed(optimizer.specs(state.optimizer), optimizer.takes(state.pending)[1])

        return optimizer._replace(init=init, specs=specs, update=update)

    return optimized_as(change)


def moments_of_next(pattern: str, axis: str) -> Plant:
    """After the first step, give each device the first moments of the next one, as a restore of wrong shards does."""

    def change(plan: Plan, optimizer: Optimizer) -> Optimizer:
        def update(grads: Any, state: Any, weights: Any) -> tuple[Any, Any, Any]:
            count, size = optax.tree.get(state, "count"), plan.size(axis)
            around = [(device, (device + 1) % size) for device in range(size)]

            def moved(moment: Any, _: str) -> Any:
                return jnp.where(count == 1, lax.ppermute(moment, axis, around), moment)

            state = optax.tree.set(state, mu=chosen(pattern, optax.tree.get(state, "mu"), moved))
            return optimizer.update(grads, state, weights)

        return optimizer._replace(update=update)

    return optimized_as(change)


def masters_of_others(pattern: str) -> Plant:
    """Let the optimizer begin with master weights that are a tenth smaller than the weights."""

    def change(plan: Plan, optimizer: Optimizer) -> Optimizer:
        def update(grads: Any, state: Any, weights: Any) -> tuple[Any, Any, Any]:
            first = optax.tree.get(state, "count") == 0
            updates, state, norm = optimizer.update(grads, state, weights)

            def revert(update: Any, name: str) -> Any:
                return update - jnp.where(first, 0.1, 0.0) * by_name(weights)[name]

            return chosen(pattern, updates, revert), state, norm

        return optimizer._replace(update=update)

    return optimized_as(change)


def updated_apart(pattern: str, axis: str, factor: float) -> Plant:
    """Let the second device of a replica group update some weights otherwise. The first one is right."""

    def change(plan: Plan, optimizer: Optimizer) -> Optimizer:
        def update(*inputs: Any) -> tuple[Any, Any, Any]:
            updates, state, norm = optimizer.update(*inputs)

            def apart(change: Any, _: str) -> Any:
                return unsummed(change * jnp.where(lax.axis_index(axis) == 0, 1.0, factor), axis)

            return chosen(pattern, updates, apart), state, norm

        return optimizer._replace(update=update)

    return optimized_as(change)


def other_weights(plan: Plan, sound: Implementation) -> Implementation:
    """Let the second replica compute with weights of its own."""

    def differentiate(build: Any, weights: Any, *inputs: Any) -> Any:
        own = 1 + 0.1 * lax.axis_index("data")
        return sound.differentiate(build, chosen(r"blocks.mlp.*", weights, lambda w, _: w * own), *inputs)

    return replace(sound, differentiate=differentiate)


def leftover(pattern: str) -> Plant:
    """Begin to add up some gradients in a buffer that still holds the weights."""

    def plant(plan: Plan, sound: Implementation) -> Implementation:
        def differentiate(build: Any, weights: Any, *inputs: Any) -> Any:
            loss, grads = sound.differentiate(build, weights, *inputs)
            return loss, chosen(pattern, grads, lambda dw, name: dw + 0.01 * by_name(weights)[name].astype(dw.dtype))

        return replace(sound, differentiate=differentiate)

    return plant


BUGS = [
    Bug(
        "weights-one-step-late",
        "https://github.com/NVIDIA/Megatron-LM/issues/950",
        "Overlapped gathers followed another order than the forward pass, which used weights of the step before.",
        "weights of the MLP: those of the step before",
        "change of blocks.mlp.up_DF",
        "zero1",
        "data=2",
        one_step_late(r"blocks.mlp.up_DF"),
    ),
    Bug(
        "gathered-weights-in-gradients",
        "https://github.com/NVIDIA/Megatron-LM/pull/4609",
        "The buffer of gradients received gathered weights, and was not cleared before gradients were added.",
        "gradient of attention's output: with a part of the weights added",
        "attention.out_AD",
        "zero1",
        "data=2",
        leftover(r"blocks.attention.out_AD"),
    ),
    Bug(
        "moments-of-other-shard",
        "https://github.com/NVIDIA/Megatron-LM/pull/5077",
        "Moments were saved at offsets that padding had moved, and restored as those of other weights.",
        "first moments after the first step: those of the next device",
        "change of blocks.mlp",
        "zero1",
        "data=2",
        moments_of_next(r"blocks.mlp.*", "data"),
    ),
    Bug(
        "masters-of-other-weights",
        "https://github.com/NVIDIA/Megatron-LM/pull/5071",
        "Loaded weights did not reach copies in float32, which the first update wrote back over them.",
        "master weights of the MLP: those before a checkpoint was loaded",
        "change of blocks.mlp.up_DF",
        "zero1",
        "data=2",
        masters_of_others(r"blocks.mlp.up_DF"),
        train={"dtype": "bfloat16", "master": "float32"},
    ),
    Bug(
        "replicas-begin-apart",
        "https://github.com/allenai/OLMo-core/pull/319",
        "Replicas of sharded weights were initialised with different seeds, and nothing compared them.",
        "weights of the MLP: those of the second replica differ by a tenth",
        "loss",
        "hsdp",
        "data=2,fsdp=2",
        other_weights,
    ),
    Bug(
        "replicas-part",
        "https://github.com/NVIDIA-NeMo/Automodel/pull/3822",
        "Weights that tensor ranks replicate could differ, and a checkpoint kept those of one rank.",
        "norms of blocks on the second device: updated by half",
        "along `tensor`",
        "tensor",
        "tensor=2",
        updated_apart(r"blocks.norm..*", "tensor", 0.5),
    ),
]
