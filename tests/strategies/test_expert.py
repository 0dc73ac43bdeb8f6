"""The axis `expert`: what it exchanges, drops and sums; cases.py has its steps."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from strategies import PRESETS, TrainConfig
from strategies.costs.predict import predict
from strategies.model.router import forced
from tests.processes import ROOT
from tests.strategies.equality import TRAIN

GUIDE = (ROOT / "docs" / "guides" / "choosing.md").read_text()


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
