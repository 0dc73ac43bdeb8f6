"""The ZeRO family: what each stage shards, and that options change when bytes are sent and no result."""

import collections
import dataclasses
import math
from functools import partial

import jax
import pytest

from strategies import STRATEGIES, GPTConfig, MeshSpec, TrainConfig, pipeline, strategy, zero
from strategies.backends.backend import CPU
from strategies.costs.memory import block_elements
from strategies.costs.predict import predict, predict_axes
from strategies.model.gpt import param_count
from strategies.pipelining.jaxpr import Loop
from tests.strategies import equality
from tests.strategies.equality import ROUNDING, assert_equal, initial, single, trained
from tests.strategies.formulas import by_axes, compiled, compiled_step, cost, sent
from tests.strategies.jaxprs import gradients_of, inner
from tests.strategies.models import DROPPING, UNTIED
from tests.strategies.sampling import nightly

CONFIG = GPTConfig(layers=1, embed=32, heads=2, vocab=128, sequence=16)
WEIGHTS = param_count(CONFIG)


build = partial(equality.build, config=CONFIG)


def held(tree):
    """The elements of a tree on one device, without step counts."""
    return sum(math.prod(x.sharding.shard_shape(x.shape)) for x in jax.tree.leaves(tree) if x.shape)


def accumulators(program):
    """The bytes carried from one microbatch to the next, in the outermost loop of a program."""
    for equation in program.eqns:
        if equation.primitive.name == "scan":
            loop = Loop.of(equation)
            carried = equation.invars[loop.consts :][: loop.carry]
            return sum(math.prod(x.aval.shape) * x.aval.dtype.itemsize for x in carried)
        for part, _ in inner(equation):
            if found := accumulators(part):
                return found
    return 0


@pytest.mark.parametrize("model", [{}, {"experts": 4, "expert_mlp": 16}])
def test_only_a_bias_needs_the_hidden_features_divided(model):
    """In a block without biases of the MLP every weight has another dim, along which a device holds its part."""
    config = dataclasses.replace(CONFIG, block="llama", mlp=42, **model)
    assert held(build("fsdp", "fsdp=4", config=config).state.params) == param_count(config) / 4


@pytest.mark.parametrize(
    ("name", "mesh", "weights", "moments", "gradients"),
    [
        ("data", "data=8", 1, 1, 1),
        ("zero1", "data=8", 1, 8, 1),
        ("zero2", "data=8", 1, 8, 8),
        ("fsdp", "fsdp=8", 8, 8, 8),
        ("hsdp", "data=2,fsdp=4", 4, 4, 4),
    ],
)
def test_each_zero_stage_shards_one_thing_more(name, mesh, weights, moments, gradients):
    """Each ZeRO stage shards one more of optimizer state, gradients and weights; sizes per device are exact."""
    step = build(name, mesh, microbatches=2)
    assert held(step.state.params) == WEIGHTS / weights
    assert held(step.state.optimizer) == 2 * WEIGHTS / moments
    assert accumulators(gradients_of(step)) == 4 * (WEIGHTS / gradients + 1)


def test_gradients_of_gathered_weights_add_up_in_float32():
    """With bfloat16 weights gathered once a step, gradients accumulate over microbatches in float32."""
    step = build("fsdp", "fsdp=8", gather="step", microbatches=2, dtype="bfloat16")
    assert accumulators(gradients_of(step)) == 4 * (WEIGHTS + 1)


def test_a_schedule_adds_up_gradients_of_gathered_weights_in_float32():
    """With gather=step a schedule's loop carries whole gradients in place of shards, in float32."""
    sums = []
    for gather in ("step", "layer"):
        options = {"gather": gather, "microbatches": 2, "dtype": "bfloat16"}
        step = build("three_d", "fsdp=2,pipeline=2", config=dataclasses.replace(CONFIG, layers=2), **options)
        sums.append(accumulators(gradients_of(step)))
    assert sums[0] - sums[1] == 4 * held(step.state.params)


@pytest.mark.parametrize(
    ("mesh", "options"),
    [
        ("data=4", {"dtype": "float16", "master": "float32"}),
        *nightly(
            ("data=4", {}), ("data=2,expert=2", {}), ("data=2,expert=2", {"dtype": "float16", "master": "float32"})
        ),
    ],
    ids=str,
)
def test_weights_gathered_layer_by_layer_are_the_same(mesh, options, monkeypatch):
    """As GPUs gather updated weights: the step computes the same, and sends as many bytes, with experts and without.

    The first layer is gathered before a loop, in which each of the others is gathered beside the one before it. In
    float16 routing is forced: a learned router may choose other experts where rounding differs.
    """
    monkeypatch.setattr(strategy, "backend_of", lambda device: dataclasses.replace(CPU, gathers_outermost_only=True))
    dtype = options.get("dtype", "float32")
    routing = "learned" if dtype == "float32" else "zipf=1.2"
    config = dataclasses.replace(DROPPING, routing=routing) if "expert" in mesh else equality.CONFIG
    step = equality.build("zero1", mesh, config, **options)
    assert_equal(trained(step, initial(step), range(3))[0], single(config, dtype=dtype), ROUNDING[dtype])
    program, _ = compiled_step(step)
    assert sent(program) == by_axes(predict("zero1", config, mesh, step.train))
    assert {each.times for each in program.collectives if each.kind == "all_gather"} == {1, step.config.layers - 1}


@pytest.mark.parametrize(
    ("axes", "mesh"),
    [((zero.AXIS1, pipeline.AXIS), "data=2,pipeline=4"), ((zero.AXIS2, pipeline.AXIS), "data=2,pipeline=2")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_stages_gather_their_own_layers(axes, mesh, monkeypatch):
    """A user's ZeRO with a pipeline scatters gradients and gathers layers of each stage once, as formulas say.

    That is so of ZeRO-2, too: stages accumulate the gradients of microbatches.
    """
    monkeypatch.setattr(strategy, "backend_of", lambda device: dataclasses.replace(CPU, gathers_outermost_only=True))
    spec, options = MeshSpec.parse(mesh), dataclasses.replace(equality.TRAIN, microbatches=4)
    step = strategy.Strategy("mine", axes).build(equality.CONFIG, spec, options)
    program, _ = compiled_step(step)
    assert sent(program) == by_axes(predict_axes(axes, equality.CONFIG, spec, options))
    assert_equal(trained(step, initial(step), range(3))[0], single(), ROUNDING["float32"])


def test_each_bucket_is_one_all_reduce_of_the_compiled_program():
    """Each bucket is one all-reduce, all full but the last, the loss included; the compiler combines none."""
    bucket = 16_384
    step = build("data", "data=8", bucket_bytes=bucket)
    program, _ = compiled_step(step)
    sizes = [each.sent_bytes for each in program.collectives for _ in range(each.times)]
    left = 4 * (WEIGHTS + 1) % bucket
    assert sorted(sizes) == [2 * left * 7 // 8] + 4 * (WEIGHTS + 1) // bucket * [2 * bucket * 7 // 8]
    assert {each.kind for each in program.collectives} == {"all_reduce"}


def test_with_reduce_layer_each_layer_has_its_own_buckets():
    """Compiled, each layer's gradients are cut into buckets, all full but the last; so is the rest, with the loss."""
    bucket, config = 20_000, UNTIED
    program, _ = compiled("data", "data=8", config, reduce="layer", bucket_bytes=bucket)
    plan = cost("data", "data=8", config).plan
    layer = 4 * block_elements(plan) // config.layers
    expected = collections.Counter()
    for size, times in ((layer, config.layers), (4 * (plan.elements + 1) - config.layers * layer, 1)):
        expected.update({bucket: times * (size // bucket), size % bucket: times})
    found = collections.Counter()
    for each in program.collectives:
        found[each.operand_bytes] += each.times
    assert found == expected
    assert expected[bucket] > 3 * config.layers


@pytest.mark.parametrize(
    ("options", "keeps_all", "layers"),
    [
        ({}, False, 8),
        ({"regather": False}, True, 8),
        *nightly(
            ({}, False, 4), ({"remat": "full"}, False, 4), ({"remat": "full"}, False, 8), ({"regather": False}, True, 4)
        ),
    ],
)
def test_fsdp_has_the_weights_of_two_layers_at_once(options, keeps_all, layers):
    """fsdp's temporaries hold the gathered weights of at most two layers, however many there are.

    With regather=False it keeps all gathered weights, which the test sees.
    """
    config = GPTConfig(layers=layers, embed=128, heads=4, vocab=128, sequence=8)
    step = STRATEGIES["fsdp"].build(config, MeshSpec.parse("fsdp=8"), TrainConfig(8, **options))
    memory = step.lower().compile().memory_analysis()
    assert memory
    layer = sum(4 * math.prod(x.shape) // layers for x in jax.tree.leaves(step.state.params["blocks"]))
    gathered = memory.temp_size_in_bytes - 4 * param_count(config) // 8
    assert gathered >= layers * layer if keeps_all else gathered <= 2 * layer
