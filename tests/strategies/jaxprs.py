"""What is in a traced program: its loops and what they keep, its collectives, and what depends on what."""

import collections
import math

import jax
from jax.extend.core import Var

from strategies.costs.layer import kept_bytes
from strategies.mesh import all_axes
from strategies.pipelining.jaxpr import Loop

COLLECTIVES = {"psum", "pmax", "all_gather", "reduce_scatter", "psum_scatter", "all_to_all", "ppermute"}


def gradients_of(step):
    """The traced gradients of a step."""
    return jax.make_jaxpr(step.gradients)(step.state, step.batch).jaxpr


def inner(equation):
    """The programs inside an equation, and how often each runs."""
    times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else [value]:
            program = getattr(item, "jaxpr", item)
            if hasattr(program, "eqns"):
                yield program, times


def collective(equation):
    """The name and the axes of a collective; of other equations the axes are empty."""
    axes = equation.params.get("axes", equation.params.get("axis_name", ()))
    axes = tuple(axis for axis in (axes if isinstance(axes, tuple) else (axes,)) if axis in all_axes())
    name = equation.primitive.name.removesuffix("_invariant")
    return name, axes if name in COLLECTIVES else ()


def communicated(program, times=1, unit="elements"):
    """(primitive, axes) -> elements, or bytes, that a device hands to it; of a conditional, where it is the most."""
    total = collections.Counter()
    for equation in program.eqns:
        name, axes = collective(equation)
        if axes:
            shapes = [(math.prod(x.aval.shape), x.aval.dtype.itemsize) for x in equation.invars]
            total[name, axes] += times * sum(size * (itemsize if unit == "bytes" else 1) for size, itemsize in shapes)
        parts = [communicated(part, times * often, unit) for part, often in inner(equation)]
        if equation.primitive.name == "cond":
            parts = [max(parts, key=collections.Counter.total)]
        total.update(sum(parts, collections.Counter()))
    return total


def loops(program):
    """Every loop of a program, and of those inside."""
    for equation in program.eqns:
        if equation.primitive.name == "scan":
            yield equation
        for part, _ in inner(equation):
            yield from loops(part)


def loop_bodies(program):
    """The bodies of all outer loops of a program that do anything."""
    for equation in program.eqns:
        for part, _ in inner(equation):
            if equation.primitive.name != "scan":
                yield from loop_bodies(part)
            elif part.eqns:
                yield part


def kept_by_layers(program, plan):
    """Bytes that the loop over layers hands to that of the backward pass.

    Of a pipeline, whose passes go layer by layer, what each layer hands on by itself. A kernel may have loops of its
    own, which carry no residual stream [B,T,D].
    """
    layers = 1 if plan.staged else plan.layers
    forward, *_ = [
        loop
        for loop in loops(program)
        if Loop.of(loop).carry == 1 and loop.params["length"] == layers and len(loop.outvars[0].aval.shape) == 3
    ]
    assert not forward.params["reverse"]
    kept = forward.outvars[1 + len(plan.block.extras()) :]
    return sum(each.aval.dtype.itemsize * math.prod(each.aval.shape) for each in kept)


def assert_kept(program, plan):
    """Layers keep for the backward pass what the parts of the model state, to the byte."""
    layers = 1 if plan.staged else plan.layers
    assert kept_by_layers(program, plan) == layers * kept_bytes(plan.share)


def follow(program, tainted, source, sink):
    """Follow results through a program, also into the functions that it calls.

    Args:
        program: without loops.
        tainted: for each input, whether it is followed.
        source: name of a primitive whose results are followed.
        sink: name of a primitive.

    Returns:
        For each output, whether it depends on what is followed; how many sources there are; and how many sinks that
        take what is followed.
    """
    known, sources, sinks = dict(zip(program.invars, tainted, strict=True)), 0, 0
    for equation in program.eqns:
        name, inputs = equation.primitive.name, [isinstance(x, Var) and known.get(x, False) for x in equation.invars]
        part = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        outputs = [any(inputs) or name == source] * len(equation.outvars)
        if part is not None:
            outputs, more, deeper = follow(getattr(part, "jaxpr", part), inputs, source, sink)
            sources, sinks = sources + more, sinks + deeper
        sources += name == source
        sinks += name == sink and any(inputs)
        known.update(zip(equation.outvars, outputs, strict=True))
    return [isinstance(x, Var) and known.get(x, False) for x in program.outvars], sources, sinks
