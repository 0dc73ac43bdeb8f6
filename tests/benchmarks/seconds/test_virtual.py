"""Virtual devices share a host: a step takes the time of all their work together."""

import json
from dataclasses import replace

import pytest

from benchmarks.devices.topology import CPU, Topology
from benchmarks.seconds.kernels import attention
from benchmarks.seconds.machine import START
from benchmarks.seconds.machines import UnknownMachine, machine, parsed
from benchmarks.seconds.network import Network
from benchmarks.seconds.predicted import predict_seconds
from benchmarks.seconds.stack import MESHMARK, VIRTUAL
from strategies import PRESETS, GPTConfig, MeshSpec
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


def test_devices_that_are_alone_wait_for_their_own_threads():
    """Kernels cost more launches on as many devices as cores; on more, other devices have work for the cores."""
    its = replace(ITS, stack=replace(VIRTUAL, cores=2, alone_launches=3))
    launches = 2 * PRESETS["nano"].layers * sum(VIRTUAL.kernels)
    more = seconds("data=2", its).step_seconds - seconds("data=2").step_seconds
    assert more == pytest.approx((3 - 1) * launches * CONSTANTS.kernel_seconds)
    assert seconds("data=8", its) == seconds("data=8")


def test_cores_idle_only_while_all_devices_wait():
    """Each device adds the latency of its group; a collective of the whole mesh adds a wait of all devices, and a
    shorter one right after another.
    """
    its = replace(ITS, stack=replace(VIRTUAL, wait_seconds=1e-4, again_seconds=3e-5))
    network = Network(its, Topology(CPU, (8,)), MeshSpec.parse("data=2,tensor=4"))
    for axes, hops, wait in ((("data",), 1, 0), (("tensor",), 3, 0), (("data", "tensor"), 7, 1e-4)):
        found = 8 * network.seconds("all_reduce", axes, sent_bytes=0)
        assert found == pytest.approx(8 * hops * CONSTANTS.link_seconds + wait)
    several = 8 * network.seconds("all_reduce", ("data", "tensor"), sent_bytes=0, calls=5, again=3)
    assert several == pytest.approx(5 * 8 * 7 * CONSTANTS.link_seconds + 2 * 1e-4 + 3 * 3e-5)


def test_no_more_devices_than_cores_wait_shortly():
    """With a core for each device, no thread is taken off its core by another device's work."""
    for cores, wait in ((7, 1e-4), (8, 3e-5)):
        its = replace(ITS, stack=replace(VIRTUAL, cores=cores, wait_seconds=1e-4, again_seconds=3e-5))
        network = Network(its, Topology(CPU, (8,)), MeshSpec.parse("data=8"))
        found = 8 * network.seconds("all_reduce", ("data",), sent_bytes=0, calls=5)
        assert found == pytest.approx(5 * (8 * 7 * CONSTANTS.link_seconds + wait))


def test_tokens_are_gathered_right_after_a_scatter():
    """Of what a layer's sequence parallelism waits for, only the reduce-scatters come after work of their own."""
    its = replace(ITS, stack=replace(VIRTUAL, wait_seconds=1e-4, again_seconds=3e-5))
    more = seconds("tensor=8", its).parts["sums of layers"] - seconds("tensor=8").parts["sums of layers"]
    branches = PRESETS["nano"].layers * 2
    assert more == pytest.approx(branches * (2 * 1e-4 + 3 * 3e-5))


def test_what_is_kept_is_written_and_read():
    """Without rematerialisation more is kept, which costs memory traffic on virtual devices."""
    light = replace(ITS, stack=replace(VIRTUAL, kept_bytes=0))
    cost = {remat: seconds("data=8", remat=remat).parts["memory"] for remat in ("none", "dots", "full")}
    free = {remat: seconds("data=8", light, remat=remat).parts["memory"] for remat in cost}
    extra = {remat: cost[remat] - free[remat] for remat in cost}
    assert extra["none"] > 2 * extra["dots"] > 4 * extra["full"] > 0
    assert free["none"] < free["dots"]


def test_all_that_layers_send_is_waited_for():
    """Nothing hides the third gather of a branch's inputs: all bytes take their time, and all calls their latency.

    A device also copies its own part, and all tokens into the layout of each collective.
    """
    cost = predict("tensor", PRESETS["nano"], "tensor=8", TrainConfig(16), CPU)
    sent = sum(each.sent_bytes for each in cost.traffic if each.what == "layers")
    calls = PRESETS["nano"].layers * 2 * (3 + 2)  # two branches: three gathers and two reduce-scatters
    bytes_per_second = HOST.link_bytes_per_second * CONSTANTS.link_efficiency
    elements = cost.plan.share.tokens * PRESETS["nano"].embed
    copies = calls * VIRTUAL.token_bytes * elements / ITS.reached.memory_bytes_per_second
    wanted = 8 * (sent * 8 / 7 / bytes_per_second + calls * 7 * CONSTANTS.link_seconds + copies)
    assert seconds("tensor=8").parts["sums of layers"] == pytest.approx(wanted)


def test_each_matrix_of_a_batch_costs_its_call():
    """Attention takes longer by the FLOPs of its calls: seven for each sequence, head and block of queries."""
    cost = predict("data", PRESETS["nano"], "data=8", TrainConfig(16), CPU)
    plain, called = (attention(cost.plan, replace(VIRTUAL, matrix_flops=flops)) for flops in (0, 100))
    with_calls, without = (sum(each.flops for each in (*ahead, *back)) for ahead, back in (called, plain))
    assert with_calls - without == pytest.approx(100 * 7 * 2 * (16 / 8) * PRESETS["nano"].heads)


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
    """The C library keeps small temporaries of a device, a part of larger ones, and next to nothing beyond 32 MiB."""
    its = replace(ITS, stack=replace(VIRTUAL, fresh_bytes=8))
    assert "allocation" not in seconds("data=8", its).parts
    rate = ITS.reached.memory_bytes_per_second
    for layers, share in ((1, 0.0), (3, 0.28), (5, 0.92), (10, 1.0)):
        model = GPTConfig(layers=layers, embed=256, heads=8, vocab=512, sequence=128)
        cost = predict("data", model, "data=8", TrainConfig(16), CPU)
        whole = 8 * 8 * sum(cost.temporaries.values()) / rate
        paid = predict_seconds(cost, its, Topology(CPU, (8,))).parts.get("allocation", 0.0)
        assert paid / whole == pytest.approx(share, abs=0.01)


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
