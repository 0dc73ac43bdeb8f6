"""Tables and sentences of a search on one line each, and devices that are simulated."""

import dataclasses
from typing import Any

import jax
import pytest

from benchmarks.cli import tables
from benchmarks.devices import topology
from benchmarks.devices.chips import CHIPS
from benchmarks.devices.topology import Topology
from benchmarks.simulate import program


@pytest.fixture
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables and sentences do not wrap."""
    monkeypatch.setattr(tables, "PLAIN_WIDTH", 400)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Any:
    """H100 GPUs, simulated by virtual devices, with the memory that a test asks for."""

    def pretend(memory_bytes: int) -> None:
        chips = {**CHIPS, "h100": dataclasses.replace(CHIPS["h100"], memory_bytes=memory_bytes)}
        monkeypatch.setattr(topology, "CHIPS", chips)
        monkeypatch.setattr(program, "CHIPS", chips)
        monkeypatch.setattr(Topology, "devices", lambda self: jax.devices()[:4])

    return pretend
