"""Facts about devices on which defaults and work-arounds depend: one record for each platform and kind of chip.

A strategy asks the record for a fact, such as `prefetches`, and never for the name of a chip. The times behind the
facts are in docs/experiments/2026-11-25-defaults-of-backends.md, with the versions where they were recorded.
"""

import importlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array

HAVE_PRIVATE_NAMES = "0.10.2 and 0.12.0.1"
"""Versions of JAX with which the private names that we use are tested."""


def private(owner: Any, name: str) -> Any:
    """A private name of JAX, where no public one exists: of a module, given by name, or of an object.

    Raises:
        RuntimeError: the installed JAX has no such name; it says which versions do.
    """
    try:
        return getattr(importlib.import_module(owner) if isinstance(owner, str) else owner, name)
    except (ImportError, AttributeError) as error:
        where = owner if isinstance(owner, str) else type(owner).__name__
        problem = f"JAX {jax.__version__} has no `{where}.{name}`, which has no public replacement"
        raise RuntimeError(f"{problem}; install a JAX that has it, such as {HAVE_PRIVATE_NAMES}") from error


def reduce_scatters_wrongly() -> bool:
    """Whether the transport's reduce-scatter has a bug, as gloo's between CPU processes does.

    The first device of a group sometimes finds numbers at the end of its part that are not sums (jax-ml/jax#40830; JAX
    0.10.2 and 0.12).
    """
    return jax.distributed.is_initialized() and jax.default_backend() == "cpu"


@dataclass(frozen=True)
class Backend:
    """Facts about devices, their compiler and their transport. By default nothing is known, and steps do nothing
    special.

    Attributes:
        platform: as `platform_of` names it; None for formulas without devices.
        fused_attention: the devices' fused attention kernel, as `TrainConfig.attention` names it; empty without one.
        prefers_all_to_all: whether context attention defaults to Ulysses if attention is a fused kernel.
        sums_by_layer: whether summing gradients in the backward loop overlaps enough to be the default.
        prefetches: whether gathering weights one layer ahead is faster, and so the default.
        halves: whether layers that a tensor or an expert axis splits run on halves of the batch by default.
        halves_blocks: the same if experts' rows are sorted into blocks (model/experts.py).
        gathers_outermost_only: whether the transport joins gathered parts only along the outermost dim.
        gathers_in_loops: whether the compiler moves a gather of weights into a loop that reads parts of them.
        sums_in_place: whether the compiler stores an all-reduce's result in place of its operand.
        fuses_elementwise: whether the compiler fuses elementwise operations, so that only operands and results of
            matmuls are in memory, in the compute dtype. It then initialises gradients of layers after the head's.
        copies_into_stacks: whether a loop zero-fills stacks and copies values into them, and copies what it reads from
            a stack before casting it.
        sends_ragged: whether the compiler supports `jax.lax.ragged_all_to_all`.
        reduce_scatters_wrongly: whether the transport's reduce-scatter has a bug, so that steps use an all-to-all
            (core/shards.py).
        waits_at_conditionals: whether the host waits for the condition of each conditional. Skipping a matmul then
            takes longer than the matmul (docs/experiments/2026-11-26-first-gpu.md).
        grouped_kernel: whether grouped matmuls in bfloat16 and float16 are kernels (model/pallas/grouped_kernel.py).
        two_dim_torus: whether the chips form a torus of two dims (device_mesh.py).
    """

    platform: str | None = None
    fused_attention: str = ""
    prefers_all_to_all: bool = False
    sums_by_layer: bool = False
    prefetches: bool = False
    halves: bool = False
    halves_blocks: bool = False
    gathers_outermost_only: bool = False
    gathers_in_loops: bool = False
    sums_in_place: bool = False
    fuses_elementwise: bool = False
    copies_into_stacks: bool = False
    sends_ragged: bool = False
    reduce_scatters_wrongly: bool = False
    waits_at_conditionals: bool = False
    grouped_kernel: bool = False
    two_dim_torus: bool = False


NO_DEVICES = Backend()
"""For formulas without devices: nothing is known, and each kernel is assumed to exist."""

CPU = Backend("cpu")
"""CPUs do not overlap communication with compute, so every option for overlap is off."""

GPU = Backend(
    "gpu",
    prefers_all_to_all=True,
    sums_by_layer=True,
    prefetches=True,
    halves=True,
    gathers_outermost_only=True,
    sums_in_place=True,
    fuses_elementwise=True,
    copies_into_stacks=True,
    sends_ragged=True,
    waits_at_conditionals=True,
)
"""GPUs of any vendor run collectives concurrently with compute, so all options for overlap are on, except halves of the
batch where rows are sorted into blocks: there they add more memory traffic than they overlap
(docs/experiments/2026-11-26-expert-overlap.md). Fusions and copies were only seen on NVIDIA GPUs.

NCCL and RCCL join gathered parts only along the outermost dim; XLA transposes a gathered matrix of all layers in a
second copy (docs/experiments/2026-11-24-zero-overlap.md)."""

NVIDIA_GPU = replace(GPU, platform="cuda", fused_attention="cudnn", grouped_kernel=True)
"""NVIDIA GPUs have cuDNN's attention. With it Ulysses is faster than a ring between hosts, because it sends less
(docs/experiments/2026-11-24-context-overlap.md)."""

TPU = Backend(
    "tpu",
    fused_attention="splash",
    prefetches=True,
    gathers_in_loops=True,
    sends_ragged=True,
)
"""A TPU of an unknown kind, v4 or tpu7x: it gathers ahead like v5p; halves were not measured there, and are off.

Gathers in loops were seen on v5e (docs/experiments/2026-11-26-grouped-matmul.md). Sums by layer are off on all TPUs,
because on v5e they add more memory traffic than they overlap (docs/experiments/2026-11-24-data-overlap.md)."""

V5P = replace(TPU, halves=True, halves_blocks=True)
"""v5p overlaps gathers that start one layer ahead, and sums of one half of the batch with matmuls of the other."""

V6E = replace(V5P, two_dim_torus=True)
"""v6e overlaps like v5p."""

V5E = replace(V6E, prefetches=False)
"""v5e overlaps nothing with another iteration, so it does not prefetch. Over all of its chips a reduce-scatter becomes
an all-reduce, of which less is overlapped with prefetch (docs/experiments/2026-11-24-fsdp-overlap.md)."""

KINDS = {
    "TPU v5 lite": V5E,
    "TPU v5e": V5E,
    "TPU v5": V5P,
    "TPU v5p": V5P,
    "TPU v6 lite": V6E,
    "TPU v6e": V6E,
}
"""JAX's names of TPU kinds that have their own record."""

PLATFORMS = {backend.platform: backend for backend in (NO_DEVICES, CPU, GPU, NVIDIA_GPU, TPU)}


def backend_of(device: Any) -> Backend:
    """The record of a `jax.Device`, attached or of a topology."""
    found = backend_for(platform_of(device), device.device_kind)
    return replace(found, reduce_scatters_wrongly=True) if found is CPU and reduce_scatters_wrongly() else found


def backend_for(platform: str | None, kind: str = "") -> Backend:
    """The record of devices that need not be attached. It does not depend on the running process.

    Args:
        platform: "cuda", "gpu" (of other vendors), "tpu", "cpu" or another; None for formulas without devices.
        kind: JAX's name of the kind of device; empty if it is unknown.

    >>> backend_for("tpu").prefetches, backend_for("tpu", "TPU v5e").prefetches, backend_for(None).prefetches
    (True, False, False)
    """
    found = PLATFORMS.get(platform, Backend(platform))
    return KINDS.get(kind, found) if found is TPU else found


def platform_of(device: Any) -> str:
    """The platform of a device: "cuda" for NVIDIA GPUs, otherwise JAX's name."""
    return "cuda" if "nvidia" in device.device_kind.lower() else device.platform


def are_virtual(devices: Collection[Any]) -> bool:
    """Whether these are several virtual CPU devices, which share the cores and may deadlock."""
    return len(devices) > 1 and next(iter(devices)).platform == "cpu"


def row_major(x: Array) -> Array:
    """Fix the layout of a residual that is read from a buffer, for NVIDIA GPUs.

    Otherwise XLA (of JAX 0.10) chooses the consumer's layout, and transposes the whole buffer in every pass
    (docs/experiments/2026-11-25-defaults-of-backends.md).
    """
    layout = Layout(tuple(range(x.ndim)))
    return lax.platform_dependent(x, cuda=lambda x: with_layout_constraint(x, layout), default=lambda x: x)
