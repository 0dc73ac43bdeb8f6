"""Layers keep for the backward pass what the parts of the model state."""

import dataclasses
import math
from typing import Any

import jax
import pytest

from strategies.core import train_step
from strategies.core.gradients import accumulated, microbatched
from strategies.core.sizes import BYTES
from strategies.costs.layer import kept_bytes
from strategies.costs.memory import microbatch_gradient_bytes
from strategies.pipelining.jaxpr import Loop
from tests.strategies.costs.steps import (
    FIXED,
    LLAMA,
    LONG,
    ODD,
    QWEN3,
    UNTIED,
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
        layers * kept_bytes(plan.share)
    )


@pytest.mark.parametrize(
    ("name", "mesh", "options"),
    [
        ("fsdp", "fsdp=4", {"gather": "step"}),
        ("fsdp", "fsdp=4", {}),
        ("hsdp", "data=2,fsdp=2", {"gather": "step"}),
        ("zero1", "data=4", {"master": "float32"}),
        ("three_d", "fsdp=2,tensor=2", {"gather": "step"}),
    ],
)
def test_gradients_of_a_microbatch_are_as_large_as_they_are_traced(name, mesh, options, monkeypatch):
    """In bfloat16 those of weights that are cast before they are gathered, or held, are half as large."""
    traced: list[Any] = []

    def recorded(loss_and_grads, microbatches):
        def run(params, tokens_BS):
            tokens_bS = microbatched(tokens_BS, microbatches)[0]
            traced.append(jax.eval_shape(loss_and_grads, params, tokens_bS)[1])
            return accumulated(loss_and_grads, microbatches)(params, tokens_BS)

        return run

    monkeypatch.setattr(train_step, "accumulated", recorded)
    train = {"dtype": "bfloat16", "microbatches": 2, **options}
    built: Any = step(name, mesh, UNTIED, **train)
    built.update.eval_shape(built.state, built.batch)
    held = sum(grad.size * grad.dtype.itemsize for grad in jax.tree.leaves(traced[0]))
    assert microbatch_gradient_bytes(cost(name, mesh, UNTIED, **train).plan) == held
