"""Interpreter of the equations of a traced function ("Writing custom Jaxpr interpreters in JAX", JAX documentation)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jax.extend import core

Values = list[Any]


def bind(equation: core.JaxprEqn, inputs: Values) -> Values:
    """Evaluate an equation unchanged."""
    outputs = equation.primitive.bind(*inputs, **equation.primitive.get_bind_params(equation.params))
    return list(outputs) if equation.primitive.multiple_results else [outputs]


def evaluate(
    equations: Iterable[core.JaxprEqn],
    known: Mapping[core.Var, Any],
    outputs: Sequence[Any],
    apply: Callable[[core.JaxprEqn, Values], Sequence[Any]] = bind,
) -> Values:
    """Evaluate equations with `apply` from `known` constants and inputs, and return the values of `outputs`."""
    values = dict(known)

    def value_of(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for equation in equations:
        results = apply(equation, [value_of(atom) for atom in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
    return [value_of(atom) for atom in outputs]


def run(
    jaxpr: core.Jaxpr,
    consts: Sequence[Any],
    inputs: Sequence[Any],
    apply: Callable[[core.JaxprEqn, Values], Sequence[Any]] = bind,
) -> Values:
    """Evaluate a jaxpr with `apply`, and return its outputs."""
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))
    return evaluate(jaxpr.eqns, known, jaxpr.outvars, apply)


class Loop(NamedTuple):
    """A `lax.scan`, whose body takes `consts` constant inputs, `carry` carried ones, and a slice of every other input.

    JAX versions name these numbers differently, so they are read from shapes.
    """

    body: core.Jaxpr
    body_consts: Sequence[Any]
    consts: int
    carry: int

    @classmethod
    def of(cls, equation: core.JaxprEqn) -> "Loop":
        """Read the equation of a `lax.scan`."""
        program = equation.params["jaxpr"]  # closed, or without constants
        body = getattr(program, "jaxpr", program)
        columns, stacked = (
            sum(_ndim(whole) > _ndim(row) for whole, row in zip(wholes, rows, strict=True))
            for wholes, rows in ((equation.invars, body.invars), (equation.outvars, body.outvars))
        )
        carry = len(body.outvars) - stacked
        return cls(body, getattr(program, "consts", ()), len(body.invars) - columns - carry, carry)


def _ndim(atom: Any) -> int:
    return len(atom.aval.shape)
