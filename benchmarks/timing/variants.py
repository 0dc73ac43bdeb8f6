"""A step without its communication: what it takes then, against what it takes, says what communication costs it.

A function is traced, differentiated as it is, and evaluated again with something else in the place of every collective
("Writing custom Jaxpr interpreters in JAX", JAX documentation). What it computes is wrong then; what it does besides
communicating, and the shapes and dtypes of all arrays, are as before.
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
class Silence:
    """What stands in for communication.

    Attributes:
        waits: devices still wait for each other wherever they did: they exchange one element in the place of an array.
        side_by_side: all stages of a pipeline work on their microbatches at the same ticks, as if none had to wait for
            the first results of another.
    """

    waits: bool = False
    side_by_side: bool = False

    def __call__(self, function: Function) -> Function:
        """The function without its communication.

        Raises:
            ValueError: it has a collective that nothing is known to stand in for; names it. Or it is partitioned by the
                compiler.
        """

        def silent(*inputs: Any) -> Any:
            closed, shapes = jax.make_jaxpr(function, return_shape=True)(*inputs)
            outputs = self._evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(inputs))
            return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

        return silent

    def _evaluate(self, jaxpr: core.Jaxpr, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """What is left of a program, one equation after another."""
        return run(jaxpr, consts, inputs, self._outputs)

    def _outputs(self, equation: core.JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
        """What an equation makes of its inputs: another thing than it says, if it communicates."""
        name, params = equation.primitive.name, equation.params
        called = params["jaxpr"] if name == "jit" else params.get("call_jaxpr")
        if called:
            return self._evaluate(called.jaxpr, called.consts, inputs)
        if name == "shard_map":
            specs = {key: params[key] for key in ("mesh", "in_specs", "out_specs")}
            body = lambda *shards: tuple(self._evaluate(params["jaxpr"], (), shards))  # noqa: E731
            return jax.shard_map(body, **specs, check_vma=False)(*inputs)  # sums that are none do not agree
        if name in STAND_INS:
            return [self._stand_in(name, x, params) for x in inputs]
        if name == "axis_index" and params["axis_name"] == "pipeline" and self.side_by_side:
            return [lax.optimization_barrier(jnp.int32(0))]  # not known to the compiler, or it would do less
        if name == "sharding_constraint":
            raise ValueError("collectives that the compiler puts in are not there to be left out")
        if name != "axis_index" and mesh_axes(params):
            raise ValueError(f"nothing is known to stand in for the collective {name}")
        # Of a conditional, or a loop, the scope that it stands in says how often it is taken (see compiled.py).
        with jax.named_scope(str(equation.source_info.name_stack) or name):
            outputs = equation.primitive.bind(*inputs, **{key: self._silent(param) for key, param in params.items()})
        return outputs if equation.primitive.multiple_results else [outputs]

    def _stand_in(self, name: str, x: Array, params: dict[str, Any]) -> Array:
        """An array as the collective leaves it, made of what is here; the compiler sees through neither end."""
        if name == "pvary":
            return x
        x = lax.optimization_barrier(x)
        y = STAND_INS[name](x, params)
        if self.waits:
            element = x[(0,) * x.ndim]
            axes = mesh_axes(params)
            other = lax.ppermute(element, axes, params["perm"]) if name == "ppermute" else lax.psum(element, axes)
            y = y.at[(0,) * y.ndim].set(other)
        return lax.optimization_barrier(y)

    def _silent(self, param: Any) -> Any:
        """A parameter of an equation; where it is a program, that without its communication."""
        if isinstance(param, core.ClosedJaxpr):
            shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in param.in_avals]
            return jax.make_jaxpr(lambda *inputs: self._evaluate(param.jaxpr, param.consts, inputs))(*shapes)
        if isinstance(param, core.Jaxpr):
            return self._silent(core.ClosedJaxpr(param, ())).jaxpr
        if isinstance(param, tuple) and all(isinstance(part, core.ClosedJaxpr) for part in param):  # branches
            return tuple(map(self._silent, param))
        return param


def mesh_axes(params: dict[str, Any]) -> tuple[str, ...]:
    """The mesh axes that the parameters of an equation name; there are some in each collective's."""
    axes = params.get("axis_name", params.get("axes"))
    return tuple(axis for axis in (axes if isinstance(axes, tuple) else (axes,)) if isinstance(axis, str))


def _gathered(x: Array, params: dict[str, Any]) -> Array:
    """This shard in the place of every shard."""
    copies, dim = [x] * params["axis_size"], params["all_gather_dimension"]
    return jnp.concatenate(copies, dim) if params["tiled"] else jnp.stack(copies, dim)


def _scattered(x: Array, params: dict[str, Any]) -> Array:
    """The first part of what is to be summed and split."""
    dim, parts = params["scatter_dimension"], params["axis_size"]
    if not params["tiled"]:
        return lax.index_in_dim(x, 0, dim, keepdims=False)
    return lax.slice_in_dim(x, 0, x.shape[dim] // parts, axis=dim)


def _exchanged(x: Array, params: dict[str, Any]) -> Array:
    """Its own parts in the places of the others' parts."""
    split, concat = params["split_axis"], params["concat_axis"]
    if not params["tiled"]:
        return jnp.moveaxis(x, split, concat)
    return jnp.concatenate(jnp.split(x, lax.axis_size(params["axis_name"]), split), concat)


def _as_it_is(x: Array, params: dict[str, Any]) -> Array:
    return x


STAND_INS: dict[str, Callable[[Array, dict[str, Any]], Array]] = {
    **dict.fromkeys(("all_gather", "all_gather_invariant"), _gathered),
    "reduce_scatter": _scattered,
    "all_to_all": _exchanged,
    **dict.fromkeys(("psum", "psum_invariant", "pmax", "pmin", "ppermute", "pvary"), _as_it_is),
}
"""What of a shard here is as large as what the collective would make of all."""
