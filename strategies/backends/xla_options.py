"""XLA options of compiled steps: a table of defaults by platform and plan, and the user's own options.

The defaults depend on what a step does and never on its strategy's name, so two strategies with the same plan get the
same options. They apply to attached and compile-only devices. Each record lists all options of its step.
"""

import functools
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

UNKNOWN = "No such compile option"
"""Part of XLA's error for an option that it does not have."""
BOOLEANS = {"true": True, "false": False}


def sums_over_all_devices(plan: Any) -> bool:
    """Whether the devices only split the batch, along one axis: each gradient sum is over all of them."""
    return len(plan.active) == 1 and plan.active[0].batch and not plan.active[0].dims and not plan.placement.updates


def gathers_weights(plan: Any) -> bool:
    """Whether weights are sharded, and gathered before use."""
    return plan.shards > 1


def exchanges_rows(plan: Any) -> bool:
    """Whether devices exchange experts' rows by all-to-alls. A compiler that partitions the step does so, too."""
    split = plan.config.experts is not None and plan.size(*plan.axes_of("experts")) > 1
    return split and plan.train.dispatch != "all_gather"


def prefetches(plan: Any) -> bool:
    """Whether weights are gathered one layer ahead."""
    return plan.train.prefetch == "on"


def overlaps_halves(plan: Any) -> bool:
    """Whether halves of the batch overlap where devices split heads, and another axis splits something else."""
    alone = len(plan.active) == 1
    return plan.train.halves == "on" and not prefetches(plan) and plan.tensors > 1 and not alone


def sums_beside_gathers(plan: Any) -> bool:
    """Whether sums of single layers in bfloat16 go over one axis, and gathers of their weights over another."""
    train, placement = plan.train, plan.placement
    in_loop = train.reduce == "layer" and train.reduce_dtype == "bfloat16" and not prefetches(plan)
    return (
        in_loop and gathers_weights(plan) and bool(placement.replicas) and not placement.dims and not placement.tokens
    )


def adds_biases_on_one_device(plan: Any) -> bool:
    """Whether a step in a half precision runs on one device, and its MLPs have biases.

    Others gain less, and those with experts were not compiled.
    """
    biased = any("mlp" in weight.spec.dims and not weight.spec.is_matrix for weight in plan.weights.values())
    return plan.mesh.size == 1 and plan.train.dtype != "float32" and biased and plan.config.experts is None


@dataclass(frozen=True)
class Default:
    """XLA options of compiled steps, unless the user sets them.

    Attributes:
        reason: their purpose. docs/experiments/2026-11-25-defaults-of-backends.md has times.
        when: plan of a step (core/plan.py) -> whether they apply; None: they apply to all steps.
    """

    platform: str
    options: Mapping[str, str]
    reason: str
    when: Callable[[Any], bool] | None = None

    def applies(self, platform: str, plan: Any | None) -> bool:
        """Whether a step on a platform gets these options. Without a plan it gets only those for all steps."""
        return platform == self.platform and (self.when is None or (plan is not None and self.when(plan)))


DEFAULTS: tuple[Default, ...] = (
    Default(
        "cpu",
        {"xla_backend_optimization_level": "2"},
        "Let LLVM optimise at level 2. Steps then compile in two thirds of the CPU time, take as long and have the "
        "same losses to the bit (docs/experiments/2026-11-24-first-run.md).",
    ),
    Default(
        "tpu",
        {"xla_disable_hlo_passes": "while-loop-all-reduce-code-motion"},
        "Do not move gradient reductions out of the loop over microbatches. Moved out, gradients would be held "
        "unsharded, which contradicts zero2 and fsdp. Compiling them would need as much host memory as chip memory: "
        "libtpu 0.0.42.1 was killed at 24 GB for gpt3-6.7b with zero2. For three_d over fsdp and tensor it fails an "
        "internal check (while_loop_all_reduce_code_motion.cc).",
    ),
    Default(
        "tpu",
        {
            "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": "true",
            "xla_tpu_enable_async_collective_fusion_fuse_reduce_scatter": "true",
            "xla_enable_async_all_reduce": "true",
        },
        "Start the sums of gradients early, and compute meanwhile. It helps on v5e; with hsdp there, and with data on "
        "v5p, nothing changes.",
        sums_over_all_devices,
    ),
    Default(
        "tpu",
        {
            "xla_enable_async_all_gather": "true",
            "xla_tpu_enable_async_collective_fusion": "true",
            "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "true",
        },
        "Gather weights while the chip computes, which v5p does not do by default. On v5e nothing changes.",
        gathers_weights,
    ),
    Default(
        "tpu",
        {"xla_tpu_enable_async_all_to_all": "true", "xla_tpu_enable_async_ragged_all_to_all": "true"},
        "Exchange the tokens of experts while the chip computes. Without these options libtpu waits for every "
        "all-to-all (docs/experiments/2026-11-26-expert-overlap.md).",
        exchanges_rows,
    ),
    Default(
        "gpu",
        {"xla_disable_hlo_passes": "rematerialization"},
        "Recompute what `remat` says, and no more. This pass recomputes matmuls of a step whose memory it takes to be "
        "over 60 of the 79 GiB of an H100. It overestimates that memory, adds FLOPs and saves next to nothing.",
    ),
    Default(
        "gpu",
        {"xla_gpu_enable_triton_gemm": "false", "xla_gpu_dot_merger_threshold_mb": "0"},
        "Multiply by the library, whose matmuls add biases and residuals and apply GELU, and multiply queries, keys "
        "and values apart. A step of gpt2 then moves 5% fewer bytes, its matmuls' included; it was not timed "
        "(docs/experiments/2026-11-28-one-gpu.md).",
        adds_biases_on_one_device,
    ),
    Default(
        "gpu",
        {
            "xla_gpu_experimental_parallel_collective_overlap_limit": "8",
            "xla_gpu_enable_while_loop_double_buffering": "true",
        },
        "Let several collectives be in flight at once, and run two layers in an iteration, so that gathered weights "
        "are not copied to where the next iteration expects them. Without these options prefetch makes hsdp slower.",
        prefetches,
    ),
    Default(
        "gpu",
        {"xla_gpu_experimental_parallel_collective_overlap_limit": "8"},
        "Let the collectives of both halves of a batch be in flight at once. With tensor alone it helps on some "
        "numbers of GPUs and hurts on others, so another axis must split something as well.",
        overlaps_halves,
    ),
    Default(
        "gpu",
        {"xla_gpu_experimental_parallel_collective_overlap_limit": "8"},
        "Let sums between hosts and gathers inside a host be in flight at once. With reduce=step or float32 sums the "
        "option makes steps slower.",
        sums_beside_gathers,
    ),
)


def xla_options(device: Any, plan: Any | None) -> dict[str, Any]:
    """XLA options of a step: those of `DEFAULTS` that the environment variable XLA_FLAGS does not set.

    Options that the installed XLA does not have are omitted, with a warning. `plan` is None for a step without one.
    """
    matching = [each for each in DEFAULTS if each.applies(device.platform, plan)]
    flags = os.environ.get("XLA_FLAGS", "")
    named = {name: value for each in matching for name, value in each.options.items()}
    defaults = {name: value for name, value in named.items() if f"--{name}=" not in flags}
    known = {name: value for name, value in defaults.items() if has_option(device, name, value)}
    if unknown := sorted(defaults.keys() - known):
        missing = f"this version of XLA has no option {', '.join(unknown)}"
        warnings.warn(f"{missing}; steps are compiled without it", stacklevel=2)
    return as_read(device.platform, known)


@functools.cache
def has_option(device: Any, name: str, value: str) -> bool:
    """Whether a device's compiler has an XLA option. Compiles an empty program with it."""
    anywhere = NamedSharding(Mesh(np.array([device]), "x"), P())
    empty = jax.jit(lambda x: x, out_shardings=anywhere)
    try:
        empty.lower(jax.ShapeDtypeStruct((), "int32", sharding=anywhere)).compile(
            as_read(device.platform, {name: value})
        )
    except jax.errors.JaxRuntimeError as error:
        if UNKNOWN in str(error):
            return False
        raise
    return True


def as_read(platform: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a platform's compiler reads them.

    Compilers for GPUs and CPUs read only `True` and `False` as Booleans; libtpu reads strings.

    >>> as_read("gpu", {"xla_a": "true", "xla_b": "8"}), as_read("tpu", {"xla_a": "true"})
    ({'xla_a': True, 'xla_b': '8'}, {'xla_a': 'true'})
    """
    if platform == "tpu":
        return dict(options)
    return {name: BOOLEANS.get(str(value).lower(), value) for name, value in options.items()}
