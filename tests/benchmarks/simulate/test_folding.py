"""Rows of published runs become meshes whose experts lie over other axes, and kernels of their precision and stack."""

import math
from dataclasses import replace

import pytest

from benchmarks.simulate.kernels import layer
from benchmarks.simulate.layer import LayerEvents
from benchmarks.simulate.links import Network, bandwidth, group
from benchmarks.simulate.machines import machine
from benchmarks.simulate.published import run_of
from benchmarks.simulate.queues import Event, Wait
from benchmarks.simulate.stack import PRECISIONS
from benchmarks.simulate.stacks import KEMPNERFORGE, MAXTEXT, TORCHTITAN
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
        ({"expert_tensor": 2}, "data=2,pipeline=2,expert=8,tensor=2"),
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
    row = {**DENSE, "stack": "MaxText"}
    run, plain = run_of({**row, "dtype": dtype}), run_of(row)
    assert run.precision == PRECISIONS[name]
    cast = PRECISIONS[name].cast_bytes
    plan, h100 = plain.cost.plan, machine("torchtitan_gpus", "h100")
    stack = replace(TORCHTITAN, kernels=replace(TORCHTITAN.kernels, copies_shards=False))
    before, after = layer(plan, stack), layer(plan, stack, run.precision)
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
    for name, change in {"as it is": {}, "eager": {"variant": "no compile"}, "each": {"stack": "KempnerForge"}}.items():
        run = run_of({**DENSE, "recompute": "full", **change})
        here = machine("torchtitan_gpus", "h100").running(run.stack)
        seconds[name] = predict_seconds(run.cost, here, run.topology).parts
    assert seconds["eager"]["memory"] > 2 * seconds["as it is"]["memory"]
    assert seconds["each"]["layer collectives"] > 1.5 * seconds["as it is"]["layer collectives"]
    assert KEMPNERFORGE.fitted_as == "KempnerForge"


TOKENS = 2048
"""Of a microbatch of `MIXTURE` on a device. The two devices of its tensor axis have half of the heads and of the hidden
features, and of the tokens between matmuls."""
HIDDEN = TOKENS * (4 * 512 + 512) // 2
"""Hidden features of a device: each token has four experts, and the shared one."""
CHOICES = TOKENS * 4 // 2
"""Rows of experts on a device."""
PARTS = {
    "core_attn": (2 * 2 * TOKENS * TOKENS // 2 * 8 * 128 // 2, 0),  # each token has half of the keys
    "layernorm": (0, 2 * (2 + 2) * TOKENS // 2 * 1024),
    "moe_act": (0, (2 + 2 + 2) * HIDDEN),
    "mla_up_proj": (2 * TOKENS * (1536 * 8 * (128 + 64) + 512 * 8 * 2 * 128) // 2, 0),
    "mlp": (0, 0),  # of dense layers
}
"""FLOPs of matmuls and of attention, and bytes of passes over memory."""


@pytest.mark.parametrize("recompute", [*PARTS, "layernorm + moe_act", "mla_up_proj + mlp"])
def test_parts_of_a_layer_are_computed_again(recompute):
    """The backward pass has further FLOPs, and bytes of passes over memory, of the parts that a row names."""
    row = {**MIXTURE, "model": "deepseek-tiny"} if "mla" in recompute else MIXTURE
    counted = []
    for said in ("none", recompute):
        run = run_of({**row, "recompute": said})
        kernels = layer(run.cost.plan, run.stack).inputs
        moved = sum(kernel.moved_bytes for kernel in kernels if kernel.kind == "memory")
        counted.append((sum(kernel.flops for kernel in kernels), moved))
    more = [after - before for before, after in zip(*counted, strict=True)]
    assert more == pytest.approx([sum(of) for of in zip(*map(PARTS.get, recompute.split(" + ")), strict=True)])


@pytest.mark.parametrize(("row", "recompute"), [(MIXTURE, "layrnorm + moe_act"), (DENSE, "mlp + layernorm")])
def test_a_part_that_is_not_known_is_refused(row, recompute):
    """A misspelt part does not count for nothing, nor does the MLP of a dense model."""
    unknown = recompute.partition(" ")[0]
    with pytest.raises(Infeasible, match=f"names {unknown}; parts that are known are core_attn, layernorm, moe_act"):
        run_of({**row, "recompute": recompute})


def kernels_of(row, kind, stack=None):
    """Kernels of a kind of a layer's forward and backward pass."""
    run = run_of(row)
    its = layer(run.cost.plan, stack or run.stack)
    return [[one for one in way if one.kind == kind] for way in (its.forward, its.backward)]


@pytest.mark.parametrize(("recompute", "again"), [("none", 0), ("core_attn", 4)])
def test_latent_attention_that_is_not_fused_passes_over_all_scores(recompute, again):
    """4 bytes of each forward, 6 backward, and 4 to repeat it; two matmuls of heads of 192 and 128 features."""
    row = {**MIXTURE, "stack": "NeMo", "model": "deepseek-tiny", "recompute": recompute}
    scores = 8 // 2 * 2048**2  # of a sequence on a device
    for kind, wanted in (("memory", (4, 6 + again)), ("matmul", (2 * 320, 2 * 320 * (2 + again // 4)))):
        of = "moved_bytes" if kind == "memory" else "flops"
        both = (kernels_of({**row, "variant": name}, kind) for name in ("", "unfused attention"))
        less, more = ([sum(getattr(one, of) for one in way) for way in ways] for ways in both)
        assert [a - b for a, b in zip(more, less, strict=True)] == pytest.approx([scores * each for each in wanted])


def test_every_second_layer_of_gpt_oss_has_a_window():
    """On average a token attends to half of 2,048 keys in one layer, and in the next computes three blocks of 64."""
    row = {**MIXTURE, "model": "gpt-oss-tiny"}
    (plain,), (window, dense) = (kernels_of(one, "attention")[0] for one in (MIXTURE, row))
    assert [window.flops, dense.flops] == pytest.approx([plain.flops * keys / 1024 / 2 for keys in (3 * 64, 1024)])
    assert window.moved_bytes == dense.moved_bytes == plain.moved_bytes / 2
    with pytest.raises(Infeasible, match="context=2: there are no formulas for a ring"):
        run_of({**row, "data": 8, "context": 2})


def test_experts_of_gpt_oss_have_biases():
    """For each element of a token's choices Megatron-Core moves 28 bytes more forward and 36 more backward."""
    plain, biased = (kernels_of({**MIXTURE, "model": name}, "memory") for name in ("", "gpt-oss-tiny"))
    for before, after, moved in zip(plain, biased, (28, 36), strict=True):
        assert after[-1].moved_bytes - before[-1].moved_bytes == pytest.approx(moved * CHOICES * 1024)


def test_a_further_token_has_a_loss_of_its_own():
    """With a layer that predicts one more token the head takes twice as long."""
    plain, further = run_of(MIXTURE), run_of({**MIXTURE, "mtp_layers": 1, "layers": 7})
    here = machine("megatron_bridge_h100").running(plain.stack)
    heads = [predict_seconds(its.cost, here, its.topology).parts["head"] for its in (plain, further)]
    assert heads[1] == pytest.approx(2 * heads[0])


def test_graphs_launch_nothing_and_activate_in_matmuls():
    """Seconds do not grow with those of a launch, and passes over hidden features, 6 and 10 bytes of each, are gone.

    Without graphs, and with launches so long that only they count, a layer has 14 + 45 forward and 28 + 80 backward,
    and 2 and 4 for each of its 8 experts: 8 devices, two of them along the tensor axis, split 64.
    """
    row = {**MIXTURE, "data": 32, "pipeline": 1}
    runs = run_of(row), run_of({**row, "variant": "CUDA graphs"})
    more = []
    for run in runs:
        here = machine("megatron_bridge_h100").running(run.stack)
        slow = [replace(here, constants=replace(here.constants, kernel_seconds=seconds)) for seconds in (1.0, 2.0)]
        before, after = (predict_seconds(run.cost, each, run.topology).step_seconds for each in slow)
        more.append(after - before)
    assert more == pytest.approx([8 * 2 * (14 + 45 + 28 + 80 + 8 * (2 + 4)), 0])
    plain, graphs = (kernels_of({**MIXTURE, "variant": name}, "memory") for name in ("", "CUDA graphs"))
    for before, after, moved in zip(plain, graphs, (6, 10), strict=True):
        assert before[-1].moved_bytes - after[-1].moved_bytes == pytest.approx(moved * HIDDEN)


def test_a_plain_all_to_all_sends_a_token_to_each_of_its_experts(monkeypatch):
    """Otherwise a device with several of the four experts of a token receives it once; eight have eight of 64 each.

    NeMo sends as much, and hides none of it behind another microbatch, even with several chunks on a stage.
    """
    sent, event = [], Network.event

    def recorded(*given):
        sent.extend([given[4]] if given[2] == "all_to_all" else [])
        return event(*given)

    monkeypatch.setattr(Network, "event", recorded)
    for change in ({}, {"variant": "alltoall"}, {"stack": "NeMo", "virtual_stages": 2}):
        run = run_of({**MIXTURE, **change})
        network = Network(machine("megatron_bridge_h100").running(run.stack), run.topology, run.cost.plan.mesh)
        items = [*LayerEvents(run.cost.plan, run.cost.traffic, network, run.cost.plan.layers).events("forward")]
        assert Wait("layer") in items  # half of the collectives over the tensor axis
        waited = [one for one in items if isinstance(one, Event) and one.part == "layer collectives" and not one.labels]
        assert len(waited) == 2 + 2  # dispatch and combine; the other half
    choices, devices = CHOICES * 1024 * 2 * 7 / 8, 8 * (1 - math.comb(56, 4) / math.comb(64, 4))
    assert sent == pytest.approx([choices * devices / 4] * 2 + [choices] * 4)  # dispatch and combine


@pytest.mark.parametrize(("model", "copies"), [("", 2), ("gpt-oss-tiny", 2 + 3)])
@pytest.mark.parametrize(("kind", "file"), [("tpu7x", "maxtext_tpu7x"), ("h100", "maxtext_gpus")])
def test_a_tpu_copies_rows_by_index(model, copies, kind, file):
    """Each takes 40 ns: by expert and back, and for three biases. A GPU takes no more than for their bytes."""
    stack = machine(file, kind).running(MAXTEXT).stack
    ways = kernels_of({**MIXTURE, "model": model}, "memory", stack)
    expected = copies * CHOICES * 40e-9 if kind == "tpu7x" else 0
    assert [way[-1].copy_seconds for way in ways] == pytest.approx([expected] * 2)


@pytest.mark.parametrize(("features", "padded"), [(64, 128), (128, 128), (192, 256)])
def test_a_tpu_pads_heads(features, padded):
    """To a multiple of 128 features. A GPU does not."""
    (tpu,), (gpu,) = (
        kernels_of({**DENSE, "head_dim": features}, "attention", machine(file, kind).running(MAXTEXT).stack)[0]
        for file, kind in (("maxtext_tpu7x", "tpu7x"), ("maxtext_gpus", "h100"))
    )
    assert tpu.flops == pytest.approx(gpu.flops * padded / features)
    assert gpu.flops == pytest.approx(2 * 2 * 4096 * 4096 / 2 * 32 * features / 4)


def test_mixtures_that_pad_to_the_busiest_expert_have_to_say_how_busy_it_is():
    """KempnerForge pads, and no source says so."""
    row = {**MIXTURE, "stack": "KempnerForge"}
    with pytest.raises(Infeasible, match=r"pads all experts to the busiest.*; set capacity_factor"):
        run_of(row)
    assert run_of({**row, "capacity_factor": 3}).stack is KEMPNERFORGE


@pytest.mark.parametrize("stack", ["Megatron-Bridge", "KempnerForge"])
def test_all_wait_for_the_busiest_device(stack):
    """Three times an equal share of rows is three times the matmuls of experts, and three times the bytes exchanged."""
    matmuls, sent = [], []
    for factor in (1, 3):
        run = run_of({**MIXTURE, "stack": stack, "capacity_factor": factor})
        matmuls.append(sum(each.flops for each in layer(run.cost.plan, run.stack).forward if each.kind == "matmul"))
        sent.append(sum(run.cost.sent["all_to_all", ("expert", "tensor")].values()))
    rows = 4 * 2048 // 2  # choices of a device's tokens, which the tensor axis splits
    assert matmuls[1] - matmuls[0] == pytest.approx(2 * rows * 2 * 3 * 1024 * 512)
    assert sent[1] == 3 * sent[0]


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
