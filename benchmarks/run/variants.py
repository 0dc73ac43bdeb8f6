"""A step without its communication, to measure what communication costs.

A function is traced and differentiated as usual, and its jaxpr is then evaluated with a local replacement for every
collective ("Writing custom Jaxpr interpreters in JAX", JAX documentation). The results are wrong, but all other work
and the shapes and dtypes of all arrays stay the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jaxtyping import Array

from strategies.pipelining.jaxpr import run

Function = Callable[..., Any]


@dataclass(frozen=True)
class WithoutCommunication:
    """Replaces the collectives of a function.

    If it `synchronizes`, devices still wait for each other at each collective: they exchange one element instead of an
    array. With `aligned_stages`, all stages of a pipeline work on their microbatches at the same ticks, as if none had
    to wait for the first results of another.
    """

    synchronizes: bool = False
    aligned_stages: bool = False

    def __call__(self, function: Function) -> Function:
        """The function without its communication."""

        def replaced(*inputs: Any) -> Any:
            closed, shapes = jax.make_jaxpr(function, return_shape=True)(*inputs)
            outputs = self._evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(inputs))
            return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

        return replaced

    def _evaluate(self, jaxpr: core.Jaxpr, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """Evaluate a jaxpr, equation by equation, without communication."""
        return run(jaxpr, consts, inputs, self._outputs)

    def _outputs(self, equation: core.JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
        """Outputs of an equation; those of its replacement, if it communicates."""
        name, params = equation.primitive.name, equation.params
        called = params["jaxpr"] if name == "jit" else params.get("call_jaxpr")
        if called:
            return self._evaluate(called.jaxpr, called.consts, inputs)
        if name == "shard_map":
            specs = {key: params[key] for key in ("mesh", "in_specs", "out_specs")}
            body = lambda *shards: tuple(self._evaluate(params["jaxpr"], (), shards))  # noqa: E731
            # Without the reductions, values that count as replicated differ.
            return jax.shard_map(body, **specs, check_vma=False)(*inputs)
        if name in REPLACEMENTS:
            return [self._replacement(name, x, params) for x in inputs]
        if name == "axis_index" and params["axis_name"] == "pipeline" and self.aligned_stages:
            # Hidden from the compiler, which would otherwise simplify the program.
            return [lax.optimization_barrier(jnp.int32(0))]
        if name in ("sharding_constraint", "reshard"):
            raise ValueError("collectives that follow from shardings cannot be left out")
        if name != "axis_index" and mesh_axes(params):
            raise ValueError(f"there is no replacement for the collective {name}")
        # The scopes of conditionals and loops are kept: compiled.py reads from them how often each branch is taken.
        with jax.named_scope(str(equation.source_info.name_stack) or name):
            outputs = equation.primitive.bind(*inputs, **{key: self._transform(param) for key, param in params.items()})
        return outputs if equation.primitive.multiple_results else [outputs]

    def _replacement(self, name: str, x: Array, params: dict[str, Any]) -> Array:
        """The collective's result made of local data. The barriers keep the compiler from simplifying across it."""
        if name == "pvary":
            return x
        x = lax.optimization_barrier(x)
        y = REPLACEMENTS[name](x, params)
        if self.synchronizes:
            element = x[(0,) * x.ndim]
            axes = mesh_axes(params)
            other = lax.ppermute(element, axes, params["perm"]) if name == "ppermute" else lax.psum(element, axes)
            y = y.at[(0,) * y.ndim].set(other)
        return lax.optimization_barrier(y)

    def _transform(self, param: Any) -> Any:
        """A parameter of an equation; programs among the parameters are transformed too."""
        if isinstance(param, core.ClosedJaxpr):
            shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in param.in_avals]
            return jax.make_jaxpr(lambda *inputs: self._evaluate(param.jaxpr, param.consts, inputs))(*shapes)
        if isinstance(param, core.Jaxpr):
            return self._transform(core.ClosedJaxpr(param, ())).jaxpr
        if isinstance(param, tuple) and all(isinstance(part, core.ClosedJaxpr) for part in param):  # branches
            return tuple(map(self._transform, param))
        return param


def mesh_axes(params: dict[str, Any]) -> tuple[str, ...]:
    """Mesh axes named in an equation's parameters. Every collective names some."""
    axes = params.get("axis_name", params.get("axes"))
    return tuple(axis for axis in (axes if isinstance(axes, tuple) else (axes,)) if isinstance(axis, str))


def _gathered(x: Array, params: dict[str, Any]) -> Array:
    """All-gather: this device's shard in the place of every shard."""
    copies, dim = [x] * params["axis_size"], params["all_gather_dimension"]
    return jnp.concatenate(copies, dim) if params["tiled"] else jnp.stack(copies, dim)


def _scattered(x: Array, params: dict[str, Any]) -> Array:
    """Reduce-scatter: the first part of this device's array."""
    dim, parts = params["scatter_dimension"], params["axis_size"]
    if not params["tiled"]:
        return lax.index_in_dim(x, 0, dim, keepdims=False)
    return lax.slice_in_dim(x, 0, x.shape[dim] // parts, axis=dim)


def _exchanged(x: Array, params: dict[str, Any]) -> Array:
    """All-to-all: this device's own parts in the places of the other devices' parts."""
    split, concat = params["split_axis"], params["concat_axis"]
    if not params["tiled"]:
        return jnp.moveaxis(x, split, concat)
    return jnp.concatenate(jnp.split(x, lax.axis_size(params["axis_name"]), split), concat)


def _unchanged(x: Array, params: dict[str, Any]) -> Array:
    """Collectives that preserve shapes: the operand itself."""
    return x


REPLACEMENTS: dict[str, Callable[[Array, dict[str, Any]], Array]] = {
    **dict.fromkeys(("all_gather", "all_gather_invariant"), _gathered),
    "reduce_scatter": _scattered,
    "all_to_all": _exchanged,
    **dict.fromkeys(("psum", "psum_invariant", "pmax", "pmin", "ppermute", "pvary"), _unchanged),
}
"""Local functions with the output shape of each collective, by primitive."""
