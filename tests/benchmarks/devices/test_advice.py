"""Advice against meshes on which libtpu was seen to turn a gather or a scatter into an all-reduce."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.cases.case import Case
from benchmarks.devices.advice import GATHER_OPTIONS, SCATTER_OPTIONS, advice
from benchmarks.devices.chips import CHIPS
from benchmarks.devices.topology import Topology
from benchmarks.program.explanations import cost_of
from strategies import GPTConfig, MeshSpec

CONFIG = GPTConfig(layers=2, embed=64, heads=4, vocab=256, sequence=8)
CASE = Case("fsdp", MeshSpec.parse("fsdp=16"), "", CONFIG, 16, 1, "float32", "none", (), Topology.parse("cpu:16"))
GATHER, SCATTER = "all-gather", "reduce-scatter"


def torus(shape: tuple[int, ...], **axes: int) -> Any:
    """A mesh over the chips of a torus in row-major order."""
    places = itertools.product(*(range(size) for size in shape))
    devices = np.empty(math.prod(shape), dtype=object)
    devices[:] = [SimpleNamespace(coords=(*place, *(3 - len(shape)) * (0,))) for place in places]
    return SimpleNamespace(axis_names=tuple(axes), devices=devices.reshape(tuple(axes.values())))


@pytest.mark.parametrize(
    ("chip", "shape", "axes", "kinds"),
    [
        # As compiled, see advice.py.
        ("v5p", (4, 4, 4), {"fsdp": 64}, [GATHER, SCATTER]),
        ("v4", (4, 4, 4), {"fsdp": 64}, [GATHER, SCATTER]),
        ("tpu7x", (4, 4, 4), {"fsdp": 64}, [GATHER]),
        ("v5p", (4, 4, 8), {"fsdp": 128}, [GATHER, SCATTER]),
        ("v5p", (2, 4, 4), {"fsdp": 32}, [SCATTER]),
        ("v5p", (2, 2, 4), {"fsdp": 16}, [SCATTER]),
        ("v5p", (2, 2, 1), {"fsdp": 4}, []),
        ("v5p", (4, 4, 4), {"data": 4, "fsdp": 16}, []),
        ("v5p", (4, 4, 4), {"data": 16, "fsdp": 4}, []),
        ("v5e", (4, 4), {"fsdp": 16}, [SCATTER]),
        ("v5e", (8, 8), {"fsdp": 64}, [SCATTER]),
        ("v6e", (4, 4), {"fsdp": 16}, [SCATTER]),
        ("v5e", (2, 4), {"fsdp": 8}, []),
        ("v5e", (4, 4), {"data": 2, "fsdp": 8}, []),
        ("v5e", (16, 16), {"data": 16, "fsdp": 16}, []),
    ],
)
def test_what_becomes_an_all_reduce_is_advised_against(
    chip: str, shape: tuple[int, ...], axes: dict[str, int], kinds: list[str]
) -> None:
    """Advice is given for the chips, shapes and axes on which an all-reduce was seen, and for no others."""
    assert [text.split()[1] for text in advice(CHIPS[chip], torus(shape, **axes), ("fsdp",))] == kinds


def test_the_advised_mesh_needs_no_advice() -> None:
    """The advised mesh needs no advice itself; the advice names compiler options with a similar effect, too."""
    gather, scatter = advice(CHIPS["v5p"], torus((4, 4, 8), fsdp=128), ("fsdp",))
    assert "--mesh data=4,fsdp=32, or" in gather
    assert all(f"--compiler-option {name}={value}" in gather for name, value in GATHER_OPTIONS.items())
    assert advice(CHIPS["v5p"], torus((4, 4, 8), data=4, fsdp=32), ("fsdp",)) == []
    assert scatter == (
        "a reduce-scatter over all chips of 4x4x8 becomes an all-reduce of the full array; it stays with --strategy "
        "hsdp --mesh data=4,fsdp=32, or for the most part with "
        "--compiler-option xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter=true "
        "--compiler-option xla_tpu_enable_sparse_core_collective_offload_reduce_scatter=true"
    )


@pytest.mark.parametrize(
    ("axis", "strategy", "mesh"), [("tensor", "three_d", "data=4,tensor=4"), ("data", "hsdp", "data=4,fsdp=4")]
)
def test_the_mesh_has_the_axis_in_question(axis: str, strategy: str, mesh: str) -> None:
    """Advice for a tensor axis proposes a smaller tensor axis, and advice for zero's data axis an fsdp axis.

    It can be followed: the strategy has formulas for a step on that mesh.
    """
    (scatter,) = advice(CHIPS["v5e"], torus((4, 4), **{axis: 16}), (axis,))
    assert f"it stays with --strategy {strategy} --mesh {mesh}, or" in scatter
    assert cost_of(replace(CASE, strategy=strategy, mesh=MeshSpec.parse(mesh))) is not None


def test_options_that_are_set_are_not_advised_again() -> None:
    """Compiler options that are already set are not advised again, unless only some of them are set."""
    mesh = torus((4, 4, 8), fsdp=128)
    gather, scatter = advice(CHIPS["v5p"], mesh, ("fsdp",), {**SCATTER_OPTIONS, **dict([*GATHER_OPTIONS.items()][:1])})
    assert all(f"--compiler-option {name}={value}" in gather for name, value in GATHER_OPTIONS.items())
    assert scatter.endswith("; it stays with --strategy hsdp --mesh data=4,fsdp=32")


def test_there_is_no_advice_for_gpus() -> None:
    """There is no advice for GPUs, whose compiler keeps gathers."""
    assert advice(CHIPS["h100"], torus((4, 4), fsdp=16), ("fsdp",)) == []
