"""Facts about chips are in strategies/backends, and nowhere else among the strategies."""

import re
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from strategies.backends.backend import (
    GPU,
    KINDS,
    NVIDIA_GPU,
    PLATFORMS,
    TPU,
    V5E,
    Backend,
    backend_for,
    backend_of,
    private,
)
from strategies.backends.topologies import DEVICES_PER_CHIP
from tests.processes import ROOT

STRATEGIES = ROOT / "strategies"
MODULES = sorted(path.relative_to(STRATEGIES) for path in STRATEGIES.rglob("*.py"))
ELSEWHERE = [path for path in MODULES if path.parts[0] != "backends"]
KIND_NAMES = {part for kind in KINDS for part in kind.split() if re.search(r"\d", part)}
CHIPS = {*DEVICES_PER_CHIP, *KIND_NAMES, "v5litepod", "v6", "tpu7", "a100"} - {"cpu"}
NAMES = re.compile(rf"(?<![a-z0-9])({'|'.join(CHIPS)})s?(?![a-z0-9])|cuda|nccl|rccl|gloo|libtpu", re.IGNORECASE)
"""Chips, also in the plural; a platform, transports and a compiler."""
MEASURED = re.compile(r"\bsimulated\b|\d ms\b|\bmilliseconds?\b", re.IGNORECASE)
CITED = {Path("core/traffic.py"): {"NCCL tests, doc/PERFORMANCE.md"}}
"""Titles of sources."""


def text_of(path: Path) -> str:
    """A module without the titles of its sources."""
    text = (STRATEGIES / path).read_text()
    for title in CITED.get(path, ()):
        assert title in text
        text = text.replace(title, "")
    return text


def test_no_strategy_names_a_chip() -> None:
    """It asks the backend for a fact: neither code nor docstrings have a chip's name, a transport's or a compiler's."""
    found = {path: NAMES.findall(text_of(path)) for path in ELSEWHERE}
    assert {path: names for path, names in found.items() if names} == {}


def test_what_was_measured_is_in_experiments() -> None:
    """The code keeps the reason, and docs/experiments the times."""
    assert MEASURED.search("a step takes 692 ms")
    assert [path for path in MODULES if MEASURED.search(text_of(path))] == []


@pytest.mark.parametrize(
    "text", ["on 128 H100s", "v5e:16x16", '"TPU v5 lite"', "kind in V5E_KINDS", 'platform == "cuda"', "NCCL", "libtpu"]
)
def test_the_name_of_a_chip_is_found(text: str) -> None:
    """In prose, in code and in the text of a topology."""
    assert NAMES.search(text)


def test_a_device_has_the_record_of_its_kind_or_platform() -> None:
    """A GPU of NVIDIA has that of its platform, a TPU of an unknown kind that of TPUs, anything else one that knows
    nothing.
    """
    kinds = ("gpu", "NVIDIA H100 80GB HBM3"), ("gpu", "MI300"), ("tpu", "TPU v5 lite"), ("tpu", "TPU v9")
    found = [backend_of(SimpleNamespace(platform=platform, device_kind=kind)) for platform, kind in kinds]
    assert found == [NVIDIA_GPU, GPU, V5E, TPU]
    assert backend_for("metal") == Backend("metal")
    assert backend_for("cpu", "TPU v5 lite") == PLATFORMS["cpu"]


def test_records_keep_the_platform_of_their_devices() -> None:
    """By which steps and messages name them."""
    assert all(backend_for(platform).platform == platform for platform in (*PLATFORMS, "metal"))
    assert {backend_for("tpu", kind).platform for kind in KINDS} == {"tpu"}


def test_pages_that_records_name_exist() -> None:
    """A reason leads to its numbers."""
    named = {page for path in MODULES for page in re.findall(r"docs/experiments/[\w.-]+\.md", text_of(path))}
    assert named
    assert {page for page in named if not (ROOT / page).exists()} == set()


@pytest.mark.parametrize(("owner", "where"), [("jax.absent", "jax.absent"), ("jax", "jax"), (1j, "complex")])
def test_a_private_name_that_a_newer_jax_lacks_is_named(owner: Any, where: str) -> None:
    """The error says which name is missing, in which JAX, and which versions have it."""
    problem = rf"JAX {jax.__version__} has no `{where}\._lost`, .*; install a JAX that has it, such as 0\.10\.2"
    with pytest.raises(RuntimeError, match=problem):
        private(owner, "_lost")
    assert private("jax", "__version__") == jax.__version__


def test_each_private_module_of_jax_is_named_in_one_file() -> None:
    """A newer JAX that moves one of them is met in one file."""
    found = defaultdict(set)
    for path in (*STRATEGIES.rglob("*.py"), *(STRATEGIES.parent / "benchmarks").rglob("*.py")):
        for module in re.findall(r"jax\._src[\w.]*", path.read_text()):
            found[module].add(path.name)
    assert len(found) >= 3
    assert [module for module, files in found.items() if len(files) > 1] == []
