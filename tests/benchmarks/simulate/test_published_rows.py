"""Rows of published runs become meshes, models and kernels of their precision."""

import pytest

from benchmarks.simulate.kernels import cast_bytes, layer
from benchmarks.simulate.links import bandwidth, group
from benchmarks.simulate.machines import machine
from benchmarks.simulate.published import run_of
from benchmarks.simulate.stack import CAST_BYTES, PRECISIONS
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
        ({"expert": 32}, "pipeline=2,expert=16,tensor=2"),
        ({"data": 1, "fsdp": 16}, "fsdp=4,pipeline=2,expert=4,tensor=2"),
        ({"data": 2}, "data=2,pipeline=2,expert=8,tensor=2"),  # an axis of their own
    ],
)
def test_devices_that_split_experts_are_counted_once(change, mesh):
    """The mesh has as many devices as the row, and each holds its part of the experts."""
    plan = run_of({**MIXTURE, **change}).cost.plan
    assert str(plan.mesh) == mesh
    assert plan.mesh.size == 64
    split = plan.size("expert") * plan.size("tensor")
    held = sum(weight.elements for weight in plan.weights.values() if "expert_mlp" in weight.spec.dims)
    assert held == 3 * 64 * 1024 * 512 * 8 // 2 // split // plan.shards


@pytest.mark.parametrize(("dtype", "name"), [("fp8-cs", "fp8"), ("fp8-mx (32x32)", "mxfp8"), ("nvfp4", "nvfp4")])
def test_narrow_operands_are_cast_and_multiplied_faster(dtype, name):
    """Matmuls with weights take the time of the higher rate, casts move bytes of operands, attention is as before."""
    run, plain = run_of({**DENSE, "dtype": dtype}), run_of(DENSE)
    assert run.precision == PRECISIONS[name]
    plan, h100 = plain.cost.plan, machine("h100_fsdp", "h100")
    before, after = layer(plan, h100.stack), layer(plan, h100.stack, run.precision)
    for old, new in zip(before.forward, after.forward, strict=True):
        assert old.flops == new.flops
        if old.kind == "attention":
            assert old == new
    moved = [sum(each.moved_bytes for each in its.forward if each.kind == "memory") for its in (before, after)]
    matmuls = {kernel.dims for kernel in before.forward if kernel.kind == "matmul"}
    assert moved[1] - moved[0] == pytest.approx(CAST_BYTES * sum(m * k for m, _, k, _ in matmuls))
    assert cast_bytes(plan).backward > cast_bytes(plan).forward / 2
    if name == "nvfp4":
        with pytest.raises(Infeasible, match="has no rate of fp4 matmuls"):
            h100.with_precision(run.precision)
    else:
        narrow = h100.with_precision(run.precision)
        pairs = zip(before.forward, after.forward, strict=True)
        times = [(old.seconds(h100), new.seconds(narrow)) for old, new in pairs if old.kind == "matmul"]
        assert all(0.5 <= new / old < 0.75 for old, new in times)


def test_every_second_layer_of_gpt_oss_has_a_window():
    """A token attends to half of 2,048 keys in one layer, and in the next computes three blocks of 64."""

    def attention(row):
        run = run_of({**row, "layers": 8})
        forward = layer(run.cost.plan, machine("megatron_bridge_h100").stack).forward
        return [kernel.flops for kernel in forward if kernel.kind == "attention"]

    (plain,), both = attention(MIXTURE), attention({**MIXTURE, "model": "gpt-oss-tiny"})
    assert sorted(both) == pytest.approx(sorted(plain * keys / 1024 for keys in (3 * 64, 1024)))


def test_all_wait_for_the_busiest_device():
    """Three times an equal share of rows is three times the matmuls of experts, and three times the bytes exchanged."""
    matmuls, sent = [], []
    stack = machine("megatron_bridge_h100").stack
    for factor in (1, 3):
        run = run_of({**MIXTURE, "capacity_factor": factor})
        matmuls.append(sum(each.flops for each in layer(run.cost.plan, stack).forward if each.kind == "matmul"))
        sent.append(sum(run.cost.sent["all_to_all", ("expert",)].values()))
    rows = 4 * 2048  # choices of a device's tokens, whose hidden features the tensor axis splits
    assert matmuls[1] - matmuls[0] == pytest.approx(2 * rows * 2 * 3 * 1024 * 512 / 2)
    assert sent[1] == 3 * sent[0]


def test_a_host_without_a_switch_has_links_to_each_peer():
    """Each pair has a seventh of the links of a host of eight MI300X; all together have all of them."""
    chip = machine("meshmark_gpus", "mi300x").chip
    shares = {}
    for devices in (2, 8):
        run = run_of({**DENSE, "kv_heads": 8, "fsdp": 8 // devices, "tensor": devices})
        where = group(run.topology, run.cost.plan.mesh, ("tensor",))
        shares[devices] = bandwidth(chip, "all_gather", where) / chip.link_bytes_per_second
    assert shares == {2: pytest.approx(1 / 7), 8: 1.0}
