"""Layers keep for the backward pass what the parts of the model state."""

import dataclasses
import itertools
from typing import Any

import jax
import pytest

from strategies.core import plan, train_step
from strategies.core.gradients import accumulated, microbatched
from strategies.costs.memory import microbatch_gradient_bytes
from tests.strategies.equality import build
from tests.strategies.formulas import cost
from tests.strategies.jaxprs import assert_kept, gradients_of
from tests.strategies.models import (
    FIXED,
    LATENT,
    LATENT_KEYS,
    LLAMA,
    LONG,
    MOE,
    MOE_DROPPING,
    MOE_ROUTERS,
    ODD,
    QWEN3,
    SQUARE,
    UNTIED,
    WIDE,
)
from tests.strategies.sampling import nightly

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
    ("tensor", "tensor=4", LATENT, {}),
    ("context", "context=4", LATENT_KEYS, {"context_attention": "ulysses"}),
    ("context", "context=4", LATENT, {"context_attention": "ring"}),
]
MORE_CASES = [
    ("tensor", "tensor=4", ODD, {}),
    ("context", "context=2", ODD, {}),
    ("three_d", "fsdp=2,pipeline=2,tensor=2", ODD, {"microbatches": 4}),
    ("context", "context=4", WIDE, {}),
    ("tensor", "tensor=2", LLAMA, {"sequence_parallel": False}),
    ("context", "context=4", QWEN3, {"context_attention": "ulysses"}),
    ("single", "data=1", LATENT, {}),
    ("tensor", "tensor=2", LATENT_KEYS, {"sequence_parallel": False}),
    ("context", "context=4", LATENT, {"context_attention": "ulysses", "context_payload": "expanded"}),
    ("context", "context=4", LATENT, {"context_attention": "ring", "context_payload": "expanded"}),
]
MIXTURES = [("single", "data=1", config, {}) for config in (MOE, MOE_DROPPING, *MOE_ROUTERS)]
MORE_MIXTURES = [
    (name, mesh, dataclasses.replace(config, experts=4) if (name, config.experts) == ("expert", 3) else config, how)
    for _, _, config, _ in MIXTURES
    for name, mesh, how in (
        ("expert", "expert=2", {"dispatch": "all_to_all"}),
        ("expert", "expert=2", {"dispatch": "all_gather"}),
        ("tensor", "tensor=2", {}),
    )
]
SPLASH = [
    (name, mesh, SQUARE, {"attention": "splash", **options})
    for name, mesh, options in (
        ("fsdp", "fsdp=2", {}),
        ("tensor", "tensor=2", {}),
        ("context", "context=2", {"context_attention": "ulysses"}),
        ("three_d", "data=2,pipeline=2", {"microbatches": 2}),
    )
]
"""With a fused kernel, which is traced but not lowered; test_ring.py has a ring's kernels."""
EVERY_DAY = [(*case, REMATS[i % 3]) for cases in (CASES, MIXTURES) for i, case in enumerate(cases)]
EVERY_DAY += [(*case, "dots") for case in SPLASH]
AT_NIGHT = itertools.product(CASES + MORE_CASES + MIXTURES + MORE_MIXTURES + SPLASH, REMATS)


@pytest.mark.parametrize(
    ("name", "mesh", "config", "train", "remat"),
    [*EVERY_DAY, *nightly(*((*case, remat) for case, remat in AT_NIGHT if (*case, remat) not in EVERY_DAY))],
    ids=str,
)
def test_layers_keep_what_the_formula_says(name, mesh, config, train, remat, monkeypatch):
    """To the byte, in bfloat16 and in float32 (jaxprs.py)."""
    if "attention" in train:  # CPUs have no fused kernel
        monkeypatch.setattr(plan, "kernel_for", lambda *_, **__: train["attention"])
    built = build(name, mesh, config, remat=remat, dtype="bfloat16", **train)
    assert_kept(gradients_of(built), cost(name, mesh, config, remat=remat, dtype="bfloat16", **train).plan)


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
    built: Any = build(name, mesh, UNTIED, **train)
    built.update.eval_shape(built.state, built.batch)
    held = sum(grad.size * grad.dtype.itemsize for grad in jax.tree.leaves(traced[0]))
    assert microbatch_gradient_bytes(cost(name, mesh, UNTIED, **train).plan) == held
