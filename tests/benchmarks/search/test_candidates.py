"""Candidates are all combinations of strategy, mesh and options, each once."""

import dataclasses
import itertools
from typing import Any

import pytest

from benchmarks.cases.case import default_strategies
from benchmarks.devices.topology import Topology
from benchmarks.search.candidates import SearchSpace, microbatch_choices
from strategies import GPTConfig, MeshSpec
from strategies.mesh import all_axes, factorisations

CONFIG = GPTConfig(layers=4, embed=16, heads=4, vocab=256, sequence=16)


def space(devices: int = 8, **others: Any) -> SearchSpace:
    """The search space of a tiny model."""
    return SearchSpace(Topology("cpu", (devices,)), "tiny", CONFIG, 24, "bfloat16", **others)


@pytest.mark.parametrize(("devices", "experts"), [(1, None), (8, None), (12, None), (8, 8)])
def test_every_factorisation_of_the_devices_is_there(devices: int, experts: int | None) -> None:
    """Every factorisation of the devices is a candidate mesh with every default strategy that has formulas, once.

    `single` is a candidate on one device only, and the others on more. Only models with experts have an expert axis.
    """
    dense = set() if experts else {"expert"}
    searched = dataclasses.replace(space(devices), config=dataclasses.replace(CONFIG, experts=experts))
    cases = list(searched.cases())
    axes = [axis for axis in all_axes() if axis not in dense]
    assert {case.mesh for case in cases} == set(factorisations(axes, devices))
    assert {case.strategy for case in cases} == (
        {"single"} if devices == 1 else set(default_strategies()) - {"single", "auto"} - dense
    )
    work = [(case.strategy, case.mesh, case.training()) for case in cases]
    assert len(work) == len(set(work))


def test_options_vary_where_they_make_another_step() -> None:
    """An option varies only on meshes with its axis, in all combinations with the others."""
    asked = ("chunks", (2, 4)), ("schedule", ("1f1b", "interleaved")), ("sequence_parallel", (True, False))
    for (name, mesh), group in itertools.groupby(space(options=asked).cases(), lambda case: (case.strategy, case.mesh)):
        cases = list(group)
        found = {case.options for case in cases}
        schedules = 3 if "pipeline" in mesh.sizes else 1  # only interleaved has chunks, of two values
        gathers, tensors = (2 if axis in mesh.sizes else 1 for axis in ("fsdp", "tensor"))
        assert len(found) == schedules * gathers * tensors, (name, mesh)
        assert len(cases) == len(found) * 3 * len({case.microbatches for case in cases})


def test_selected_values_are_the_only_ones() -> None:
    """Selected strategies, meshes, microbatches and remat policies are the only ones."""
    meshes = tuple(map(MeshSpec.parse, ("fsdp=8", "data=2,fsdp=4")))
    cases = list(space(strategies=("fsdp", "hsdp"), meshes=meshes, microbatches=(3,), remats=("full",)).cases())
    assert {(case.strategy, str(case.mesh)) for case in cases} == {("fsdp", "fsdp=8"), ("hsdp", "data=2,fsdp=4")}
    assert {(case.microbatches, case.remat, case.batch_size, case.dtype) for case in cases} == {
        (3, "full", 24, "bfloat16")
    }


@pytest.mark.parametrize("mesh", [*map(str, factorisations(all_axes(), 12))])
def test_microbatches_divide_a_devices_sequences(mesh: str) -> None:
    """Microbatch counts divide a device's sequences; if stages divide these, they begin there and double."""
    sizes = MeshSpec.parse(mesh).sizes
    stages, shards = sizes.get("pipeline", 1), sizes.get("data", 1) * sizes.get("fsdp", 1)
    found = microbatch_choices("three_d", MeshSpec.parse(mesh), 48)
    assert len(found) == len(set(found)) >= 1
    assert all(48 // shards % parts == 0 for parts in found)
    if 48 // shards % stages == 0:
        assert found[0] == stages
        assert all(later == 2 * earlier for earlier, later in itertools.pairwise(found))
