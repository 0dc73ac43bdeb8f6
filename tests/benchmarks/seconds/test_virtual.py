"""Virtual devices share a host: a step takes the time of all their work together."""

import json
from dataclasses import replace

import pytest

from benchmarks.devices.topology import CPU, Topology
from benchmarks.seconds.kernels import attention
from benchmarks.seconds.machine import START
from benchmarks.seconds.machines import UnknownMachine, machine, parsed
from benchmarks.seconds.predicted import predict_seconds
from benchmarks.seconds.stack import MESHMARK, VIRTUAL
from strategies import PRESETS
from strategies.config import TrainConfig
from strategies.costs.predict import predict
from tests.benchmarks.seconds.virtual import CONSTANTS, FILE, HOST, ITS

MESHES = "data=8", "fsdp=8", "tensor=8", "context=8", "pipeline=8", "data=1"


def seconds(mesh, its=ITS, **options):
    """Predicted parts of a step."""
    strategy = mesh.partition("=")[0]
    strategy = "single" if mesh == "data=1" else strategy
    train = TrainConfig(**{"batch_size": 16, "microbatches": 16 if strategy == "pipeline" else 1, **options})
    cost = predict(strategy, PRESETS["nano"], mesh, train, CPU)
    return predict_seconds(cost, its, Topology(CPU, (8,)))


@pytest.mark.parametrize("mesh", MESHES)
def test_twice_the_cores_take_half_of_the_time(mesh):
    """With twice the host's rates and half of its latencies, all but the fixed part takes half of the time."""
    rates = ("flops_per_second", "memory_bytes_per_second", "link_bytes_per_second", "network_bytes_per_second")
    host = replace(HOST, **{name: 2 * getattr(HOST, name) for name in rates})
    constants = replace(CONSTANTS, kernel_seconds=CONSTANTS.kernel_seconds / 2, link_seconds=CONSTANTS.link_seconds / 2)
    larger = replace(ITS, chip=host, matmul_flops_per_second=host.flops_per_second, constants=constants)
    fixed = START.step_seconds
    assert seconds(mesh, larger).step_seconds - fixed == pytest.approx((seconds(mesh).step_seconds - fixed) / 2)


def test_matmuls_take_as_long_on_any_number_of_devices():
    """More virtual devices do the same matmuls with the same cores."""
    one, eight = seconds("data=1").parts, seconds("data=8").parts
    assert eight["matmul"] == pytest.approx(one["matmul"])
    assert eight["launches"] == pytest.approx(8 * one["launches"])
    assert eight["optimizer"] == pytest.approx(8 * one["optimizer"])


def test_a_bubble_costs_nothing():
    """While a stage waits, others have its cores."""
    assert "bubble" not in seconds("pipeline=8").parts
    plain = replace(ITS, stack=replace(VIRTUAL, shared=False))
    assert seconds("pipeline=8", plain).parts["bubble"] > 0


def test_hosts_share_nothing_but_their_network():
    """With one device on each host, each has its host's rates for itself; with several, they take turns."""
    cost = predict("data", PRESETS["nano"], "data=8", TrainConfig(16), CPU)
    fast = replace(ITS, chip=replace(HOST, network_bytes_per_second=1e15))
    parts = {shape: predict_seconds(cost, fast, Topology(CPU, shape)).parts for shape in ((8,), (2, 4), (8, 1))}
    for name in ("matmul", "optimizer", "launches"):
        assert parts[2, 4][name] == pytest.approx(parts[8,][name] / 2)
        assert parts[8, 1][name] == pytest.approx(parts[8,][name] / 8)


def test_stages_on_hosts_of_their_own_idle():
    """A stage that waits leaves its cores to others of its host only."""
    cost = predict("pipeline", PRESETS["nano"], "pipeline=4", TrainConfig(16, 4), CPU)
    parts = predict_seconds(cost, ITS, Topology(CPU, (4, 1))).parts
    assert parts["bubble"] / (sum(parts.values()) - parts["fixed"]) > 0.2
    assert "bubble" not in predict_seconds(cost, ITS, Topology(CPU, (4,))).parts


def test_blocks_of_scores_have_the_flops_of_the_formulas():
    """Attention skips a quarter of the scores, or on a ring what its chunks do not need, and repeats one matmul."""
    for mesh in ("data=1", "context=8"):
        strategy = "single" if mesh == "data=1" else "context"
        cost = predict(strategy, PRESETS["nano"], mesh, TrainConfig(16), CPU)
        forward, backward = attention(cost.plan, VIRTUAL)
        found = sum(each.flops for each in (*forward, *backward)) * cost.plan.layers * cost.plan.mesh.size
        model = PRESETS["nano"]
        scores = 6 * model.layers * 2 * model.embed * model.sequence * 16 * model.sequence
        wanted = scores + cost.flops["attention again"] + cost.flops["masked"]
        assert found == pytest.approx(wanted, rel=0.01)


def test_large_temporaries_are_allocated_anew():
    """Temporaries of more than 32 MiB cost their first use; smaller ones do not."""
    its = replace(ITS, stack=replace(VIRTUAL, fresh_bytes=8))
    assert seconds("data=1", its).parts["allocation"] > 0
    assert "allocation" not in seconds("data=8", its).parts


def test_a_machine_file_may_hold_all_specifications(tmp_path):
    """A file without a chip that is known holds its specifications whole; and bytes of its stack that were measured."""
    told = FILE | {"passes": {"optimizer_bytes": 40}}
    path = tmp_path / "host.json"
    path.write_text(json.dumps(told))
    assert machine(str(path)) == replace(ITS, stack=replace(VIRTUAL, optimizer_bytes=40))
    with pytest.raises(UnknownMachine, match="chip 'cpu' is not known"):
        parsed("host", {**told, "specifications": {"memory_bytes": 1}})


def test_other_stacks_share_nothing():
    """Devices of their own do not wait for each other's kernels."""
    assert not MESHMARK.shared
