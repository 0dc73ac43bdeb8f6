"""Which layouts are advised against: those of which the compiled program was seen."""

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.devices.chips import CHIPS
from benchmarks.explain.advice import GATHER_OPTIONS, SCATTER_OPTIONS, advice

GATHER, SCATTER = "all_gather", "reduce_scatter"


def torus(shape: tuple[int, ...], **axes: int) -> Any:
    """A mesh of the chips of a torus, of which the last dim is the innermost."""
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
    """Where the compiler was seen to make an all-reduce of a gather or a scatter, and nowhere else."""
    assert [each.kind for each in advice(CHIPS[chip], torus(shape, **axes), ("fsdp",))] == kinds


def test_what_is_advised_avoids_it() -> None:
    """The mesh that it names gives no advice in turn; and it names the options that have the same effect."""
    gather, scatter = advice(CHIPS["v5p"], torus((4, 4, 8), fsdp=128), ("fsdp",))
    assert gather.mesh == scatter.mesh == "data=4,fsdp=32"
    assert (gather.options, scatter.options) == (GATHER_OPTIONS, SCATTER_OPTIONS)
    assert advice(CHIPS["v5p"], torus((4, 4, 8), data=4, fsdp=32), ("fsdp",)) == ()
    assert str(scatter) == (
        "a reduce-scatter over all chips of 4x4x8 becomes an all-reduce of the full array; data=4,fsdp=32 avoids it, "
        "or for the most part --compiler-option xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter=true "
        "--compiler-option xla_tpu_enable_sparse_core_collective_offload_reduce_scatter=true"
    )


@pytest.mark.parametrize(("axis", "mesh"), [("tensor", "data=4,tensor=4"), ("data", "data=4,fsdp=4")])
def test_the_mesh_has_the_axis_in_question(axis: str, mesh: str) -> None:
    """Sums of a tensor axis are scattered, too; what zero1 shards, hsdp shards over fewer."""
    (scatter,) = advice(CHIPS["v5e"], torus((4, 4), **{axis: 16}), (axis,))
    assert scatter.mesh == mesh


def test_what_was_told_is_not_advised_again() -> None:
    """Where options did not avoid it, a mesh does; half of them are advised whole."""
    mesh = torus((4, 4, 8), fsdp=128)
    gather, scatter = advice(CHIPS["v5p"], mesh, ("fsdp",), {**SCATTER_OPTIONS, **dict([*GATHER_OPTIONS.items()][:1])})
    assert (gather.options, scatter.options) == (GATHER_OPTIONS, {})
    assert str(scatter).endswith("becomes an all-reduce of the full array; data=4,fsdp=32 avoids it")


def test_gpus_keep_what_is_stated() -> None:
    """Their compiler makes no all-reduce of a gather."""
    assert advice(CHIPS["h100"], torus((4, 4), fsdp=16), ("fsdp",)) == ()
