"""Models with experts under every strategy, and the axis `expert`: equal to one device, and known to the byte."""

import dataclasses
from functools import cache

import pytest

from benchmarks.program.compiled import read_program
from strategies import PRESETS, STRATEGIES, Infeasible, MeshSpec, TrainConfig
from strategies.costs.predict import predict
from strategies.device_mesh import first_devices
from tests.strategies import quick
from tests.strategies.costs.steps import by_axes, sent
from tests.strategies.equality import CONFIG, ROUNDING, TRAIN, assert_equal, initial, trained
from tests.strategies.sampling import nightly

DROPPING = dataclasses.replace(
    CONFIG, experts=8, expert_mlp=24, capacity_factor=1.0, expert_group=4, balance_loss=1e-2, router_z_loss=1e-3
)
ALL_KEPT = dataclasses.replace(DROPPING, capacity_factor=None, shared_mlp=40, router="sigmoid")
LLAMA = dataclasses.replace(DROPPING, block="qwen3", key_heads=4, tied=False)
FORCED = dataclasses.replace(DROPPING, routing="zipf=1.2")
UNBALANCED = dataclasses.replace(DROPPING, balance_loss=0.0, router="softmax")
BIASED = dataclasses.replace(
    UNBALANCED, router="sigmoid", routed_scale=2.5, router_bias_rate=0.01, router_groups=4, groups_per_token=2
)


def build(name, mesh, config, **options):
    """A step of the tests' batch."""
    return STRATEGIES[name].build(config, mesh, dataclasses.replace(TRAIN, **options), first_devices(mesh.size))


@cache
def single(config, microbatches):
    """The results of one device."""
    step = build("single", MeshSpec.parse("data=1"), config, microbatches=microbatches)
    return trained(step, initial(step), range(3))[0]


@pytest.mark.parametrize(
    ("name", "mesh", "config", "options"),
    [
        ("expert", "data=2,expert=4", FORCED, {"remat": "full"}),
        ("tensor", "tensor=4", BIASED, {}),
        ("three_d", "expert=2,tensor=2", ALL_KEPT, {"sequence_parallel": False}),  # dispatch is "all_gather"
        *nightly(
            ("expert", "data=2,expert=4", DROPPING, {"dispatch": "all_gather", "remat": "full"}),
            ("expert", "expert=4", UNBALANCED, {"dispatch": "all_gather", "remat": "none", "microbatches": 2}),
            ("three_d", "fsdp=2,expert=2,tensor=2", DROPPING, {"dispatch": "all_gather"}),
            ("three_d", "context=2,expert=4", DROPPING, {"dispatch": "all_gather"}),
            ("three_d", "pipeline=2,expert=4", DROPPING, {"dispatch": "all_gather", "microbatches": 4}),
            ("expert", "expert=8", ALL_KEPT, {}),
            ("tensor", "tensor=4", DROPPING, {}),
            ("expert", "data=2,expert=2", BIASED, {"microbatches": 2, "remat": "none"}),
            ("expert", "data=2,expert=4", BIASED, {"dispatch": "all_gather", "remat": "full"}),
            ("fsdp", "fsdp=4", BIASED, {"microbatches": 2}),
            ("fsdp", "fsdp=8", BIASED, {"prefetch": "on", "remat": "full"}),
            ("zero1", "data=4", BIASED, {"microbatches": 2}),
            ("zero2", "data=4", BIASED, {"reduce": "layer"}),
            ("context", "context=2", BIASED, {}),
            ("pipeline", "pipeline=2", BIASED, {"microbatches": 4}),
            ("pipeline", "pipeline=2", BIASED, {"microbatches": 4, "schedule": "zb-h1"}),
            ("three_d", "data=2,pipeline=2,tensor=2", BIASED, {"microbatches": 4, "sequence_parallel": False}),
            ("three_d", "fsdp=2,expert=2,tensor=2", BIASED, {"remat": "full"}),
            ("auto", "fsdp=2,tensor=2", BIASED, {}),
            ("expert", "expert=4", UNBALANCED, {"remat": "none", "microbatches": 2}),
            ("expert", "data=2,expert=2", DROPPING, {"reduce": "layer"}),
            ("three_d", "fsdp=2,expert=2,tensor=2", DROPPING, {"remat": "full"}),
            ("three_d", "fsdp=4,expert=2", DROPPING, {"prefetch": "on"}),
            ("three_d", "context=2,expert=4", DROPPING, {}),
            ("three_d", "data=2,pipeline=2,expert=2", DROPPING, {"microbatches": 4}),
            ("three_d", "pipeline=3,expert=2", ALL_KEPT, {"microbatches": 4, "schedule": "zb-h1"}),
            ("three_d", "expert=2,tensor=2", ALL_KEPT, {"sequence_parallel": False, "remat": "full"}),
            ("three_d", "data=2,expert=2,tensor=2", LLAMA, {}),
            ("fsdp", "fsdp=4", LLAMA, {"remat": "none"}),
            ("data", "data=4", DROPPING, {}),
            ("expert", "data=2,expert=4", DROPPING, {"remat": "full"}),
            ("context", "context=2", FORCED, {}),
            ("three_d", "fsdp=2,expert=2,tensor=2", FORCED, {"microbatches": 2}),
            ("three_d", "data=2,pipeline=2,expert=2", FORCED, {"microbatches": 4}),
            ("auto", "fsdp=2,tensor=2", FORCED, {}),
            ("zero1", "data=8", DROPPING, {}),
            ("zero2", "data=4", DROPPING, {"microbatches": 2}),
            ("fsdp", "fsdp=8", DROPPING, {"remat": "full"}),
            ("hsdp", "data=2,fsdp=4", UNBALANCED, {"prefetch": "on"}),
            ("context", "context=2", DROPPING, {}),
            ("context", "context=4", ALL_KEPT, {"context_attention": "ulysses"}),
            ("pipeline", "pipeline=2", DROPPING, {"microbatches": 4}),
            ("auto", "fsdp=2,tensor=2", DROPPING, {}),
        ),
    ],
    ids=lambda value: "" if dataclasses.is_dataclass(value) else str(value),
)
def test_every_strategy_trains_a_model_with_experts(name, mesh, config, options):
    """As one device does, with tokens that are dropped and without; bytes, FLOPs and arguments are as formulas say.

    Temporaries are within 15%. No two collectives may be in flight together. There are no formulas for `auto`.
    """
    spec = MeshSpec.parse(mesh)
    step = build(name, spec, config, **options)
    assert_equal(
        trained(step, initial(step), range(3))[0],
        single(config, options.get("microbatches", 1)),
        ROUNDING["float32"],
    )
    if name == "auto":
        return
    compiled = quick.compiled(step.lower())
    program, memory, predicted = (
        read_program(compiled.as_text() or "", step.mesh.shape),
        compiled.memory_analysis(),
        predict(name, config, spec, step.train),
    )
    assert program.unread == ""
    assert program.concurrent == ()
    assert sent(program) == by_axes(predicted)
    assert program.flops * spec.size == sum(predicted.flops.values())
    assert memory
    assert memory.argument_size_in_bytes == sum(predicted.arguments.values())
    assert memory.temp_size_in_bytes == pytest.approx(sum(predicted.temporaries.values()), rel=0.15)


@pytest.mark.parametrize("remat", ["dots", "full"])
def test_exchanges_are_what_the_docstring_says(remat):
    """(4 D + 2) L R (n-1)/n elements, or (5 D + 3) with remat="full"; R counts all rows of buffers.

    With `dispatch="all_gather"` (4 D + 4 k) L T (n-1), or (5 D + 6 k). "auto" is the one that sends less.
    """
    config, embed = PRESETS["nano-moe"], PRESETS["nano-moe"].embed
    assert (config.dim_sizes["experts"], config.experts_per_token) == (8, 2)
    for devices, best in ((2, "all_gather"), (4, "all_to_all")):
        tokens = 16 * config.sequence // devices
        rows = 8 * 20 * tokens // 64  # ceil(2 x 64 / 8 x 1.25) = 20 rows for each of 8 experts and 64 tokens
        elements = {
            "all_to_all": (5 * embed + 3 if remat == "full" else 4 * embed + 2) * rows * (devices - 1) / devices,
            "all_gather": (5 * embed + 12 if remat == "full" else 4 * embed + 8) * tokens * (devices - 1),
        }
        assert min(elements, key=lambda way: elements[way]) == best
        for dispatch in (*elements, "auto"):
            train = dataclasses.replace(TRAIN, remat=remat, dispatch=dispatch)
            cost = predict("expert", config, f"expert={devices}", train)
            exchanged = sum(each.sent_bytes for each in cost.traffic if each.what in ("dispatch", "combine"))
            assert exchanged == 4 * config.layers * elements[best if dispatch == "auto" else dispatch]


def test_gradients_of_experts_are_not_summed_over_their_axis():
    """All tokens of an expert have come to its device. Other weights are summed over all devices."""
    plan = predict("expert", PRESETS["nano-moe"], "data=2,expert=4", TrainConfig(16)).plan
    replicas = {weight.spec.name.split(".")[-1]: weight.replicas for weight in plan.weights}
    assert replicas["gate_EDF"] == replicas["down_EFD"] == ("data",)
    assert replicas["router_DE"] == replicas["token_VD"] == ("data", "expert")


@pytest.mark.parametrize(
    ("name", "mesh", "changes", "message"),
    [
        ("expert", "expert=16", {}, "expert=16 does not divide experts=8; expert can be 1, 2, 4 or 8"),
        (
            "context",
            "context=4",
            {"expert_group": None},
            "groups of 16 tokens do not divide the 2 consecutive tokens of a sequence on a device of context=4; "
            "expert_group can be 1 or 2, or leave out capacity_factor",
        ),
        ("tensor", "tensor=16", {"heads": 16}, "tensor=16 does not divide expert_mlp=24"),
        ("tensor", "tensor=2", {}, "halves=on does not go with experts"),
        (
            "expert",
            "expert=2",
            {"experts": 258},
            "dispatch=all_gather numbers experts in bfloat16, exactly up to 256, not experts=258",
        ),
    ],
)
def test_what_does_not_fit_is_refused(name, mesh, changes, message):
    """With the numbers and the way out."""
    train = dataclasses.replace(TRAIN, halves="on" if "halves" in message else "auto")
    if "dispatch" in message:
        train = dataclasses.replace(train, dtype="bfloat16", dispatch="all_gather")
    with pytest.raises(Infeasible, match=message):
        predict(name, dataclasses.replace(DROPPING, **changes), mesh, train)
