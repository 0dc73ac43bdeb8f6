"""Initial states that expose wrong gradients.

A new model has norm scales of one and biases of zero. A strategy that omits the sum of a bias, or applies a scale
twice, computes the same results with these. So the check adds noise to every weight whose elements start out equal.
"""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, PRNGKeyArray

from strategies.checking.positions import noise, places_on_device
from strategies.checkpoints.canonical import Leaf, leaves
from strategies.model.gpt import weight_specs
from strategies.model.weights import WeightSpec
from strategies.step import State, Step

NOISE = 0.1
"""Largest change of a norm scale or a bias."""


def initial_state(step: Step) -> Any:
    """The jitted function key -> initial `State` of the step, with noise. Sharded from the start."""
    return jax.jit(_with_noise(step), out_shardings=_shardings(step.state))


def initial_weights(step: Step) -> Any:
    """The jitted function key -> that state's weights that the optimizer updates (`trained_weights`)."""
    arrays, state = trained_weights(step, step.state), _with_noise(step)
    return jax.jit(
        lambda key: [*trained_weights(step, state(key)).values()], out_shardings=_shardings([*arrays.values()])
    )


def trained_weights(step: Step, state: State) -> dict[str, Any]:
    """A state's weights by name, as the optimizer updates them: master weights if there are any."""
    return {
        leaf.name: array for leaf, array in zip(leaves(step), jax.tree.leaves(state), strict=True) if leaf.is_weight
    }


def _with_noise(step: Step) -> Callable[[PRNGKeyArray], State]:
    """The function key -> initial state with noise."""
    specs, rate = weight_specs(step.config), step.config.router_bias_rate

    def changed(leaf: Leaf, array: Array) -> Array:
        spec = specs.get(leaf.name.removeprefix("params/"))
        if not leaf.is_weight or spec is None or spec.deviation:
            return array
        return _add_noise(step, leaf, array, _size(spec, rate))

    def init(key: PRNGKeyArray) -> State:
        # Not the jitted function, because JAX allows compiler options only at the outermost jit.
        state = getattr(step.init, "__wrapped__", step.init)(key)
        arrays = [changed(*each) for each in zip(leaves(step), jax.tree.leaves(state), strict=True)]
        return jax.tree.unflatten(jax.tree.structure(state), arrays)

    return init


def _size(spec: WeightSpec, router_bias_rate: float | None) -> float:
    """Largest noise of a weight. A router bias gets the size of one update, because it decides the routing."""
    return NOISE if spec.trained or router_bias_rate is None else router_bias_rate


def _add_noise(step: Step, leaf: Leaf, array: Array, size: float) -> Array:
    def add(shard: Array) -> Array:
        return (shard + size * noise(leaf, places_on_device(leaf, shard.shape))).astype(shard.dtype)

    spec = leaf.stored.sharding.spec
    return jax.shard_map(add, mesh=step.mesh, in_specs=spec, out_specs=spec, check_vma=False)(array)


def _shardings(arrays: Any) -> Any:
    return jax.tree.map(lambda array: array.sharding, arrays)
