"""Models with experts under every strategy, and the axis `expert`: equal to one device, and known to the byte."""

import dataclasses
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from strategies import PRESETS, STRATEGIES, Infeasible, MeshSpec, TrainConfig
from strategies.costs.predict import predict
from strategies.device_mesh import first_devices
from strategies.model.router import forced
from tests.processes import ROOT
from tests.strategies.costs.steps import assert_exact, assert_held, compiled_step
from tests.strategies.equality import CONFIG, ROUNDING, TRAIN, assert_equal, initial, trained
from tests.strategies.sampling import nightly

DROPPING = dataclasses.replace(
    CONFIG, experts=8, expert_mlp=24, capacity_factor=1.0, expert_group=4, balance_loss=1e-2, router_z_loss=1e-3
)
ALL_KEPT = dataclasses.replace(DROPPING, capacity_factor=None, shared_mlp=40, router="sigmoid")
GUIDE = (ROOT / "docs" / "guides" / "choosing.md").read_text()
LLAMA = dataclasses.replace(DROPPING, block="qwen3", key_heads=4, tied=False)
FORCED = dataclasses.replace(DROPPING, routing="zipf=1.2")
BALANCED, ONE = (dataclasses.replace(ALL_KEPT, routing=routing) for routing in ("balanced", "one"))
UNBALANCED = dataclasses.replace(DROPPING, balance_loss=0.0, router="softmax")
BIASED = dataclasses.replace(
    UNBALANCED, router="sigmoid", routed_scale=2.5, router_bias_rate=0.01, router_groups=4, groups_per_token=2
)


def build(name, mesh, config, **options):
    """A step of the tests' batch."""
    return STRATEGIES[name].build(config, mesh, dataclasses.replace(TRAIN, **options), first_devices(mesh.size))


@cache
def single(config, microbatches, dtype="float32"):
    """The results of one device."""
    step = build("single", MeshSpec.parse("data=1"), config, microbatches=microbatches, dtype=dtype)
    return trained(step, initial(step), range(3))[0]


def assert_as_one_device(name, mesh, config, options):
    """A step computes what one device computes; bytes, FLOPs and arguments are as formulas say.

    Temporaries are within 15%. No two collectives may be in flight together. There are no formulas for `auto`.
    """
    spec = MeshSpec.parse(mesh)
    step = build(name, spec, config, **options)
    assert_equal(
        trained(step, initial(step), range(3))[0],
        single(config, options.get("microbatches", 1)),
        ROUNDING["float32"],
    )
    program, memory = compiled_step(step)
    if name == "auto":
        assert program.concurrent == ()
        return
    predicted = predict(name, config, spec, step.train)
    assert_exact(program, memory, predicted)
    assert_held(memory, predicted)


@pytest.mark.parametrize(
    ("name", "mesh", "config", "options"),
    [
        ("three_d", "expert=2,tensor=2", BIASED, {"halves": "on", "sequence_parallel": False}),
        ("pipeline", "pipeline=2", FORCED, {"microbatches": 4, "schedule": "zb-h1"}),
        *nightly(
            ("expert", "data=2,expert=2", DROPPING, {"halves": "on", "dispatch": "all_gather", "remat": "full"}),
            ("tensor", "tensor=4", ALL_KEPT, {"halves": "on"}),
            ("three_d", "fsdp=2,expert=2,tensor=2", DROPPING, {"halves": "on", "remat": "none", "prefetch": "on"}),
            ("three_d", "pipeline=2,expert=2", DROPPING, {"halves": "on", "microbatches": 4, "schedule": "zb-h1"}),
            ("expert", "data=2,expert=4", FORCED, {"remat": "full"}),
            ("fsdp", "fsdp=4", ALL_KEPT, {"remat": "full", "prefetch": "on"}),
            ("tensor", "tensor=4", ALL_KEPT, {"remat": "full"}),
            ("pipeline", "pipeline=2", ALL_KEPT, {"remat": "full", "microbatches": 4}),
            ("auto", "data=2,expert=2", DROPPING, {"microbatches": 2}),
            ("auto", "expert=4", ALL_KEPT, {"remat": "full"}),
            ("auto", "data=2,expert=4", BIASED, {}),
            ("tensor", "tensor=4", BIASED, {}),
            ("expert", "data=2,expert=4", DROPPING, {"dispatch": "all_gather", "remat": "full"}),
            ("expert", "expert=4", UNBALANCED, {"dispatch": "all_gather", "remat": "none", "microbatches": 2}),
            ("three_d", "fsdp=2,expert=2,tensor=2", DROPPING, {"dispatch": "all_gather"}),
            ("three_d", "context=2,expert=4", DROPPING, {"dispatch": "all_gather"}),
            ("three_d", "pipeline=2,expert=4", DROPPING, {"dispatch": "all_gather", "microbatches": 4}),
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
            ("three_d", "data=2,expert=2,tensor=2", LLAMA, {}),
            ("fsdp", "fsdp=4", LLAMA, {"remat": "none"}),
            ("data", "data=4", DROPPING, {}),
            ("context", "context=2", FORCED, {}),
            ("three_d", "fsdp=2,expert=2,tensor=2", FORCED, {"microbatches": 2}),
            ("three_d", "data=2,pipeline=2,expert=2", FORCED, {"microbatches": 4}),
            ("pipeline", "pipeline=2", BALANCED, {"microbatches": 4, "schedule": "zb-h1", "remat": "full"}),
            ("pipeline", "pipeline=2", ONE, {"microbatches": 4, "schedule": "zb-h1"}),
            ("auto", "fsdp=2,tensor=2", FORCED, {}),
            ("zero1", "data=8", DROPPING, {}),
            ("zero1", "expert=4", DROPPING, {}),
            ("zero1", "data=4,expert=2", LLAMA, {"microbatches": 2, "dispatch": "all_to_all"}),
            ("zero2", "data=2,expert=2", DROPPING, {"microbatches": 2}),
            ("zero2", "data=2,expert=4", BIASED, {"microbatches": 2, "reduce": "layer", "remat": "full"}),
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
    """As one device does, with tokens that are dropped and without."""
    assert_as_one_device(name, mesh, config, options)


@pytest.mark.parametrize("remat", ["dots", "full"])
def test_exchanges_are_what_the_docstring_says(remat):
    """(4 D + 2) L R (n-1)/n elements, or (5 D + 3) with remat="full"; R counts all rows of buffers.

    With `dispatch="all_gather"` (4 D + 4 k) L T (n-1), or (5 D + 6 k). "auto" is the one that sends less. Without a
    capacity factor R = n T min(k, E/n), and a row has the number of its expert, too.
    """
    config, embed = PRESETS["nano-moe"], PRESETS["nano-moe"].embed
    assert (config.dim_sizes["experts"], config.experts_per_token) == (8, 2)
    cases = (2, 1.25, "all_gather"), (4, 1.25, "all_to_all"), (4, None, "all_gather"), (8, None, "all_to_all")
    for devices, factor, best in cases:
        config, tokens = dataclasses.replace(config, capacity_factor=factor), 16 * config.sequence // devices
        buffers = 8 * 20 * tokens // 64  # ceil(2 x 64 / 8 x 1.25) = 20 rows for each of 8 experts and 64 tokens
        rows, beside = (buffers, 1) if factor else (devices * tokens * min(2, 8 // devices), 2)
        of_row = 5 * embed + 3 * beside if remat == "full" else 4 * embed + 2 * beside
        elements = {
            "all_to_all": of_row * rows * (devices - 1) / devices,
            "all_gather": (5 * embed + 12 if remat == "full" else 4 * embed + 8) * tokens * (devices - 1),
        }
        assert min(elements, key=lambda way: elements[way]) == best
        for dispatch in (*elements, "auto"):
            train = dataclasses.replace(TRAIN, remat=remat, dispatch=dispatch)
            cost = predict("expert", config, f"expert={devices}", train)
            exchanged = sum(each.sent_bytes for each in cost.traffic if each.what in ("dispatch", "combine"))
            assert exchanged == 4 * config.layers * elements[best if dispatch == "auto" else dispatch]


def table(heading):
    """The cells of the rows of the table under a heading of the guide, by the first."""
    rows = GUIDE.partition(f"## {heading}\n")[2].partition("\n## ")[0].partition("| model |")[2].splitlines()
    cells = [[cell.strip(" `") for cell in row.strip("|").split("|")] for row in rows if row.startswith("| `")]
    return {first: rest for first, *rest in cells if first[0] != "-"}


@pytest.mark.parametrize(("model", "numbers"), table("The model is a mixture of experts").items())
def test_expert_and_fsdp_send_as_many_bytes_at_the_crossover(model, numbers):
    """The guide has the tokens on a device, by formula and for whole steps: twice the tokens, and `expert` sends more.

    `fsdp` sends as many bytes however many tokens there are, and `expert` in proportion to them.
    """
    config = dataclasses.replace(PRESETS[model], capacity_factor=1.0)

    def sent(name, batch, reduce_dtype):
        options: dict[str, Any] = {"dispatch": "all_to_all"} if name == "expert" else {}
        train = TrainConfig(batch, dtype="bfloat16", reduce_dtype=reduce_dtype, **options)
        return sum(sum(each.values()) for each in predict(name, config, f"{name}=8", train).sent.values())

    size = config.dim_sizes
    expected: list[Any] = [2.25 * size["experts"] * size["expert_mlp"] / config.experts_per_token]
    for dtype in ("bfloat16", "float32"):
        once, twice = (sent("expert", 8 * sequences, dtype) for sequences in (1, 2))
        assert sent("fsdp", 8, dtype) == sent("fsdp", 16, dtype)
        of_a_token = (twice - once) / config.sequence
        expected.append(config.sequence + (sent("fsdp", 8, dtype) - once) / of_a_token)
    assert numbers == [f"{tokens:,.0f}" for tokens in expected]


@pytest.mark.parametrize(("routing", "numbers"), table("Imbalance").items())
def test_forced_routings_drop_what_the_guide_says(routing, numbers):
    """By the positions and the capacity of `nano-moe`."""
    config = dataclasses.replace(PRESETS["nano-moe"], routing=routing)
    counts_E = np.bincount(np.asarray(forced(config, jnp.arange(config.sequence))).reshape(-1), minlength=8)
    dropped = np.maximum(counts_E - config.capacity, 0).sum() / counts_E.sum()
    assert numbers == [f"{counts_E.max() / counts_E.mean():.2f}", f"{dropped:.1%}"]


def test_gradients_of_experts_are_not_summed_over_their_axis():
    """All tokens of an expert have come to its device. Other weights are summed over all devices.

    Each weight is updated in shards by just the devices that sum its gradient, with `zero1`.
    """
    plan = predict("expert", PRESETS["nano-moe"], "data=2,expert=4", TrainConfig(16)).plan
    replicas = {name.split(".")[-1]: weight.summed for name, weight in plan.weights.items()}
    assert replicas["gate_EDF"] == replicas["down_EFD"] == ("data",)
    assert replicas["router_DE"] == replicas["token_VD"] == ("data", "expert")
    sharded = predict("zero1", PRESETS["nano-moe"], "data=2,expert=4", TrainConfig(16)).plan
    shared = {
        name.split(".")[-1]: weight.update_shard.axes for name, weight in sharded.weights.items() if weight.update_shard
    }
    assert shared == replicas


@pytest.mark.parametrize(
    ("name", "mesh", "changes", "message"),
    [
        ("expert", "expert=16", {}, "expert=16 does not divide experts=8; expert can be 1, 2, 4 or 8"),
        (
            "context",
            "context=4",
            {"expert_group": None},
            "groups of 16 tokens do not divide the 2 consecutive tokens of a sequence on a device of context=4; "
            "expert_group can be 1 or 2, or omit capacity_factor",
        ),
        ("zero1", "data=3,expert=2", {}, "data x expert=6 does not divide embed=32; mesh expert=2 fits"),
        ("tensor", "tensor=16", {"heads": 16}, "tensor=16 does not divide expert_mlp=24"),
        ("tensor", "tensor=8", {"dense_layers": 1, "mlp": 36}, "tensor=8 does not divide mlp=36"),
        ("pipeline", "pipeline=4", {"layers": 4, "dense_layers": 2}, "2 blocks are too few for 4 parts of a pipeline"),
        (
            "expert",
            "expert=2",
            {"experts": 258},
            "dispatch=all_gather numbers experts in bfloat16, exactly up to 256, not experts=258",
        ),
        (
            "expert",
            "expert=2",
            {"experts": 514, "capacity_factor": None},
            "dispatch=all_to_all numbers experts in .*, not 257 of 514 experts on a device; mesh expert=1 fits",
        ),
    ],
)
def test_what_does_not_fit_is_refused(name, mesh, changes, message):
    """With the numbers and the way out."""
    options: dict[str, Any] = {"dtype": "bfloat16", "dispatch": message[9:19]} if "dispatch" in message else {}
    with pytest.raises(Infeasible, match=message):
        predict(name, dataclasses.replace(DROPPING, **changes), mesh, dataclasses.replace(TRAIN, **options))
