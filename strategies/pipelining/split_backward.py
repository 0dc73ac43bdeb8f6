"""A split backward pass: input gradients first, matmuls for weight gradients later.

Autodiff computes both at once. Here its equations are sorted by use: those that lead to input gradients run first;
matmuls that lead only to weight gradients can wait (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 2.1).
Gradients of biases and norms need no matmul and also run first; otherwise their operands would have to wait. Values
that the second half needs from the first are stored in between, if possible in memory of consumed residuals (`reuse`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from strategies.backends.device_mesh import mark_missing
from strategies.pipelining.jaxpr import Loop, Values, bind, evaluate, run

VIEWS = {"broadcast_in_dim", "convert_element_type", "pvary", "reshape", "slice", "split", "squeeze", "transpose"}
"""Almost free operations: the second half repeats them, unless their result is smaller than their operand."""
ELEMENTWISE = {
    "add",
    "div",
    "exp",
    "integer_pow",
    "logistic",
    "max",
    "mul",
    "neg",
    "rsqrt",
    "select_n",
    "square",
    "sub",
    "tanh",
}
"""Cheap operations: the second half repeats them if their operands are stored anyway, or are small."""
SMALL = 8
"""An operand is small if it has at most an eighth of the result's bytes: a vector, or one number per token."""


class SplitBackward:
    """The two halves of a backward pass.

    Args:
        backward: (known, dy) -> (weight gradients, input gradients). The second half gets `known`, the weights and
            residuals, again; it does not get `dy`.
        known, dy: such arguments, or tracers of them.

    Attributes:
        between: types of the values that the second half needs from the first.
        gathered: for each of these, whether it is the result of an all-gather.
        reread: for each leaf of `known`, whether the second half reads it.
    """

    def __init__(self, backward: Callable[[Any, Any], tuple[Any, Any]], known: Any, dy: Any) -> None:
        shapes = jax.eval_shape(backward, known, dy)
        self._structures = [jax.tree.structure(part) for part in shapes]
        closed = jax.make_jaxpr(lambda *values: flat(backward, values, jax.tree.structure((known, dy))))(
            *jax.tree.leaves((known, dy))
        )
        self._consts, self._jaxpr = closed.consts, closed.jaxpr
        self._known = self._jaxpr.invars[: jax.tree.structure(known).num_leaves]
        weights, inputs = self._jaxpr.outvars[: (n := self._structures[0].num_leaves)], self._jaxpr.outvars[n:]
        later = set(from_matmuls(self._jaxpr.eqns, inputs))
        self._is_later = [w in later for w in weights]
        self._later = [w for w in weights if w in later]
        self._at_once = [*inputs, *(w for w in weights if w not in later)]
        again, done = {*self._known, *self._jaxpr.constvars}, []
        for equation in (e for e in self._jaxpr.eqns if later.isdisjoint(e.outvars)):
            name, made = equation.primitive.name, sum(map(_bytes, equation.outvars))
            missing = sum(_bytes(var) for var in equation.invars if isinstance(var, core.Var) and var not in again)
            if name in VIEWS | ELEMENTWISE and SMALL * missing <= made:
                again.update(equation.outvars)
            elif name not in VIEWS or made < missing:
                done.append(equation)
        ids = set(map(id, done))
        self._second = list(needed((e for e in self._jaxpr.eqns if id(e) not in ids), self._later))
        used = dict.fromkeys(v for e in self._second for v in e.invars if isinstance(v, core.Var))
        there = {*(v for e in self._second for v in e.outvars), *self._known, *self._jaxpr.constvars}
        self._between = [v for v in used if v not in there]
        self._first = list(needed(self._jaxpr.eqns, [*self._at_once, *self._between]))
        self.between: list[Any] = [v.aval for v in self._between]
        gathers = (e for e in self._first if e.primitive.name.startswith("all_gather"))
        self.gathered = [*map({v for e in gathers for v in e.outvars}.__contains__, self._between)]
        self.reread = [v in used for v in self._known]

    def first(self, known: Any, dy: Any) -> tuple[Any, Any, Values]:
        """Input gradients; weight gradients, None for later ones; and the values `between`."""
        values = self._start(known) | dict(
            zip(self._jaxpr.invars[len(self._known) :], jax.tree.leaves(dy), strict=True)
        )
        outputs = evaluate(self._first, values, [*self._at_once, *self._between])
        inputs, weights = self._structures[1].num_leaves, len(self._at_once)
        gradients = self._of_weights(outputs[inputs:weights], later=False)
        return jax.tree.unflatten(self._structures[1], outputs[:inputs]), gradients, outputs[weights:]

    def second(self, known: Any, between: Values) -> Any:
        """Weight gradients, None for those that `first` returned."""
        values = self._start(known) | dict(zip(self._between, between, strict=True))
        return self._of_weights(evaluate(self._second, values, self._later), later=True)

    def _of_weights(self, gradients: Values, *, later: bool) -> Any:
        following = iter(gradients)
        each = [next(following) if is_later == later else None for is_later in self._is_later]
        return jax.tree.unflatten(self._structures[0], each)

    def _start(self, known: Any) -> dict[core.Var, Any]:
        leaves = jax.tree.leaves(known)
        return dict(zip([*self._jaxpr.constvars, *self._known], [*self._consts, *leaves], strict=True))


def from_matmuls(equations: Sequence[core.JaxprEqn], inputs: Sequence[core.Var]) -> Iterator[core.Var]:
    """Results of matmuls that input gradients do not need, and everything computed from them."""
    ids, found = {id(equation) for equation in needed(equations, inputs)}, set()
    for equation in equations:
        is_matmul = equation.primitive.name == "dot_general" and id(equation) not in ids
        if is_matmul or not found.isdisjoint(v for v in equation.invars if isinstance(v, core.Var)):
            found.update(equation.outvars)
            yield from equation.outvars


def needed(equations: Iterable[core.JaxprEqn], outputs: Iterable[Any]) -> Iterator[core.JaxprEqn]:
    """The equations that lead to these outputs, in order."""
    wanted, found = set(filter(lambda v: isinstance(v, core.Var), outputs)), []
    for equation in reversed(list(equations)):
        if wanted.intersection(equation.outvars):
            found.append(equation)
            wanted.update(v for v in equation.invars if isinstance(v, core.Var))
    return reversed(found)


def flat(function: Callable[..., Any], leaves: Sequence[Any], structure: Any) -> Values:
    """Evaluate a function with all calls inlined and loops unrolled, so that its equations can be sorted."""
    closed = jax.make_jaxpr(lambda *leaves: function(*jax.tree.unflatten(structure, leaves)))(*leaves)
    return run(closed.jaxpr, closed.consts, leaves, _outputs)


def _outputs(equation: core.JaxprEqn, inputs: Values) -> Values:
    params = equation.params
    if (
        equation.primitive.name == "optimization_barrier"
    ):  # guards against merging with the forward pass, which is not here
        return inputs
    if equation.primitive.name == "pvary":  # applied to an inlined constant, which already varies
        return [mark_missing(each, params["axes"]) for each in inputs]
    if equation.primitive.name == "scan":
        return _unrolled(equation, inputs) if params["length"] else bind(equation, inputs)
    called = params.get("call_jaxpr", params.get("jaxpr"))
    if called is None or equation.primitive.name == "shard_map":  # it holds a kernel, without types
        return bind(equation, _as_wide(equation, inputs))
    # A jaxpr is closed, or has no constants.
    return run(getattr(called, "jaxpr", called), getattr(called, "consts", ()), inputs, _outputs)


def _as_wide(equation: core.JaxprEqn, inputs: Values) -> Values:
    """Make inputs vary over the same mesh axes if one varies over other axes than when the equation was traced.

    A constant that was kept with the residuals does: it varies over all axes of its slot.
    """
    traced: list[Any] = [atom.aval for atom in equation.invars]
    axes = [jax.typeof(each).manual_axis_type.varying for each in inputs]
    if axes == [each.manual_axis_type.varying for each in traced]:
        return inputs
    return [mark_missing(each, sorted(frozenset().union(*axes))) for each in inputs]


def _bytes(var: core.Var) -> int:
    array: Any = var.aval
    return array.size * array.dtype.itemsize


def _unrolled(equation: core.JaxprEqn, inputs: Values) -> Values:
    params, (body, body_consts, consts, carry) = equation.params, Loop.of(equation)
    fixed, state, columns = inputs[:consts], inputs[consts : consts + carry], inputs[consts + carry :]
    rows: dict[int, Values] = {}
    for i in reversed(range(params["length"])) if params["reverse"] else range(params["length"]):
        row = [*fixed, *state, *(column[i] for column in columns)]
        outputs = run(body, body_consts, row, _outputs)
        state, rows[i] = outputs[:carry], outputs[carry:]
    stacked = [lax.concatenate([rows[i][k][None] for i in range(len(rows))], 0) for k in range(len(rows[0]))]
    return [*state, *stacked]


def reuse(free: Mapping[int, Any], values: Sequence[Any]) -> list[int | None]:
    """For each value the key of the smallest free array that can hold it; None without one.

    An array can hold a value with the same number of elements if its dtype is the same or a wider float, and both vary
    over the same mesh axes. Arrays and values are types (`jax.typeof`). A value of None is skipped.

    >>> import jax
    >>> x, wide, hidden = (jax.typeof(jnp.zeros(*each)) for each in (((2, 4), "bfloat16"), ((2, 4),), ((2, 16),)))
    >>> reuse({0: wide, 3: x, 4: hidden}, [x, x, x])
    [3, 0, None]
    """
    left = dict(free)
    found: list[int | None] = []
    for value in values:
        able = [key for key, array in left.items() if value is not None and _can_hold(array, value)]
        found.append(min(able, key=lambda key: left[key].dtype.itemsize, default=None))
        left = {key: array for key, array in left.items() if key != found[-1]}
    return found


def _can_hold(array: Any, value: Any) -> bool:
    wide_enough = jnp.promote_types(array.dtype, value.dtype) == array.dtype
    exact = wide_enough and jnp.issubdtype(array.dtype, jnp.inexact) == jnp.issubdtype(value.dtype, jnp.inexact)
    return exact and array.size == value.size and array.manual_axis_type == value.manual_axis_type
