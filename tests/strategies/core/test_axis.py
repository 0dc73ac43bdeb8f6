"""An axis is one file. This one splits the batch, and one dim of one weight: the table of positions over its tokens.

No other file knows of it: the step, the formulas and checkpoints follow from what it states.
"""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest

from benchmarks.program.compiled import read_program
from strategies import (
    Axis,
    Infeasible,
    MeshSpec,
    Strategy,
    TrainConfig,
    checkpoints,
    context,
    data,
    expert,
    fsdp,
    pipeline,
    tensor,
)
from strategies.core.shards import all_gather
from strategies.core.traffic import traffic
from strategies.costs.arrays import held_arrays
from strategies.costs.predict import predict_axes
from strategies.model.hooks import Hooks
from strategies.single import SINGLE
from strategies.step import Implementation
from tests.strategies.equality import CONFIG, ROUNDING, TRAIN, assert_equal, initial, single, trained
from tests.strategies.formulas import by_axes, sent
from tests.strategies.quick import compiled
from tests.strategies.sampling import nightly


def implement(plan):
    """Gather the positions before they are used. The transpose reduce-scatters their gradient."""

    def gather(part, spec, dtype):
        weight = part.astype(dtype)
        return all_gather(weight, "data", 0) if "sequence" in spec.dims else weight

    return Implementation(Hooks(gather=gather))


def positions(plan):
    """The gather of the positions, and the reduce-scatter of their gradient for each microbatch."""
    weight = plan.weights["embedding.position_TD"]
    term = partial(traffic, plan, axes=("data",), dtype=plan.dtype(weight))
    gathered = fsdp.embedding_or_head_gathers(plan, weight) * weight.elements
    yield from term("positions", "all_gather", elements=gathered, array="weights")
    whole = plan.train.microbatches * weight.elements * plan.size("data")
    yield from term("their gradients", "reduce_scatter", elements=whole, array="gradients")


TOY = Axis("data", batch=True, dims=("sequence",), implement=implement, traffic=(positions,))


@pytest.mark.parametrize(
    ("axes", "mesh", "options"),
    [
        ((TOY, context.AXIS, tensor.AXIS), "data=2,context=2,tensor=2", {}),
        *nightly(
            ((TOY,), "data=4", {"microbatches": 2}),
            ((TOY, pipeline.AXIS), "data=2,pipeline=2", {"microbatches": 4}),
            ((TOY, tensor.AXIS), "data=2,tensor=2", {"sequence_parallel": False}),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_axis_that_splits_a_weight_and_the_batch_needs_one_file(axes, mesh, options, tmp_path):
    """Alone and beside other axes: it equals one device; its formulas say what is sent and held, to the byte."""
    spec, train = MeshSpec.parse(mesh), replace(TRAIN, **options)
    step = Strategy("mine", axes).build(CONFIG, spec, train)
    results, state = trained(step, initial(step), range(3))
    assert_equal(results, single(), ROUNDING["float32"])

    program = compiled(step.lower())
    cost = predict_axes(axes, CONFIG, spec, train)
    assert sent(read_program(program.as_text() or "", step.mesh.shape)) == by_axes(cost)
    memory = program.memory_analysis()
    assert memory
    assert memory.argument_size_in_bytes == sum(cost.arguments.values())
    table = next(each for each in held_arrays(cost.plan) if each.name == "embedding.position_TD")
    assert table.axes[0] == ("data",)

    checkpoints.save(step, state, tmp_path).wait()
    restored = checkpoints.restore(SINGLE.build(CONFIG, "data=1", TrainConfig(16), jax.devices()[:1]), tmp_path)
    np.testing.assert_array_equal(
        restored.params["embedding"]["position_TD"], np.asarray(state.params["embedding"]["position_TD"])
    )


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"reduce": lambda loss, grads: (loss, grads)}, "the axes data and expert both set `reduce`; set it in one"),
        ({"hooks": Hooks(head=lambda x, weights: (x, weights))}, "the axes data and expert both set `head`; set it in"),
        ({"hooks": Hooks(vocab_sum=lambda x: x)}, "the step sets `vocab_sum` itself; remove it from the axis data"),
    ],
    ids=["a function", "a hook", "a hook of the step"],
)
def test_two_axes_cannot_set_the_same_field(own, message):
    """That of one would replace that of the other, or of the step. Only active axes count."""
    axes = (*(Axis(name, batch=True, implement=lambda plan: Implementation(**own)) for name in ("data", "expert")),)
    strategy = Strategy("mine", (*axes, Axis("tensor", dims=("vocab",))))
    with pytest.raises(Infeasible, match=message):
        strategy.build(CONFIG, "data=2,expert=2,tensor=2", TRAIN)
    if "axes" in message:
        strategy.build(CONFIG, "data=2,expert=1,tensor=2", TRAIN)


@pytest.mark.parametrize("option", [{"bucket_bytes": 4096}, {"compression": "int8"}])
@pytest.mark.parametrize(
    "other", [fsdp.AXIS, pipeline.AXIS, context.AXIS, expert.AXIS, tensor.AXIS], ids=lambda x: x.name
)
def test_sums_of_the_data_axis_go_alone(option, other):
    """Buckets and compression sum over `data` alone, and are refused beside another axis, in steps and in formulas."""
    axes, ((name, value),) = (data.AXIS, other), option.items()
    mesh, train = MeshSpec.parse(f"data=2,{other.name}=2"), replace(TRAIN, microbatches=2, **option)
    message = f"{name}={value} sums only over the axis data, and mesh {mesh} has {other.name}; omit it"
    with pytest.raises(Infeasible, match=message):
        Strategy("mine", axes).build(CONFIG, mesh, train)
    with pytest.raises(Infeasible, match=message):
        predict_axes(axes, CONFIG, mesh, train)
    Strategy("mine", axes).build(CONFIG, f"data=2,{other.name}=1", train)
    Strategy("mine", axes).build(CONFIG, mesh, replace(TRAIN, microbatches=2))
