"""Mixtures of experts under explicit sharding (explicit.py): the hand-written exchange, in small `jax.shard_map`s.

Each device routes its tokens, exchanges them and runs its experts as in expert.py, and sends the same bytes. Outside
of these maps a sum over a device's tokens is a row of an array [n, ...], for n devices that split the batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from strategies.core.placement import Axes
from strategies.model.gpt import GPT, Collect
from strategies.model.hooks import Hooks, LayerInfo
from strategies.model.weights import Weights, spec_of
from strategies.step import Tokens, forward


def mixture_hooks(manual: Hooks, batch: Axes) -> Mapping[str, Any]:
    """The hooks `mixture` and `mixture_losses` of whole arrays, which `batch` splits; `manual` are those of devices."""

    def mixture(experts: Any, x_BTD: Array, info: LayerInfo) -> Any:
        def local(experts: Any, x_BTD: Array) -> Any:
            y_BTD, sums = experts.mixed(x_BTD, replace(info, hooks=manual))
            return y_BTD, jax.tree.map(lambda x: x[None], sums)

        return on_devices(local, experts, x_BTD, P(batch or None))

    def losses(experts: Any, sums: Any, _: Hooks) -> Any:
        def local(experts: Any, sums: Any) -> Any:
            return lax.pcast(experts.losses(jax.tree.map(lambda x: x[0], sums), manual), batch, to="unreduced")

        return on_devices(local, experts, sums, P(unreduced=frozenset(batch)))

    return {"mixture": mixture, "mixture_losses": losses}


def on_devices(function: Callable[..., Any], module: nnx.Module, arrays: Any, out_specs: Any) -> Any:
    """Run a function of a module and arrays on each device, with the parts that it holds by their types."""
    graph, state = nnx.split(module)
    weights, structure = jax.tree.flatten(state)

    def local(weights: list[Array], arrays: Any) -> Any:
        return function(nnx.merge(graph, jax.tree.unflatten(structure, map(varying, weights))), arrays)

    specs = jax.tree.map(spec_of, (weights, arrays))
    return jax.shard_map(local, in_specs=specs, out_specs=out_specs)(weights, arrays)


def varying(weight: Array) -> Array:
    """Inside `jax.shard_map`: a `reduced` weight, whose gradient stays on each device."""
    return lax.pcast(weight, tuple(jax.typeof(weight).manual_axis_type.reduced), to="varying")


def forward_of_devices(
    build: Callable[[Weights], GPT], weights: Weights, tokens_BS: Tokens, collect: Collect | None
) -> tuple[Array, Any]:
    """`Implementation.forward`: what is collected has sums over all devices."""

    def collect_totals(block: Any, sums: Any) -> Any:
        assert collect
        return collect(block, jax.tree.map(lambda x: x.sum(0), sums))

    return forward(build(weights), tokens_BS, collect and collect_totals)
