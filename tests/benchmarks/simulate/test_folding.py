"""Rows of published runs become meshes whose experts lie over other axes, and kernels of their precision and stack."""

from dataclasses import replace

import pytest

from benchmarks.simulate.kernels import layer
from benchmarks.simulate.links import bandwidth, group
from benchmarks.simulate.machines import machine
from benchmarks.simulate.published import run_of
from benchmarks.simulate.stack import PRECISIONS
from benchmarks.simulate.stacks import KEMPNERFORGE, TORCHTITAN
from benchmarks.simulate.step import predict_seconds
from strategies.infeasible import Infeasible

MIXTURE = {
    **{"stack": "Megatron-Bridge", "device": "H100", "devices": 64, "devices_per_host": 8, "model": "qwen3-tiny"},
    **{"layers": 8, "embed": 1024, "heads": 8, "kv_heads": 4, "head_dim": 128, "vocab": 32000, "dtype": "bf16"},
    **{"experts": 64, "experts_per_token": 4, "expert_mlp": 512, "shared_experts": 1, "dense_layers": 0},
    **{"sequence": 2048, "batch_size": 64, "microbatch_size": 1, "step_seconds": 1.0},
    **{"data": 16, "fsdp": 1, "tensor": 2, "pipeline": 2, "expert": 8},
}
DENSE = {
    **{"stack": "torchtitan", "device": "H100", "devices": 8, "devices_per_host": 8, "model": "llama3-tiny"},
    **{"layers": 8, "embed": 4096, "heads": 32, "kv_heads": 8, "mlp": 14336, "vocab": 128256, "dtype": "bf16"},
    **{"sequence": 4096, "batch_size": 32, "microbatch_size": 1, "data": 1, "fsdp": 2, "tensor": 4, "pipeline": 1},
    "step_seconds": 1.0,
}


@pytest.mark.parametrize(
    ("change", "mesh"),
    [
        ({}, "data=4,pipeline=2,expert=4,tensor=2"),  # two of eight along tensor
        ({"notes": "ETP 2"}, "data=2,pipeline=2,expert=8,tensor=2"),
        ({"expert": 32}, "pipeline=2,expert=16,tensor=2"),
        ({"data": 1, "fsdp": 16}, "fsdp=4,pipeline=2,expert=4,tensor=2"),
        ({"data": 2, "notes": "expert is its own axis"}, "data=2,pipeline=2,expert=8,tensor=2"),
    ],
)
def test_devices_that_split_experts_are_counted_once(change, mesh):
    """The mesh has as many devices as the row, and each holds its part of the experts."""
    plan = run_of({**MIXTURE, **change}).cost.plan
    assert str(plan.mesh) == mesh
    assert plan.mesh.size == 64
    split = plan.size("expert") * plan.size("tensor")
    held = sum(weight.elements for weight in plan.weights if "expert_mlp" in weight.spec.dims)
    assert held == 3 * 64 * 1024 * 512 * 8 // 2 // split // plan.shards


def test_tokens_go_to_their_experts_and_come_back():
    """A device sends (n-1)/n of its tokens' choices four times a layer, n devices that split experts, in two bytes.

    Layers without experts send none; attention alone gathers tokens over the tensor axis.
    """
    tokens = 64 * 2048 // 16 // 2  # of a device, which the tensor axis splits
    for dense, share in ((0, 1.0), (4, 0.5)):
        sent = run_of({**MIXTURE, "dense_layers": dense}).cost.sent
        moved = sent["all_to_all", ("expert", "tensor")]
        assert sum(moved.values()) == pytest.approx(4 * 2 * share * (8 / 2) * 4 * tokens * 1024 * 7 / 8)
    dense = {**MIXTURE, **dict.fromkeys(("experts", "experts_per_token", "expert_mlp", "shared_experts", "expert"), "")}
    whole = run_of({**dense, "dense_layers": "", "mlp": 2048}).cost.sent["reduce_scatter", ("tensor",)]["layers"]
    assert sent["reduce_scatter", ("tensor",)]["layers"] == whole / 2


@pytest.mark.parametrize(("dtype", "name"), [("fp8-cs", "fp8"), ("fp8-mx (32x32)", "mxfp8"), ("nvfp4", "nvfp4")])
def test_narrow_operands_are_cast_and_multiplied_faster(dtype, name):
    """Matmuls with weights take the time of the higher rate, casts move bytes of operands, attention is as before."""
    run, plain = run_of({**DENSE, "dtype": dtype}), run_of(DENSE)
    assert run.precision == PRECISIONS[name]
    cast = PRECISIONS[name].cast_bytes
    plan, h100 = plain.cost.plan, machine("torchtitan_gpus", "h100")
    before, after = layer(plan, TORCHTITAN), layer(plan, TORCHTITAN, run.precision)
    for old, new in zip(before.forward, after.forward, strict=True):
        assert old.flops == new.flops
        if old.kind == "attention":
            assert old == new
    moved = [sum(each.moved_bytes for each in its.forward if each.kind == "memory") for its in (before, after)]
    matmuls = {kernel.dims for kernel in before.forward if kernel.kind == "matmul"}
    assert moved[1] - moved[0] == pytest.approx(cast * sum(m * k for m, _, k, _ in matmuls))
    if name == "nvfp4":
        with pytest.raises(Infeasible, match="has no rate of fp4 matmuls"):
            h100.running(TORCHTITAN, run.precision)
    else:
        running = h100.running(TORCHTITAN, run.precision)
        pairs = zip(before.forward, after.forward, strict=True)
        times = [(old.seconds(h100), new.seconds(running)) for old, new in pairs if old.kind == "matmul"]
        assert all(0.5 <= new / old < 0.75 for old, new in times)


def test_stacks_differ_as_their_code_says():
    """torchtitan recomputes every second matmul, and moves more if not compiled; KempnerForge gathers more often."""
    plans = {kept: run_of({**DENSE, "recompute": kept}).cost.plan for kept in ("none", "selective", "full")}
    flops = {
        kept: sum(each.flops for each in layer(plan, TORCHTITAN).backward if each.kind == "matmul")
        for kept, plan in plans.items()
    }
    forward = [each.flops for each in layer(plans["none"], TORCHTITAN).forward if each.kind == "matmul"]
    assert flops["selective"] - flops["none"] == pytest.approx(sum(forward[1::2]))
    seconds = {}
    for name, change in {"as it is": {}, "eager": {"notes": "no compile"}, "each": {"stack": "KempnerForge"}}.items():
        run = run_of({**DENSE, "recompute": "full", **change})
        here = machine("torchtitan_gpus", "h100").running(run.stack)
        seconds[name] = predict_seconds(run.cost, here, run.topology).parts
    assert seconds["eager"]["memory"] > 2 * seconds["as it is"]["memory"]
    assert seconds["each"]["layer collectives"] > 1.5 * seconds["as it is"]["layer collectives"]
    assert KEMPNERFORGE.fitted_as == "KempnerForge"


@pytest.mark.parametrize("recompute", ["layernorm", "moe_act", "layernorm + moe_act", "core_attn"])
def test_parts_of_a_layer_are_computed_again(recompute):
    """The backward pass has the kernels of the parts that a row names, besides those that it has without."""
    without, run = (run_of({**MIXTURE, "recompute": said}) for said in ("none", recompute))
    added = layer(run.cost.plan, run.stack).inputs[: len(recompute.split(" + "))]
    assert layer(run.cost.plan, run.stack).inputs == (*added, *layer(without.cost.plan, run.stack).inputs)
    assert all(kernel.flops + kernel.moved_bytes > 0 for kernel in added)


def test_models_differ_as_they_were_published():
    """gpt-oss has windows and biases of experts, a layer that predicts a further token has its loss, and so on."""
    plain = run_of(MIXTURE)
    oss = run_of({**MIXTURE, "model": "gpt-oss-tiny"})
    attention = [
        [one.flops for one in layer(its.cost.plan, its.stack).forward if one.kind == "attention"]
        for its in (plain, oss)
    ]
    assert sum(attention[1]) == pytest.approx(sum(attention[0]) * (1 + 128 / 1024) / 2)
    memory = [layer(its.cost.plan, its.stack).forward[-1].moved_bytes for its in (plain, oss)]
    assert memory[1] > memory[0]
    here = machine("megatron_bridge_h100").running(plain.stack)
    further = run_of({**MIXTURE, "notes": "with MTP layer", "layers": 7})
    heads = [predict_seconds(its.cost, here, its.topology).parts["head"] for its in (plain, further)]
    assert heads[1] == pytest.approx(2 * heads[0])
    graphs = run_of({**MIXTURE, "dtype": "fp8", "notes": "CUDA graph of the iteration"})
    host = {
        its.stack.name: layer(its.cost.plan, its.stack, its.precision).forward[-1].moved_bytes
        for its in (run_of({**MIXTURE, "dtype": "fp8"}), graphs)
    }
    assert host["Megatron-Bridge, graphs"] < host["Megatron-Bridge"]
    with pytest.raises(Infeasible, match="pads all experts to the busiest"):
        run_of({**MIXTURE, "stack": "KempnerForge"})


def test_hosts_of_four_gpus_have_no_switch():
    """Each pair has a third of the links; all four together have all of them."""
    topology = run_of({**DENSE, "devices_per_host": 4}).topology
    chip = machine("kempnerforge_h200").chip
    shares = {}
    for devices in (2, 4):
        where = group(topology, run_of({**DENSE, "fsdp": 8 // devices, "tensor": devices}).cost.plan.mesh, ("tensor",))
        shares[devices] = bandwidth(chip, "all_gather", where) / chip.link_bytes_per_second
    assert shares == {2: pytest.approx(1 / 3), 4: 1.0}
    assert bandwidth(replace(chip, peers=0), "all_gather", where) == chip.link_bytes_per_second
