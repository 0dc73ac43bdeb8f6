"""What a mesh does with a model: what fits, and what is found once for many plans."""

import dataclasses
import math
from typing import Any

import pytest

from strategies import PRESETS, STRATEGIES, Infeasible, MeshSpec, TrainConfig
from strategies.backends.backend import backend_for
from strategies.config import NEEDS, OF_AXES, needed_for
from strategies.core.plan import Plan
from strategies.costs.predict import predict, strategies_with_formulas
from strategies.model.block import BLOCKS, Qwen2Block
from tests.strategies.equality import BATCH
from tests.strategies.formulas import cost
from tests.strategies.models import EVEN


def test_plans_share_what_takes_long_to_find():
    """A schedule, its ticks and its bubble are found once, whatever else differs between plans."""
    one = cost("pipeline", "pipeline=2", microbatches=4, remat="full")
    other = cost("three_d", "data=2,pipeline=2", microbatches=4, remat="none")
    assert one.plan.order is other.plan.order
    assert one.plan.order is not cost("pipeline", "pipeline=2", microbatches=8, remat="full").plan.order


def test_a_name_that_means_another_block_has_its_weights(monkeypatch):
    """Weights are found once for a block, not once for its name."""
    config = PRESETS["nano-llama"]
    before = predict("single", config, "data=1", TrainConfig(4)).plan.weights
    monkeypatch.setitem(BLOCKS, "llama", Qwen2Block)
    after = predict("single", config, "data=1", TrainConfig(4)).plan.weights
    assert {*after} - {*before} == {"blocks.attention.qkv_bias_CA"}


@pytest.mark.parametrize("vocab", [256, 257, 50257])
def test_all_meshes_of_a_comparison_have_the_same_vocabulary(vocab):
    """Padded, it has as many rows on every mesh of up to eight devices, and so do its matmuls as many FLOPs."""
    config = dataclasses.replace(EVEN, vocab=vocab, heads=8, embed=64, mlp=None, sequence=32)
    plans = [
        predict(name, config, mesh, TrainConfig(BATCH, microbatches=2 if "pipeline" in mesh.sizes else 1)).plan
        for name in strategies_with_formulas()
        for devices in (1, 2, 4, 8)
        for mesh in STRATEGIES[name].meshes(devices)
    ]
    assert len(plans) > 50
    assert {plan.padded_vocab for plan in plans} == {128 * math.ceil(vocab / 128)}


CHANGED = {
    "schedule": "gpipe",
    "chunks": 3,
    "sequence_parallel": False,
    "gather": "step",
    "regather": False,
    "prefetch": "on",
    "halves": "on",
    "bucket_bytes": 4096,
    "compression": "int8",
    "compression_warmup": 3,
    "reduce": "layer",
    "reduce_dtype": "bfloat16",
    "context_attention": "ulysses",
    "context_payload": "latent",
    "dispatch": "all_to_all",
    "master": "float32",
    "matrices": "gather",
}
"""A value of each option of axes that is not its default."""
WITH = {
    "chunks": {"schedule": "interleaved"},
    "compression_warmup": {"compression": "onebit"},
    "matrices": {"optimizer": "muon"},
}
"""Other options without which one has no effect."""


@pytest.mark.parametrize("option", CHANGED)
def test_an_option_that_no_axis_has_is_refused(option):
    """By steps and formulas, with the option and the way out, unless the strategy has it; `applicable` drops it."""
    changed, having = {option: CHANGED[option], **WITH.get(option, {})}, []
    of_all = {name: value for name, value in changed.items() if name not in OF_AXES}
    for strategy in STRATEGIES.values():
        mesh = MeshSpec(((strategy.axis_names[0], 1),))
        train, told = TrainConfig(8, **changed), (EVEN, mesh)
        if option in strategy.options:
            having.append(strategy.name)
            Plan.of(strategy.axes, *told, train, checked=False)
            assert strategy.applicable(train) == train
            continue
        named = "|".join(f"{name}={value}" for name, value in changed.items())
        with pytest.raises(Infeasible, match=rf"({named}) (changes nothing|needs devices).*omit it"):
            strategy.build(*told, train)
        if strategy.has_formulas:
            with pytest.raises(Infeasible, match=f"({named}) .*omit it"):
                predict(strategy.name, *told, train)
        assert strategy.applicable(train) == TrainConfig(8, **of_all)
    assert having
    assert {*CHANGED} == {*OF_AXES} == {name for each in STRATEGIES.values() for name in each.options}


IDLE: dict[str, tuple[str, dict[str, Any]]] = {
    "chunks": ("pipeline", {"chunks": 3, "schedule": "zb-h1"}),
    "regather": ("fsdp", {"regather": False, "gather": "step"}),
    "compression_warmup": ("data", {"compression_warmup": 3, "compression": "int8"}),
    "loss_scale": ("data", {"loss_scale": 2.0, "dtype": "bfloat16"}),
    "loss_scale_growth_steps": ("single", {"loss_scale_growth_steps": 3}),
    "matrices": ("fsdp", {"matrices": "gather"}),
    "by_head": ("single", {"by_head": True, "optimizer": "sgd"}),
    "matrix_scale": ("single", {"matrix_scale": "original"}),
    "momentum": ("single", {"momentum": 0.5}),
    "nesterov": ("single", {"nesterov": False}),
    "momentum_dtype": ("single", {"momentum_dtype": "bfloat16"}),
    "beta1": ("single", {"beta1": 0.5, "optimizer": "sgd"}),
    "beta2": ("single", {"beta2": 0.5, "optimizer": "sgd"}),
    "epsilon": ("single", {"epsilon": 0.5, "optimizer": "sgd"}),
}
"""Options of a strategy, of which the first has no effect with the others."""


@pytest.mark.parametrize("option", NEEDS)
def test_an_option_that_needs_another_is_refused_without_it(option):
    """It says what it needs. With that it is taken, and `applicable` drops it where it has no effect."""
    name, options = IDLE[option]
    strategy, (other, values) = STRATEGIES[name], NEEDS[option]
    mesh, idle = MeshSpec(((strategy.axis_names[0], 1),)), TrainConfig(8, **options)
    with pytest.raises(
        Infeasible, match=f"{option}={options[option]} changes nothing without {needed_for(option)}; omit it"
    ):
        strategy.build(EVEN, mesh, idle)
    kept = {name: given for name, given in options.items() if name != option}
    assert strategy.applicable(idle) == TrainConfig(8, **kept)
    strategy.build(EVEN, mesh, TrainConfig(8, **{**options, other: values[0]}))


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_resolved_plan_can_be_used_again(name):
    """Its options are taken by the same strategy, and by formulas, though some of them say what is off."""
    strategy = STRATEGIES[name]
    mesh = MeshSpec(((strategy.axis_names[0], 1),))
    resolved = Plan.of(strategy.axes, EVEN, mesh, TrainConfig(8), backend_for("cuda")).train
    assert Plan.of(strategy.axes, EVEN, mesh, resolved, backend_for("cuda")).train == resolved
    assert TrainConfig(8) == dataclasses.replace(STRATEGIES["single"].applicable(resolved), unroll="auto")
