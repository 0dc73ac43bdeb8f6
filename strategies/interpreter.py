"""Goes through the equations of a traced function ("Writing custom Jaxpr interpreters in JAX", JAX documentation)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jax.extend import core

Values = list[Any]


def bind(equation: core.JaxprEqn, inputs: Values) -> Values:
    """What an equation makes of its inputs, as it stands."""
    outputs = equation.primitive.bind(*inputs, **equation.params)
    return list(outputs) if equation.primitive.multiple_results else [outputs]


def evaluate(
    equations: Iterable[core.JaxprEqn],
    known: Mapping[core.Var, Any],
    outputs: Sequence[Any],
    apply: Callable[[core.JaxprEqn, Values], Sequence[Any]] = bind,
) -> Values:
    """The values of `outputs`, one equation after another; `apply` makes an equation's outputs of its inputs."""
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
    """All that a traced function returns."""
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))
    return evaluate(jaxpr.eqns, known, jaxpr.outvars, apply)
