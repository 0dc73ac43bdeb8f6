"""Advice on which TPU mesh axes to gather weights over, from observed (undocumented) behaviour of the TPU compiler.

Observed with libtpu 0.0.42.1 (JAX 0.10.2) for v4, v5e, v5p, v6e and TPU7x, on a function that all-gathers a matrix
bf16[4096,4096] over some axes, multiplies by it and reduce-scatters a product, and on steps of fsdp and hsdp. Nothing
was run.

An all-gather over all chips of a torus that wraps around in three dims (4x4x4, 4x4x8; not 2x4x4) becomes an all-reduce
of the full array. So does a reduce-scatter over all of more than eight chips, in two dims or three, except on TPU7x.
Over fewer chips than there are, both stay what they are. They also stay with the options below, if parts are large and
no innermost dim is split: on v5p and TPU7x they then run on the sparse cores, overlapped with matmuls. For gpt2 with
two layers, most of which is the token table, the all-reduce of the table's gradients stays.

docs/experiments/2026-11-24-exposed-communication.md has a step with and without them. Fewer bytes do not always take
less time: what is named here keeps the collective, and nothing more is claimed. `meshmark compile` simulates its time.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from jax.sharding import Mesh

from benchmarks.devices.chips import CHIPS, Chip
from benchmarks.devices.placement import extents, group_along
from strategies import STRATEGIES

GATHER_OPTIONS: Mapping[str, str] = {
    "xla_tpu_prefer_async_allgather_to_allreduce": "true",
    "xla_tpu_enable_sparse_core_collective_offload_all_gather": "true",
    "xla_tpu_enable_sparse_core_collective_offload_3d_all_gather": "true",
}
"""Compiler options that preserve all-gathers. The first two are required, and the third to run them on sparse cores."""

SCATTER_OPTIONS: Mapping[str, str] = {
    "xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter": "true",
    "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter": "true",
}
"""Compiler options that preserve reduce-scatters. The first is required, and the second to run them on sparse cores."""


def advice(
    chip: Chip, mesh: Mesh, axes: Sequence[str], compiler_options: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """What the compiler makes of gathers over some axes of a mesh of TPUs, and what keeps them; empty if it keeps them.

    Args:
        chip: specifications of the devices.
        mesh: mesh of devices with coordinates.
        axes: mesh axes over which weights are gathered and gradients reduce-scattered.
        compiler_options: options that the compiler is already given.
    """
    group = group_along(mesh, axes)
    if chip.platform != "tpu" or len(group) < mesh.devices.size:
        return []
    dims = extents(group)
    chips, torus = math.prod(dims), "x".join(map(str, dims))
    replaced: dict[str, Mapping[str, str]] = {}
    if len(dims) == 3 and all(size % 4 == 0 for size in dims):
        replaced["an all-gather"] = GATHER_OPTIONS
    if chips > 8 and chip is not CHIPS["tpu7x"]:
        replaced["a reduce-scatter"] = SCATTER_OPTIONS
    data = min(size for size in dims if size > 1) if chips > 1 else 1
    inner = "fsdp" if axes[-1] == "data" else axes[-1]  # sharding over only part of the batch axes is hsdp
    with_both = [one for one in STRATEGIES.values() if not one.twins and {"data", inner} <= {*one.axis_names}]
    strategy = min(with_both, key=lambda one: len(one.axis_names)).name
    kept = f"it stays with --strategy {strategy} --mesh data={data},{inner}={len(group) // data}"
    texts = []
    for what, options in replaced.items():
        written = " ".join(f"--compiler-option {name}={value}" for name, value in options.items())
        also = "" if options.items() <= compiler_options.items() else f", or for the most part with {written}"
        texts.append(f"{what} over all chips of {torus} becomes an all-reduce of the full array; {kept}{also}")
    return texts
