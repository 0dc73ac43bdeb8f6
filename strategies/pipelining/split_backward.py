"""A backward pass in two: gradients of the inputs at once, gradients of the weights later.

Autodiff computes both at once. Here its equations are sorted by what needs them: those that lead to the gradients of
the inputs run first; those that lead only to gradients of weights can wait (Qi et al. 2023, "Zero Bubble Pipeline
Parallelism", section 2.1). The values that cross from the first half to the second are stored in between.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend import core

from strategies.pipelining.jaxpr import Loop, Values, bind, evaluate, run

VIEWS = {"broadcast_in_dim", "convert_element_type", "pvary", "reshape", "slice", "squeeze", "transpose"}
"""Operations that cost next to nothing: the second half repeats them and stores nothing."""
ELEMENTWISE = {"add", "div", "exp", "integer_pow", "max", "mul", "neg", "rsqrt", "select_n", "square", "sub", "tanh"}
"""Cheap operations: the second half repeats them if their operands are stored anyway."""


class SplitBackward:
    """The two halves of a backward pass.

    Args:
        backward: (known, dy) -> (gradients of weights, gradients of inputs). The second half gets `known`, the weights
            and residuals, again; it does not get `dy`.
        known, dy: such arguments, or tracers of them.
    """

    def __init__(self, backward: Callable[[Any, Any], tuple[Any, Any]], known: Any, dy: Any) -> None:
        shapes = jax.eval_shape(backward, known, dy)
        self._structures = [jax.tree.structure(part) for part in shapes]
        closed = jax.make_jaxpr(lambda *values: flat(backward, values, jax.tree.structure((known, dy))))(
            *jax.tree.leaves((known, dy))
        )
        self._consts, self._jaxpr = closed.consts, closed.jaxpr
        weights, inputs = self._jaxpr.outvars[: (n := self._structures[0].num_leaves)], self._jaxpr.outvars[n:]
        self._known = self._jaxpr.invars[: jax.tree.structure(known).num_leaves]
        self._first = list(needed(self._jaxpr.eqns, inputs))
        again = {*self._known, *self._jaxpr.constvars}
        done = set()
        for equation in self._first:
            operands = {var for var in equation.invars if isinstance(var, core.Var)}
            if equation.primitive.name in VIEWS | ELEMENTWISE and operands <= again:
                again.update(equation.outvars)
            elif equation.primitive.name not in VIEWS:
                done.add(id(equation))
        self._second = list(needed((e for e in self._jaxpr.eqns if id(e) not in done), weights))
        made = {var for equation in self._second for var in equation.outvars}
        there = {*made, *self._known, *self._jaxpr.constvars}
        used = [var for equation in self._second for var in equation.invars] + list(weights)
        self._between = list(dict.fromkeys(v for v in used if isinstance(v, core.Var) and v not in there))
        self._weights, self._inputs = weights, inputs

    def first(self, known: Any, dy: Any) -> tuple[Any, Values]:
        """Gradients of the inputs, and the values that the second half needs of the first."""
        values = self._start(known) | dict(
            zip(self._jaxpr.invars[len(self._known) :], jax.tree.leaves(dy), strict=True)
        )
        outputs = evaluate(self._first, values, [*self._inputs, *self._between])
        return jax.tree.unflatten(self._structures[1], outputs[: len(self._inputs)]), outputs[len(self._inputs) :]

    def second(self, known: Any, between: Values) -> Any:
        """Gradients of the weights."""
        values = self._start(known) | dict(zip(self._between, between, strict=True))
        return jax.tree.unflatten(self._structures[0], evaluate(self._second, values, self._weights))

    def _start(self, known: Any) -> dict[core.Var, Any]:
        leaves = jax.tree.leaves(known)
        return dict(zip([*self._jaxpr.constvars, *self._known], [*self._consts, *leaves], strict=True))


def needed(equations: Iterable[core.JaxprEqn], outputs: Iterable[Any]) -> Iterator[core.JaxprEqn]:
    """The equations that lead to these outputs, in order."""
    wanted, found = set(filter(lambda v: isinstance(v, core.Var), outputs)), []
    for equation in reversed(list(equations)):
        if wanted.intersection(equation.outvars):
            found.append(equation)
            wanted.update(v for v in equation.invars if isinstance(v, core.Var))
    return reversed(found)


def flat(function: Callable[..., Any], leaves: Sequence[Any], structure: Any) -> Values:
    """Evaluate a function with all its calls inlined and its loops unrolled, so that its equations can be sorted."""
    closed = jax.make_jaxpr(lambda *leaves: function(*jax.tree.unflatten(structure, leaves)))(*leaves)
    return run(closed.jaxpr, closed.consts, leaves, _outputs)


def _outputs(equation: core.JaxprEqn, inputs: Values) -> Values:
    params = equation.params
    if equation.primitive.name == "scan":
        return _unrolled(equation, inputs) if params["length"] else bind(equation, inputs)
    called = params.get("call_jaxpr", params.get("jaxpr"))
    if called is None or equation.primitive.name == "shard_map":  # which holds a kernel, without types
        return bind(equation, inputs)
    # A jaxpr is closed, with its constants, or has none.
    return run(getattr(called, "jaxpr", called), getattr(called, "consts", ()), inputs, _outputs)


def _unrolled(equation: core.JaxprEqn, inputs: Values) -> Values:
    """A `lax.scan`, unrolled."""
    params, (body, body_consts, consts, carry) = equation.params, Loop.of(equation)
    fixed, state, columns = inputs[:consts], inputs[consts : consts + carry], inputs[consts + carry :]
    rows: dict[int, Values] = {}
    for i in reversed(range(params["length"])) if params["reverse"] else range(params["length"]):
        row = [*fixed, *state, *(column[i] for column in columns)]
        outputs = run(body, body_consts, row, _outputs)
        state, rows[i] = outputs[:carry], outputs[carry:]
    stacked = [lax.concatenate([rows[i][k][None] for i in range(len(rows))], 0) for k in range(len(rows[0]))]
    return [*state, *stacked]
