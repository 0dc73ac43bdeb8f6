"""How bugs are planted: each as an own strategy, whose implementation differs from a sound one in one place.

A plant is a function of the plan and of the sound implementation. What one device computes is not touched, so a check
that compares both has to see the difference. Plants of gradients are by name, such as "blocks.norm1.scale_D".
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from strategies.core.gradients import all_reduce, microbatched, sum_remaining
from strategies.core.plan import Plan
from strategies.model.gpt import GPT
from strategies.model.weights import by_name, nested
from strategies.step import Implementation, Optimizer

Plant = Callable[[Plan, Implementation], Implementation]

_OWN = Primitive("own_part")
"""The identity. The type of its result says that an array is the same along a mesh axis, along which it differs."""


@_OWN.def_abstract_eval
def _own_type(x: Any, *, axis: str) -> Any:
    kinds = x.manual_axis_type
    return x.update(manual_axis_type=kinds.update(varying=kinds.varying - {axis}))


mlir.register_lowering(_OWN, lambda _, x, *, axis: [x])


def unsummed(x: Any, axis: str) -> Any:
    """Each device's own array in place of the sum over an axis, which the types of `jax.shard_map` would refuse."""
    return _OWN.bind(x, axis=axis)


def chosen(pattern: str, arrays: Any, change: Callable[[Any, str], Any]) -> Any:
    """A tree of arrays with a change of those whose name matches a pattern; at least one must."""
    flat = by_name(arrays)
    names = [name for name in flat if re.fullmatch(pattern, name)]
    assert names, f"{pattern} matches none of {', '.join(flat)}"
    return nested({**flat, **{name: change(flat[name], name) for name in names}})


def changed_parts(change: Callable[[Any, Any], tuple[Any, Any]]) -> Plant:
    """Change this device's part of loss and gradients, before they are summed over devices."""

    def plant(plan: Plan, sound: Implementation) -> Implementation:
        def differentiate(*inputs: Any) -> Any:
            return change(*sound.differentiate(*inputs))

        return replace(sound, differentiate=differentiate)

    return plant


def changed_gradients(pattern: str, change: Callable[[Any], Any]) -> Plant:
    """Change the gradients of some weights, before they are summed over devices."""
    return changed_parts(lambda loss, grads: (loss, chosen(pattern, grads, lambda dw, _: change(dw))))


def scaled_gradients(pattern: str, factor: float) -> Plant:
    """Multiply the gradients of some weights."""
    return changed_gradients(pattern, lambda dw: factor * dw)


def without_sum(pattern: str, axis: str) -> Plant:
    """Leave out the sum over `tensor` of the gradients of replicated weights: each device keeps its own part."""

    def plant(plan: Plan, sound: Implementation) -> Implementation:
        def reduce(loss: Any, grads: Any) -> Any:
            summed_loss, summed = reduced(sound, plan)(loss, grads)
            own = by_name(grads)
            return summed_loss, chosen(pattern, summed, lambda dw, name: unsummed(own[name].astype(dw.dtype), axis))

        return replace(sound, reduce=reduce)

    return plant


def without_replica_sum(pattern: str, axis: str) -> Plant:
    """Leave out the sum over replicas of some gradients: each replica keeps its own."""

    def plant(plan: Plan, sound: Implementation) -> Implementation:
        def sum_replicas(grads: Any) -> Any:
            own = by_name(grads)
            summed = all_reduce(grads, plan)
            return chosen(pattern, summed, lambda dw, name: unsummed(own[name].astype(dw.dtype), axis))

        return replace(sound, reduce=partial(sum_remaining, plan=plan, sum_replicas=sum_replicas))

    return plant


def reduced(sound: Implementation, plan: Plan) -> Callable[[Any, Any], Any]:
    """How a sound implementation sums loss and gradients."""
    return sound.reduce or partial(sum_remaining, plan=plan)


def changed_hooks(**functions: Callable[[Any], Any]) -> Plant:
    """Replace hooks, each by a function of the sound one."""

    def plant(plan: Plan, sound: Implementation) -> Implementation:
        hooks = {name: function(getattr(sound.hooks, name)) for name, function in functions.items()}
        return replace(sound, hooks=replace(sound.hooks, **hooks))

    return plant


def changed_model(change: Callable[[GPT, Callable[[Any], GPT], Any, Plan], None]) -> Plant:
    """Change the model as it is built of weights: (model, how it is built, weights, plan)."""

    def plant(plan: Plan, sound: Implementation) -> Implementation:
        def differentiate(build: Callable[[Any], GPT], *inputs: Any) -> Any:
            def changed(weights: Any) -> GPT:
                model = build(weights)
                change(model, build, weights, plan)
                return model

            return sound.differentiate(changed, *inputs)

        return replace(sound, differentiate=differentiate)

    return plant


def accumulated_as(add: Callable[[Any, Any, Any], Any]) -> Plant:
    """Accumulate gradients of microbatches by a rule: (sum so far, those of a microbatch, its index) -> sum.

    The loss is the sound one.
    """

    def plant(plan: Plan, sound: Implementation) -> Implementation:
        def differentiate(build: Any, weights: Any, tokens_BS: Any, divisor: Any) -> Any:
            def one(tokens_bS: Any) -> Any:
                return sound.differentiate(build, weights, tokens_bS, divisor)

            def step(total: Any, microbatch: Any) -> tuple[Any, None]:
                loss, grads = one(microbatch[1])
                return (jax.tree.map(jnp.add, total[0], loss), add(total[1], grads, microbatch[0])), None

            tokens_MbS = microbatched(tokens_BS, plan.train.microbatches)
            zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(one, tokens_MbS[0]))
            return lax.scan(step, zeros, (jnp.arange(len(tokens_MbS)), tokens_MbS))[0]

        return replace(sound, differentiate=differentiate, schedules_microbatches=True)

    return plant


def optimized_as(change: Callable[[Plan, Optimizer], Optimizer]) -> Plant:
    """Replace the optimizer."""

    def plant(plan: Plan, sound: Implementation) -> Implementation:
        return replace(sound, optimizer=lambda optimizer: change(plan, sound.optimizer(optimizer)))

    return plant


@contextmanager
def patched(target: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute while a part of the step is traced."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, value)
        yield


def patched_differentiation(sound: Implementation, target: Any, name: str, value: Any) -> Implementation:
    """Replace an attribute while the loss and the gradients are traced."""

    def differentiate(*inputs: Any) -> Any:
        with patched(target, name, value):
            return sound.differentiate(*inputs)

    return replace(sound, differentiate=differentiate)
