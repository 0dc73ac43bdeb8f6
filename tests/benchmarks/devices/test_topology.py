"""Topologies are parsed, printed, described and refused."""

import importlib
import re

import pytest

from benchmarks.devices import topology as module
from benchmarks.devices.chips import CHIPS, GPUS
from benchmarks.devices.topology import Topology

HERE = [
    "v4:16x16x16",
    "v5e:16x16",
    "v5p:4x4x4",
    "v5p:16x16x24",
    "v6e:1x1",
    "tpu7x:2x2x1",
    "h100:16x8",
    "b200:1x8",
    "cpu:8",
    "cpu:4x1",
]


@pytest.mark.parametrize("text", HERE)
def test_parse_and_print_are_inverse(text):
    """Parsing and printing a topology are inverse."""
    assert str(Topology.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v5p", "cannot be read; write one as v5p:4x4x4, h100:16x8 or cpu:1024"),
        ("v5p:4xx4", "cannot be read"),
        ("v9:4x4", f"'v9' is not known; known kinds are {', '.join(CHIPS)}, cpu"),
        ("v5e:16", "the shape of v5e has 2 dims of at least 1; write one as v5e:4x4"),
        ("v5e:4x4x4", "the shape of v5e has 2 dims of at least 1; write one as v5e:4x4"),
        ("v5p:4x4", "the shape of v5p has 3 dims of at least 1; write one as v5p:4x4x4"),
        (
            "v6e:32x32",
            "has 1,024 chips, and a slice of v6e has at most 256; take a smaller one, as v6e:4x4, or virtual",
        ),
        ("v5p:16x16x32", "has 8,192 chips, and a slice of v5p has at most 6,144; take a smaller one, as v5p:4x4x4"),
        ("h100:8", "write one as h100:16x8"),
        ("h100:0x8", "write one as h100:16x8"),
        ("cpu:4x4x4", "the shape of cpu has 1 or 2 dims of at least 1; write one as cpu:1024 or cpu:4x1"),
    ],
)
def test_a_topology_that_does_not_exist_is_refused(text, message):
    """A topology that does not exist is refused with what is wrong and how to write one."""
    with pytest.raises(ValueError, match=re.escape(message)):
        Topology.parse(text)


@pytest.mark.parametrize(
    ("text", "spelled"), [("H100:1x8", "h100:1x8"), ("V5E:4x4", "v5e:4x4"), ("v5litepod:4x4", "v5e:4x4")]
)
def test_another_spelling_is_read(text, spelled):
    """Capital letters and Cloud TPU's names are parsed, and printed in our spelling."""
    assert str(Topology.parse(text)) == spelled


def test_every_kind_is_described():
    """Every chip has positive figures and a source; memory is faster than links, and links than the network."""
    for name, chip in CHIPS.items():
        assert chip.source, name
        figures = [
            *(chip.flops_per_second, chip.memory_bytes, chip.memory_bytes_per_second),
            *(chip.link_bytes_per_second, chip.network_bytes_per_second),
        ]
        assert min(figures) > 0, name
        # Memory is faster than links and links than the network, or a figure is in the wrong unit.
        assert chip.memory_bytes_per_second > chip.link_bytes_per_second > chip.network_bytes_per_second, name
        assert (chip.slice_chips > 0) == (chip.torus_dims > 0) == (chip.platform == "tpu"), name
    assert set(GPUS) == {name for name, chip in CHIPS.items() if chip.platform == "cuda"}
    assert {chip.platform for chip in CHIPS.values()} == {*module.COMPILERS, "gpu"}


@pytest.mark.parametrize(
    ("kind", "gigabytes"),
    [("a100_40gb", 40), ("h100", 80), ("h200", 141), ("b200", 180), ("gb200", 186), ("gb300", 279)],
)
def test_a_gpu_holds_more_than_decimal_gigabytes(kind, gigabytes):
    """A GPU's memory, as XLA describes it, is over 5% above its decimal gigabytes, and at most as many binary ones."""
    assert 1.05 * gigabytes * 1e9 < CHIPS[kind].memory_bytes <= gigabytes * 2**30


def test_memory_bandwidth_agrees_with_xlas_description():
    """The memory bandwidth in XLA's description of a GPU is 95% to 100.1% of the published figure."""
    for kind, told in GPUS.items():
        assert 0.95 < told["memory_bandwidth"] / CHIPS[kind].memory_bytes_per_second < 1.001, kind


@pytest.mark.parametrize(("text", "extra"), [("v5e:2x8", "tpu"), ("h100:3x8", "gpu")])  # asked for nowhere else
def test_a_compiler_that_is_missing_is_named(text, extra, monkeypatch):
    """Without the compiler of a topology its devices raise an error that names the extra to install."""
    monkeypatch.setitem(module.COMPILERS, Topology.parse(text).platform, (extra, "no-such-package"))
    assert Topology.parse(text).compiler_version is None
    with pytest.raises(ValueError, match=re.escape(f"pip install -e '.[{extra}]'")):
        Topology.parse(text).devices()


def test_gpus_of_other_vendors_are_predicted_but_not_compiled_for():
    """There is no compiler for them, and each of eight in a host has a seventh of its links to each other."""
    topology = Topology.parse("mi300x:2x8")
    assert topology.compiler_version is None
    with pytest.raises(ValueError, match="steps for mi300x are predicted, but not compiled here"):
        topology.devices()
    assert CHIPS["mi300x"].peers == 7


def test_virtual_devices_are_those_of_jax():
    """A cpu topology has as many virtual devices as asked for, and raises an error if JAX has fewer."""
    assert [len(Topology.parse(text).devices()) for text in ("cpu:4", "cpu:4x1", "cpu:4x2")] == [4, 4, 8]
    with pytest.raises(ValueError, match="JAX has started with 8 virtual devices"):
        Topology.parse("cpu:9").devices()


@pytest.mark.parametrize(("text", "hosts"), [("cpu:8", 1), ("cpu:4x2", 4), ("h100:2x8", 2), ("v5e:4x4", 1)])
def test_hosts_are_of_gpus_and_cpus(text, hosts):
    """The first of two extents; a torus has no hosts whose links would end there."""
    assert Topology.parse(text).hosts == hosts


def test_attention_for_absent_gpus_is_as_wide_as_they_allow(monkeypatch):
    """cuDNN's attention asks an attached GPU how wide heads may be; for absent ones their kind answers."""
    attention = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
    monkeypatch.setattr(attention, "check_compute_capability", lambda least: False)
    monkeypatch.setattr(module, "_devices", lambda topology: ())
    for kind, able in (("a100_80gb", False), ("h100", True), ("b200", True), ("a100_80gb", False)):
        Topology(kind, (1, 8)).devices()
        assert (attention.check_compute_capability("8.0"), attention.check_compute_capability("9.0")) == (True, able)
