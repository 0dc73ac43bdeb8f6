"""Layers keep for the backward pass what the parts of the model state."""

import dataclasses
import math

import jax
import pytest

from strategies.core.sizes import BYTES
from strategies.pipelining.jaxpr import Loop
from tests.strategies.costs.steps import (
    FIXED,
    LLAMA,
    LONG,
    ODD,
    QWEN3,
    WIDE,
    cost,
    step,
)
from tests.strategies.sampling import nightly


def loops(program):
    """Every loop of a jaxpr, and of those inside."""
    for equation in program.eqns:
        if equation.primitive.name == "scan":
            yield equation
        for value in equation.params.values():
            for item in value if isinstance(value, tuple | list) else [value]:
                inner = getattr(item, "jaxpr", item)
                if hasattr(inner, "eqns"):
                    yield from loops(inner)


REMATS = "none", "dots", "full"
CASES = [
    ("fsdp", "fsdp=4", ODD, {"microbatches": 2}),
    ("tensor", "tensor=2", ODD, {"sequence_parallel": False}),
    ("context", "context=4", ODD, {"context_attention": "ulysses"}),
    ("three_d", "data=2,pipeline=2,tensor=2", ODD, {"microbatches": 4}),
    ("three_d", "fsdp=2,pipeline=2,context=2", ODD, {"microbatches": 4}),
    # With a window a ring keeps the keys and values of other devices, too.
    ("context", "context=4", LONG, {}),
    ("context", "context=4", LONG, {"context_attention": "ulysses"}),
    ("context", "context=4", FIXED, {}),
    ("single", "data=1", LLAMA, {}),
    ("three_d", "fsdp=2,context=2,tensor=2", QWEN3, {}),
    ("single", "data=1", dataclasses.replace(LLAMA, block="qwen2"), {}),
]
MORE_CASES = [
    ("tensor", "tensor=4", ODD, {}),
    ("context", "context=2", ODD, {}),
    ("three_d", "fsdp=2,pipeline=2,tensor=2", ODD, {"microbatches": 4}),
    ("context", "context=4", WIDE, {}),
    ("tensor", "tensor=2", LLAMA, {"sequence_parallel": False}),
    ("context", "context=4", QWEN3, {"context_attention": "ulysses"}),
]
EVERY_DAY = [(*case, REMATS[i % 3]) for i, case in enumerate(CASES)]


@pytest.mark.parametrize(
    ("name", "mesh", "config", "train", "remat"),
    [
        *EVERY_DAY,
        *nightly(
            *((*case, remat) for case in CASES + MORE_CASES for remat in REMATS if (*case, remat) not in EVERY_DAY)
        ),
    ],
    ids=str,
)
def test_layers_keep_what_the_formula_says(name, mesh, config, train, remat):
    """What the loop over layers hands to that of the backward pass, to the byte, in bfloat16 and in float32.

    Of a pipeline, whose passes go layer by layer, what each layer hands on by itself.
    """
    built = step(name, mesh, config, remat=remat, dtype="bfloat16", **train)
    plan = cost(name, mesh, config, remat=remat, dtype="bfloat16", **train).plan
    jaxpr = jax.make_jaxpr(built.gradients)(built.state, built.batch).jaxpr
    layers = 1 if plan.staged else plan.layers
    forward, _ = [loop for loop in loops(jaxpr) if Loop.of(loop).carry == 1 and loop.params["length"] == layers]
    kept = forward.outvars[1:]
    assert not forward.params["reverse"]
    assert sum(BYTES[str(each.aval.dtype)] * math.prod(each.aval.shape) for each in kept) == (
        layers * plan.block.kept_bytes(plan.share)
    )
