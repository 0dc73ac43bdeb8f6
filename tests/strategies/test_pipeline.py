"""Pipeline schedules compute what one device computes, repeat no work, and need the memory they promise.

FLOPs are those of compiled programs, whose loops are believed to run as often as their names say; test_executor.py
counts how often they do.
"""

import dataclasses
import functools
from typing import Any

import jax
import pytest

from benchmarks.program.compiled import read_program
from strategies import PRESETS, STRATEGIES, MeshSpec, TrainConfig, strategy
from strategies.backends.backend import CPU
from strategies.costs.predict import predict
from strategies.pipelining.orders import SCHEDULES
from strategies.step import Step
from tests.strategies import quick
from tests.strategies.equality import ROUNDING, assert_equal, build, initial, trained
from tests.strategies.jaxprs import gradients_of, loops
from tests.strategies.sampling import nightly

SMALL = dataclasses.replace(PRESETS["nano"], layers=4, embed=32, vocab=256, sequence=16)


@pytest.mark.parametrize("schedule", ["1f1b", *nightly("zb-h1", "interleaved")])
def test_stages_cast_weights_once_where_loops_copy(schedule, monkeypatch):
    """Then the loop over ticks reads no matrix of a layer in float32, and the step computes the same."""
    options = {"schedule": schedule, "microbatches": 4, "dtype": "bfloat16"}

    def step(*, copies: bool) -> Step:
        monkeypatch.setattr(strategy, "backend_of", lambda device: dataclasses.replace(CPU, copies_into_stacks=copies))
        return build("pipeline", "pipeline=2", **options)

    def float32_matrices(its: Step) -> int:
        """Those of layers [L,D,...], among the constants of the loop that has the most inputs. Biases have fewer."""
        longest = max(loops(gradients_of(its)), key=lambda loop: len(loop.invars))
        read = [each.aval for each in longest.invars[: longest.params["num_consts"]]]
        return sum(each.ndim > 2 and each.dtype == "float32" and each.size > 2**12 for each in read)

    ahead, inside = step(copies=True), step(copies=False)
    assert float32_matrices(ahead) == 0 < float32_matrices(inside)
    found, expected = (trained(each, initial(each), range(2))[0] for each in (ahead, inside))
    assert_equal(found, expected, ROUNDING["bfloat16"])


@functools.cache
def compiled(schedule, microbatches, stages=4, fast=True, remat: Any = "dots"):
    """A compiled step of a pipeline, compiled fast or as it is used."""
    options: dict[str, Any] = {"chunks": 4 // stages} if schedule == "interleaved" else {}
    train = TrainConfig(microbatches, microbatches, schedule=schedule, remat=remat, **options)
    mesh = MeshSpec.parse(f"pipeline={stages}")
    lowered = STRATEGIES["pipeline"].build(SMALL, mesh, train, jax.devices()[:stages]).lower()
    program: Any = (quick.compiled if fast else quick.as_used)(lowered)
    return program


@pytest.mark.parametrize(
    ("schedule", "stages"), [("zb-h1", 4), *nightly(("interleaved", 2), ("gpipe", 4), ("1f1b", 4))]
)
def test_stages_share_the_flops(schedule, stages):
    """Each stage computes an equal share of one device's FLOPs: nothing in bubbles, nothing twice."""
    alone = predict("single", SMALL, MeshSpec.parse("data=1"), TrainConfig(8))
    program = compiled(schedule, 8, stages)
    assert read_program(program.as_text(), {"pipeline": stages}).flops * stages == sum(alone.flops.values())


@pytest.mark.parametrize("schedule", ["zb-h1", *nightly("gpipe", "1f1b")])
def test_stages_send_where_one_has_something_to_send(schedule):
    """A tick has one permute if any stage sends, and two if a stage receives from both sides."""
    program = read_program(compiled(schedule, 8, 4).as_text(), {"pipeline": 4})
    permutes = sum(each.times for each in program.collectives if each.kind == "permute")
    plan = SCHEDULES[schedule](4, 8)
    expected = 0
    for tick in range(plan.ticks - 1):
        made = ["".join(op.kind for op in row[tick]) for row in plan.table]
        targets = [s + 1 for s in range(3) if made[s] == "F"] + [s - 1 for s in range(1, 4) if made[s] == "B"]
        expected += len(targets) and 1 + (len(set(targets)) < len(targets))
    assert permutes == expected
    assert schedule != "gpipe" or permutes == 2 * (8 + 4 - 2)
    assert schedule != "1f1b" or permutes == plan.ticks - 1


@pytest.mark.factorisations
@pytest.mark.parametrize("fast", [True, False], ids=["quick", "as used"])
def test_memory_does_not_grow_with_microbatches(fast):
    """Temporaries of 1F1B and ZB-H1 depend on the microbatches in flight, those of GPipe on all microbatches.

    At a constant microbatch size, 1F1B with 64 microbatches needs at most 1.05 of what it needs with 8, and a fifth of
    GPipe.
    """
    counts = {"1f1b": (8, 64), "zb-h1": (8, 64), "gpipe": (8, 32, 64)}
    temporaries = {
        (schedule, count): compiled(schedule, count, 4, fast).memory_analysis().temp_size_in_bytes
        for schedule in counts
        for count in counts[schedule]
    }
    for schedule in ("1f1b", "zb-h1"):
        assert temporaries[schedule, 64] <= 1.05 * temporaries[schedule, 8]
        assert formula(schedule, 8) == formula(schedule, 16) == formula(schedule, 32) == formula(schedule, 64)
    assert temporaries["1f1b", 64] <= temporaries["gpipe", 64] / 5
    # The residuals of each microbatch, and the slot for its gradient.
    each = [(temporaries["gpipe", more] - temporaries["gpipe", m]) / (more - m) for m, more in ((8, 32), (32, 64))]
    assert each == pytest.approx([each[0]] * 2, rel=0.05)
    assert temporaries["gpipe", 64] > 4 * temporaries["gpipe", 8]


@pytest.mark.factorisations
@pytest.mark.parametrize(("remat", "waiting"), [("dots", 6), ("none", 0), ("full", 15)])
def test_zero_bubble_holds_residuals_as_1f1b_does(remat, waiting):
    """ZB-H1 holds what 1F1B holds without rematerialisation (Qi et al. 2023, section 2.1), and else what W needs.

    With `remat="dots"`, 6 D elements for each token, layer and microbatch in flight have no residual to take the place
    of: gradients of the attention's output, of the MLP's hidden layer and of its output. With `remat="full"` there are
    no residuals but x: W needs 15 D more, 9 D of gradients and 6 D of inputs of its matmuls.
    """
    mine, others = (compiled(name, 8, remat=remat).memory_analysis().temp_size_in_bytes for name in ("zb-h1", "1f1b"))
    assert mine <= 1.05 * (others + 4 * 4 * waiting * SMALL.sequence * SMALL.embed)
    more = formula("zb-h1", 8, remat) - formula("1f1b", 8, remat)
    assert more == 4 * 4 * waiting * SMALL.sequence * SMALL.embed


def formula(schedule, microbatches, remat: Any = "dots"):
    """The predicted temporaries of a pipeline with four stages."""
    train = TrainConfig(microbatches, microbatches, schedule=schedule, remat=remat)
    return sum(predict("pipeline", SMALL, MeshSpec.parse("pipeline=4"), train).temporaries.values())
