"""Over which of a TPU's chips weights should be gathered, by what its compiler makes of gathers: seen, not published.

Compiled with libtpu 0.0.42.1 (JAX 0.10.2) for v4, v5e, v5p, v6e and TPU7x: a function that gathers a matrix
bf16[4096,4096] over some axes, multiplies by it, and scatters a product; and steps of fsdp and hsdp. Nothing was run.

An all-gather over all chips of a torus that is closed in three dims (4x4x4, 4x4x8; not 2x4x4) becomes an all-reduce of
the full array, and so does a reduce-scatter over all of more than eight chips, in two dims or three, but on TPU7x. Over
fewer chips than there are both stay what they are. So they do with the options below, where parts are large and no
innermost dim is split: on v5p and TPU7x they go to the sparse cores, beside the matmuls. Of gpt2 with two layers, whose
token table is most of it, an all-reduce of the table's gradients stays.

A step of gpt3-6.7b on 64 chips of v5p:4x4x4 (batch 64, bfloat16, remat="full"), by what a chip sends in GB, how much
of that is behind matmuls, and its temporaries:

    fsdp=64                          79.4     0    3.5 GiB
    fsdp=64, with all options        40.5    31.7  3.8 GiB
    data=4,fsdp=16                   40.6     0    5.3 GiB

Fewer bytes are not always less time: an all-reduce goes along all dims of a torus at once, and a reduce-scatter, on the
way through one ring (`StrategyRing`, the program says), along one: in three dims over a third of the links.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from jax.sharding import Mesh

from benchmarks.devices.chips import CHIPS, Chip
from benchmarks.explain.roofline import extents, group_along

GATHERING: Mapping[str, str] = {
    "xla_tpu_prefer_async_allgather_to_allreduce": "true",
    "xla_tpu_enable_sparse_core_collective_offload_all_gather": "true",
    "xla_tpu_enable_sparse_core_collective_offload_3d_all_gather": "true",
}
"""Compiler options with which all-gathers stay: it takes the first two, and the third for sparse cores to make them."""

SCATTERING: Mapping[str, str] = {
    "xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter": "true",
    "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter": "true",
}
"""Those with which reduce-scatters stay: it takes the first, and the second for sparse cores to make them."""


@dataclass(frozen=True)
class Advice:
    """What becomes of a kind of collective, and what avoids it: another mesh, or mostly options of the compiler.

    There are none where it was told these already.
    """

    kind: str
    problem: str
    mesh: str
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """In words."""
        options = " ".join(f"--compiler-option {name}={value}" for name, value in self.options.items())
        return f"{self.problem}; {self.mesh} avoids it{options and f', or for the most part {options}'}"


def advice(
    chip: Chip, mesh: Mesh, axes: Sequence[str], told: Mapping[str, str] = MappingProxyType({})
) -> tuple[Advice, ...]:
    """On gathering weights over some axes of a mesh of TPUs, to whose compiler some options were `told` already.

    There is none where there is nothing to avoid.
    """
    group = group_along(mesh, axes)
    if chip.platform != "tpu" or len(group) < mesh.devices.size:
        return ()
    dims = extents(group)
    chips, torus = math.prod(dims), "x".join(map(str, dims))
    data = min(size for size in dims if size > 1) if chips > 1 else 1
    inner = "fsdp" if axes[-1] == "data" else axes[-1]  # what is sharded over part of the batch's axes is hsdp
    instead = f"data={data},{inner}={len(group) // data}"
    found = []
    if len(dims) == 3 and all(size % 4 == 0 for size in dims):
        problem = f"an all-gather over all chips of {torus} becomes an all-reduce of the full array"
        found.append(Advice("all_gather", problem, instead, {} if GATHERING.items() <= told.items() else GATHERING))
    if chips > 8 and chip is not CHIPS["tpu7x"]:
        problem = f"a reduce-scatter over all chips of {torus} becomes an all-reduce of the full array"
        found.append(
            Advice("reduce_scatter", problem, instead, {} if SCATTERING.items() <= told.items() else SCATTERING)
        )
    return tuple(found)
