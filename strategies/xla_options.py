"""XLA options that steps are compiled with: a table of defaults by platform and strategy, and the user's own.

The defaults hold for devices that are present and for those of a topology alike. Each record lists all options of its
step.
"""

import functools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from strategies.config import TrainConfig

UNKNOWN = "No such compile option"
"""In XLA's error for an option that it does not have."""
BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True)
class Default:
    """XLA options that the steps of some strategies are compiled with, unless the user sets them.

    Attributes:
        platform: JAX platform of the devices.
        options: by name.
        reason: what they are for, and the effect that was measured.
        strategies: names of the strategies; empty for all.
        training: fields of `TrainConfig` that the step has with these values.
    """

    platform: str
    options: Mapping[str, str]
    reason: str
    strategies: frozenset[str] = frozenset()
    training: Mapping[str, Any] = field(default_factory=dict)

    def applies(self, platform: str, strategy: str, train: TrainConfig) -> bool:
        """Whether steps of a strategy on a platform are compiled with these options."""
        fits = all(getattr(train, name) == value for name, value in self.training.items())
        return platform == self.platform and (not self.strategies or strategy in self.strategies) and fits


DEFAULTS: tuple[Default, ...] = (
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
        "Start the sums of gradients early, and compute meanwhile. For gpt3-6.7b on 256 chips of v5e, fsdp=256 in "
        "bfloat16 with reduce_dtype=bfloat16, a step takes 707 ms instead of 782 as replayed, and 103 ms of sending "
        "are exposed instead of 182. With hsdp over data=16,fsdp=16 nothing changes.",
        frozenset({"fsdp"}),
    ),
    Default(
        "tpu",
        {
            "xla_enable_async_all_gather": "true",
            "xla_tpu_enable_async_collective_fusion": "true",
            "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "true",
        },
        "Gather weights while the chip computes, which v5p does not do by default. For gpt3-6.7b in bfloat16 on 2,048 "
        "chips of v5p, hsdp over data=16,fsdp=128 with prefetch, a step takes 301 ms instead of 351 as replayed, and "
        "45 ms of sending are exposed instead of 99. On v5e nothing changes.",
        frozenset({"fsdp", "hsdp", "three_d"}),
    ),
    Default(
        "gpu",
        {
            "xla_gpu_experimental_parallel_collective_overlap_limit": "8",
            "xla_gpu_enable_while_loop_double_buffering": "true",
        },
        "Let several collectives be in flight at once, and run two layers in an iteration, so that gathered weights "
        "are not copied to where the next iteration expects them. For gpt3-6.7b on 128 H100s with prefetch, fsdp=128 "
        "in bfloat16, a step takes 131 ms instead of 192 as replayed, and 5 ms of sending are exposed instead of 44. "
        "hsdp over data=16,fsdp=8 takes 160 ms instead of 178, in float32 sums 207 ms instead of 266 without prefetch; "
        "three_d over fsdp=16,tensor=8 without halves takes 240 ms instead of 277.",
        training={"prefetch": "on"},
    ),
    Default(
        "gpu",
        {"xla_gpu_experimental_parallel_collective_overlap_limit": "8"},
        "Let the collectives of both halves of a batch be in flight at once. For gpt3-6.7b on 8 H100s, tensor=8 in "
        "bfloat16 with halves, a step takes 219 ms instead of 224 as replayed.",
        frozenset({"tensor"}),
        {"halves": "on"},
    ),
    Default(
        "gpu",
        {"xla_gpu_experimental_parallel_collective_overlap_limit": "8"},
        "Let sums between hosts and gathers inside a host be in flight at once. For gpt3-6.7b on 128 H100s, hsdp over "
        "data=16,fsdp=8 without prefetch, a step takes 178.6 ms instead of 217.8 as replayed. With reduce=step or "
        "float32 the option makes that step slower, by 12 to 17%.",
        frozenset({"hsdp"}),
        {"prefetch": "off", "reduce": "layer", "reduce_dtype": "bfloat16"},
    ),
    Default(
        "gpu",
        {"xla_gpu_enable_while_loop_double_buffering": "true"},
        "Run two layers in an iteration, so that gradients that wait for their sum are not copied to where the next "
        "iteration expects them. For gpt3-6.7b in bfloat16 with master=float32, zero2 takes 177 ms instead of 185 as "
        "replayed on 128 H100s, and 176 instead of 184 on 16. In float32 sums it gains nothing; data gets slower.",
        frozenset({"zero1", "zero2"}),
        {"reduce": "layer", "reduce_dtype": "bfloat16"},
    ),
)


def xla_options(
    device: Any, strategy: str, train: TrainConfig, given: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """XLA options of a step and of its variants: those given, and `DEFAULTS` for the others.

    Defaults that the installed XLA does not have are left out, with a warning. GPU and CPU backends read only `True`
    and `False` as Booleans; `true` and `false` are translated for them.

    Args:
        device: one of the step's devices, present or of a topology.
        strategy: name of the strategy.
        train: its options, with those for overlap resolved.
        given: the user's options.
    """
    matching = [each for each in DEFAULTS if each.applies(device.platform, strategy, train)]
    defaults = {name: value for each in matching for name, value in each.options.items() if name not in given}
    known = {name: value for name, value in defaults.items() if has_option(device, name, value)}
    if unknown := sorted(defaults.keys() - known):
        warnings.warn(
            f"this version of XLA has no option {', '.join(unknown)}; {strategy} is compiled without it", stacklevel=2
        )
    return {name: _as_read(device.platform, value) for name, value in {**known, **given}.items()}


@functools.cache
def has_option(device: Any, name: str, value: str) -> bool:
    """Whether the compiler for a device has an XLA option. An empty program is compiled with it.

    Raises:
        JaxRuntimeError: the option exists, and refuses this value.
    """
    anywhere = NamedSharding(Mesh(np.array([device]), "x"), P())
    empty = jax.jit(lambda x: x, out_shardings=anywhere)
    try:
        empty.lower(jax.ShapeDtypeStruct((), "int32", sharding=anywhere)).compile(
            {name: _as_read(device.platform, value)}
        )
    except jax.errors.JaxRuntimeError as error:
        if UNKNOWN in str(error):
            return False
        raise
    return True


def _as_read(platform: str, value: Any) -> Any:
    """A value as the compiler for a platform reads it: all but libtpu take a Boolean for a text that means one.

    >>> _as_read("gpu", "true"), _as_read("gpu", "8"), _as_read("tpu", "true")
    (True, '8', 'true')
    """
    return value if platform == "tpu" else BOOLEANS.get(str(value).lower(), value)
