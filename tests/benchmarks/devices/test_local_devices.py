"""Devices at hand are the topology that they are all devices of."""

from types import SimpleNamespace
from typing import Any

import jax
import pytest

from benchmarks.devices.attached import topology_of
from benchmarks.devices.chips import CHIPS, GPUS
from benchmarks.devices.topology import Topology
from benchmarks.simulate.machines import CARRIED_ERROR, machine, machine_for_run, nearest_machine
from tests.benchmarks.simulate.host import FILE, parsed


@pytest.mark.parametrize("text", ["v4:2x2x1", "v5e:4x4", "v5p:2x2x2", "v6e:2x4", "tpu7x:2x2x1"])
@pytest.mark.libtpu
def test_the_devices_of_a_slice_are_that_slice(text):
    """The inverse of `Topology.devices`."""
    assert topology_of(Topology.parse(text).devices()) == Topology.parse(text)


@pytest.mark.parametrize("kind", GPUS)
def test_gpus_are_counted_by_host(kind):
    """As many processes as hosts, which have equally many."""
    names = {"device_kind": GPUS[kind]["name"], "platform": "gpu"}
    devices = [SimpleNamespace(**names, process_index=host) for host in range(3) for _ in range(4)]
    assert str(topology_of(devices)) == f"{kind}:3x4"


def test_virtual_devices_are_here():
    """All those of this process; and of several processes as many hosts."""
    assert topology_of(jax.devices()) == Topology("cpu", (8,))
    several = [SimpleNamespace(device_kind="cpu", platform="cpu", process_index=host) for host in (0, 0, 1, 1)]
    assert str(topology_of(several)) == "cpu:2x2"


def test_devices_that_are_not_known_are_refused():
    """With what is known; and a part of a torus with what to do."""
    with pytest.raises(ValueError, match="specifications of 'abacus' are not known; known are Tesla V100"):
        topology_of([SimpleNamespace(device_kind="abacus", platform="gpu", process_index=0)])
    part = [
        SimpleNamespace(device_kind="TPU v5 lite", platform="tpu", process_index=0, coords=(x, y, 0))
        for x, y in ((0, 0), (0, 1), (1, 0))
    ]
    with pytest.raises(ValueError, match="these 3 devices are not all of v5e:2x2; start a whole slice"):
        topology_of(part)
    uneven = [SimpleNamespace(device_kind="cpu", platform="cpu", process_index=host) for host in (0, 0, 1)]
    with pytest.raises(ValueError, match="these 3 devices are not all of cpu:2x1; start a whole slice"):
        topology_of(uneven)


def test_a_calibrated_file_keeps_its_figures():
    """Whether the devices are named or not: the rate that was measured, and float32 as GPUs multiply it."""
    chip = vars(CHIPS["h100"]) | {"flops_per_second": 6e14}
    told = FILE | {"devices": [GPUS["h100"]["name"]], "specifications": chip}
    here, named = parsed(told), parsed(told, "h100")
    assert here == named
    assert vars(here.chip) == chip


@pytest.mark.parametrize(
    ("name", "topology"),
    [("b200_megatron_core", "gb200:1x4"), ("a100_megatron", "h100:1x8"), ("h100_fsdp", "v100:1x8")],
)
def test_constants_of_other_devices_have_an_assumed_error(name, topology):
    """A file's error holds for the devices that it names. Others keep their own specifications; the source says so."""
    topology = Topology.parse(topology)
    its = machine_for_run(name, topology)
    assert (its.chip, its.error, its.without) == (topology.chip, CARRIED_ERROR, {})
    assert its.assumed
    assert its.source.endswith(f"constants of {name}, carried over to {topology.kind}")
    assert not machine(name).assumed


def test_unknown_fields_and_rules_are_named():
    """With what to do, or with those that are known; and a constant that no kernel has."""
    rules: Any = FILE["rules"]
    for change, problem in (
        ({"rules": {"waits": {}}}, "rules has waits; it can have attention, embedding_and_head"),
        ({"rules": rules | {"kernels": rules["kernels"] | {"logit_bytes": 1e40}}}, "logit_bytes"),
        ({"unfused": True}, "has an unknown field 'unfused'; remove it, or write the file again with `meshmark"),
    ):
        with pytest.raises(ValueError, match=problem):
            parsed({**FILE, **change})


@pytest.mark.parametrize("kind", GPUS)
def test_the_tables_of_gpus_agree(kind):
    """Cores are XLA's, and each of their units multiplies and adds a float32 number in a cycle."""
    gpu, chip = GPUS[kind], CHIPS[kind]
    assert chip.cores == gpu["core_count"]
    flops = 2 * gpu["fpus_per_core"] * gpu["core_count"] * gpu["clock_rate_ghz"] * 1e9
    assert chip.float32_share * chip.flops_per_second == pytest.approx(flops)


def test_rates_that_were_measured_are_not_those_of_another_chip():
    """A calibrated file has no specifications of its own for other devices, so it is refused, with the way out."""
    told = FILE | {"devices": [GPUS["a100_80gb"]["name"]], "specifications": vars(CHIPS["a100_80gb"])}
    assert not parsed(told, "a100_80gb").name.endswith("on a100_80gb")
    with pytest.raises(ValueError, match=r"mine was measured on NVIDIA A100-SXM4-80GB, .* calibrate on h100, or omit"):
        parsed(told, "h100")


@pytest.mark.parametrize(
    ("kind", "stack", "name"),
    [
        ("gb300", "PyTorch FSDP", "h100_fsdp"),
        ("h100_pcie", "PyTorch FSDP", "h100_fsdp"),
        ("gb300", "meshmark", "meshmark_gpus"),
    ],
)
def test_constants_are_carried_over_inside_a_generation(kind, stack, name):
    """Where a stack has files of several generations, that of the same compute capability is taken."""
    assert f"constants of {name}, carried over to {kind}" in nearest_machine(kind, stack).source


def test_a_run_is_predicted_by_a_machine_of_its_devices():
    """Virtual devices are measured, and a machine of other devices is refused; so are names of none."""
    refused = {
        None: "--machine meshmark_tpus: virtual CPU devices share the cores of a host, .* remove --machine",
        "cpu:2x4": "virtual CPU devices share the cores",
        "cpu:2x1": "machine meshmark_tpus is one of tpu devices, and these are cpu",
        "h100:1x8": "machine meshmark_tpus is one of tpu devices, and h100 is not",
    }
    for topology, problem in refused.items():
        with pytest.raises(ValueError, match=problem):
            machine_for_run("meshmark_tpus", topology and Topology.parse(topology))
    assert machine_for_run("meshmark_tpus", Topology.parse("v5e:4x4")).name == "meshmark_tpus"


@pytest.mark.parametrize("kind", ["h100", "h200"])
def test_a_machine_of_several_kinds_has_the_specifications_of_these_devices(kind, monkeypatch):
    """Whether they are here or of a topology."""
    assert machine_for_run("meshmark_gpus", Topology.parse(f"{kind}:1x8")).chip == CHIPS[kind]
    here = SimpleNamespace(device_kind=GPUS[kind]["name"], platform="gpu")
    monkeypatch.setattr(jax, "devices", lambda: [here])
    monkeypatch.setattr(jax, "local_devices", lambda: [here])
    assert machine_for_run("meshmark_gpus", None).chip == CHIPS[kind]
    here.device_kind = "NVIDIA A10G"
    with pytest.raises(ValueError, match="chip 'NVIDIA A10G' is not known; known are v4"):
        machine_for_run("meshmark_gpus", None)
