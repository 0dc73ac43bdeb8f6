"""Calls of Pallas kernels without vma types (varying manual axes: the mesh axes over which an array varies)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array


def call_without_vma(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function whose arrays have no vma types. Its results vary over the mesh axes of all its arguments.

    `jax.shard_map` requires vma types of a Pallas kernel's outputs, which our kernels do not state. Autodiff must not
    see the types change, because it would sum gradients over the axes; so both halves of a custom derivative call this.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return function(*arguments)
    axes = frozenset().union(*map(_varying, jax.tree.leaves(arguments)))

    def run(*arguments: Any) -> Any:
        # Reshaped arrays have no vma type there; XLA removes these reshapes.
        return function(*jax.tree.map(lambda x: jnp.squeeze(x[None], 0), arguments))

    results = jax.shard_map(run, in_specs=P(), out_specs=P(), check_vma=False)(*arguments)
    return jax.tree.map(lambda x: jax.lax.pcast(x, tuple(axes - _varying(x)), to="varying"), results)


def _varying(x: Array) -> frozenset[str]:
    return jax.typeof(x).manual_axis_type.varying
