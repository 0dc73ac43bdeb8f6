"""Evaluation: the mean loss of a batch by a forward pass, under every strategy."""

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest

from benchmarks.program.compiled import read_program
from benchmarks.program.deadlock import require_no_deadlock
from tests.strategies.equality import CONFIG, ROUNDING, build, initial
from tests.strategies.meshes import WIDEST
from tests.strategies.quick import compiled
from tests.strategies.sampling import nightly, unless_sampled

TWO_LAYERS = dataclasses.replace(CONFIG, layers=2)


def tokens(step):
    """Random tokens of a step, on its mesh."""
    return step.place(np.random.default_rng(0).integers(0, step.config.vocab, step.batch.shape))


@cache
def evaluated(name, mesh, layers=2, **options):
    """The loss that a step computes by a forward pass, and the loss of its gradients, at the initial weights."""
    step = build(name, mesh, dataclasses.replace(CONFIG, layers=layers), **options)
    params, batch = initial(step).params, tokens(step)
    program = compiled(step.evaluation.lower(step.state.params, step.batch))
    require_no_deadlock(step.mesh, read_program(program.as_text() or "", step.mesh.shape).concurrent)
    loss = program(params, batch)
    assert loss.shape == ()
    return float(loss)


CASES = [
    *(
        unless_sampled(name, str(mesh), {"layers": 8})
        for name, mesh in WIDEST.items()
        if name not in ("single", "zero1")
    ),
    ("context", "context=2", {"context_attention": "ulysses"}),
    ("hsdp", "data=2,fsdp=2", {"prefetch": "on", "reduce": "layer"}),
    *nightly(
        ("zero1", str(WIDEST["zero1"]), {"layers": 8}),
        ("pipeline", "pipeline=2", {"schedule": "interleaved", "microbatches": 4, "layers": 4}),
        ("fsdp", "fsdp=2", {"dtype": "float16"}),
        ("tensor", "tensor=4", {"sequence_parallel": False}),
        ("pipeline", "pipeline=2", {"schedule": "zb-h1", "microbatches": 4, "layers": 3}),
        ("pipeline", "pipeline=2", {"schedule": "dualpipe-v", "microbatches": 4, "layers": 5}),
        ("three_d", "fsdp=2,pipeline=2,context=2", {"gather": "step", "microbatches": 2}),
        ("fsdp", "fsdp=4", {"gather": "step", "microbatches": 2}),
        ("data", "data=2", {"compression": "int8"}),
        ("three_d", "data=2,pipeline=2,tensor=2", {"microbatches": 4}),
        ("pipeline", "pipeline=2", {"dtype": "bfloat16", "microbatches": 2}),
    ),
]


@pytest.mark.parametrize(("name", "mesh", "options"), CASES, ids=str)
def test_every_strategy_evaluates_what_one_device_does(name, mesh, options):
    """The loss by a forward pass equals that of one device to the dtype's rounding, however the step is spread."""
    dtype = options.get("dtype", "float32")
    expected = evaluated("single", "data=1", layers=options.get("layers", 2), dtype=dtype)
    np.testing.assert_allclose(evaluated(name, mesh, **options), expected, rtol=ROUNDING[dtype])


@pytest.mark.parametrize(
    ("name", "mesh"), [("fsdp", "fsdp=2"), *nightly(("single", "data=1"), ("pipeline", "pipeline=2"))]
)
def test_it_is_the_loss_that_a_step_reports(name, mesh):
    """At the same weights and batch, evaluation gives the loss that the training step reports before its update."""
    step = build(name, mesh, TWO_LAYERS, microbatches=2)
    expected = float(compiled(step.lower())(initial(step), tokens(step))[1]["loss"])
    assert evaluated(name, mesh, microbatches=2) == pytest.approx(expected, rel=ROUNDING["float32"])


@pytest.mark.parametrize(
    ("name", "mesh", "options"),
    [
        ("single", "data=1", {}),
        ("pipeline", "pipeline=2", {}),
        *nightly(("fsdp", "fsdp=2", {"gather": "step"}), ("auto", "data=2", {}), ("data", "data=2", {"remat": "full"})),
    ],
)
def test_it_fits_where_training_does(name, mesh, options):
    """It goes through the microbatches of the step: its temporaries are at most those of the update."""
    config = dataclasses.replace(TWO_LAYERS, vocab=2048, sequence=64)
    step = build(name, mesh, config, microbatches=8, **options)
    lowered: Any = step.lower(), step.evaluation.lower(step.state.params, step.batch)
    memory: list[Any] = [compiled(each).memory_analysis() for each in lowered]
    update, evaluation = (each.temp_size_in_bytes for each in memory)
    assert evaluation <= update
