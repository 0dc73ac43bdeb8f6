"""The options of a step that let communication overlap with computation: their defaults, and what forbids them.

`reduce="layer"` sums gradients in the backward loop over layers (layer_reduction.py, model/delayed_sums.py),
`prefetch="on"` gathers weights one layer ahead (model/prefetch.py), `halves="on"` runs layers on two halves of the
batch (model/halves.py), and `unroll` has several layers in an iteration, in which compilers overlap one layer's
communication with another's compute. The default of all is "auto", which depends on the devices.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from jax.sharding import Mesh

from strategies.config import GPTConfig, Infeasible, TrainConfig
from strategies.mesh import GPUS, platform_of
from strategies.sharding.layout import Layout, size_of
from strategies.step import Implementation
from strategies.torus import V5E, V6E

HALVED_TPUS = *V5E, *V6E, "TPU v5", "TPU v5p"
"""JAX's names of the TPUs on which layers run on halves of the batch: v5e, v5p and v6e.

For gpt3-6.7b, a step of three_d over fsdp=32,tensor=8 on v5e:16x16 takes 947 ms instead of 987 (simulated), and
over fsdp=256,tensor=8 on v5p:8x16x16 401 ms instead of 436; over fsdp=32,tensor=8 on v6e:16x16 339 ms instead of 356.
On other TPUs halves were not measured, and are off."""


def resolve_overlap(
    layout: Layout,
    sizes: Mapping[str, int],
    config: GPTConfig,
    train: TrainConfig,
    platform: str | None,
    kind: str = "",
) -> TrainConfig:
    """Resolve `reduce="auto"`, `prefetch="auto"`, `halves="auto"` and `unroll="auto"`.

    Gradients are summed by layer on GPUs alone. On 256 chips of v5e a step of `data` with three layers of gpt3-6.7b
    takes 127 ms by layer (simulated), and 118 without: 4 ms more are hidden, for 12 ms more of memory traffic. CPUs
    hide nothing.

    Args:
        layout: of the strategy.
        sizes: of the mesh axes.
        config: the model.
        train: with any `reduce`, `prefetch`, `halves` and `unroll`. Options without effect in this layout are
            ignored.
        platform: of the devices, as `platform_of` names it; None for formulas without devices.
        kind: of the devices, as JAX names it.

    Returns:
        `train` with `reduce` "layer" or "step", `prefetch` and `halves` "on" or "off", and a number for `unroll`.

    Raises:
        Infeasible: `reduce="layer"`, `prefetch="on"` or `halves="on"`, and the model, the mesh or other options do not
            allow it.
    """
    layout = layout.along([axis for axis, size in sizes.items() if size > 1])
    prefetch = _prefetch(layout, config, train, platform, kind)
    return replace(
        train,
        reduce=_reduce(layout, train, platform),
        prefetch=prefetch,
        halves=_halves(layout, sizes, train, platform, kind),
        unroll=_unroll(layout, train, prefetch, kind),
    )


def delays_sums(layout: Layout, sizes: Mapping[str, int], config: GPTConfig, train: TrainConfig) -> bool:
    """Whether gradients are summed one layer late (model/delayed_sums.py), by `train` as resolved.

    Not where weights are gathered in the loop. With `prefetch` that delays sums already; without it hsdp gets slower: a
    step of gpt3-6.7b over data=16,fsdp=8 H100s in float32 sums takes 306 ms (simulated), and 266 without delay. Nor
    with two layers: compilers remove a loop over one layer, and then hold the gradients of both beside each other.
    """
    return train.reduce == "layer" and config.layers > 2 and size_of(layout.shards, sizes) == 1


def _reduce(layout: Layout, train: TrainConfig, platform: str | None) -> Literal["layer", "step"]:
    if not (layout.replicas or layout.updates) or train.reduce == "step":
        return "step"
    problem = _reduce_problem(layout, train)
    if problem and train.reduce == "layer":
        raise Infeasible(f"reduce=layer {problem}")
    return "layer" if train.reduce == "layer" or (platform in GPUS and not problem) else "step"


def _prefetch(
    layout: Layout, config: GPTConfig, train: TrainConfig, platform: str | None, kind: str
) -> Literal["on", "off"]:
    """Resolve `prefetch`. Weights are not gathered ahead on v5e, nor on v6e where an axis of the batch replicates them.

    Over all chips of v5e:16x16 a reduce-scatter becomes an all-reduce, of which less is hidden with prefetch: a step of
    fsdp with gpt3-6.7b takes 778 ms (simulated), and without 707, or 692 since fsdp.py attends by token. hsdp gains 1%
    and three_d 2%, for the weights and gradients of another layer in memory. On v6e:16x16 hsdp over data=16,fsdp=16
    takes 302 ms with prefetch, and 297 without. Elsewhere prefetch gains: fsdp takes 234 ms instead of 246 on
    v6e:16x16, and 294 ms instead of 309 on v5p:8x16x16; hsdp over data=16,fsdp=128 on the latter 301 ms instead of 317.
    """
    if not layout.shards or train.prefetch == "off":
        return "off"
    problem = _prefetch_problem(layout, config, train)
    if problem and train.prefetch == "on":
        raise Infeasible(f"prefetch=on {problem}")
    replicated = set(layout.batch) & set(layout.replicas)  # with a context axis nothing was measured
    slower = kind in V5E or (kind in V6E and replicated)
    default = platform in (*GPUS, "tpu") and not slower and not problem
    return "on" if train.prefetch == "on" or default else "off"


def _halves(
    layout: Layout, sizes: Mapping[str, int], train: TrainConfig, platform: str | None, kind: str
) -> Literal["on", "off"]:
    if "head_features" not in layout.dims or train.halves == "off":
        return "off"
    problem = _halves_problem(layout, sizes, train)
    if problem and train.halves == "on":
        raise Infeasible(f"halves=on {problem}")
    default = (platform in GPUS or kind in HALVED_TPUS) and not problem
    return "on" if train.halves == "on" or default else "off"


def _unroll(layout: Layout, train: TrainConfig, prefetch: str, kind: str) -> int:
    """Resolve `unroll`: four layers in an iteration on v5e, which overlaps nothing with another iteration.

    `prefetch` is that of the step, as it was resolved.

    For gpt3-6.7b on v5e:16x16 a step of fsdp takes 645 ms instead of 692 (simulated), in 4.4 GiB instead of 2.8, and
    one of hsdp over data=16,fsdp=16 takes 807 ms instead of 841 (docs/experiments). With sums in float32 fsdp takes 9.5
    GiB, so it is left to the user there. three_d gained nothing. Other chips were not measured.
    """
    if train.unroll != "auto":
        return train.unroll
    gathers = layout.shards and not layout.dims and not layout.tokens and train.gather == "layer"
    hidden = gathers and prefetch == "off" and train.reduce_dtype == "bfloat16"
    return 4 if kind in V5E and hidden else 1


def resolve_for_step(
    config: GPTConfig, mesh: Mesh, train: TrainConfig, layout: Layout, implementation: Implementation
) -> TrainConfig:
    """Resolve the options for the devices of a mesh, and for what a strategy implements.

    Raises:
        Infeasible: as `resolve_overlap`; or the strategy sums gradients by itself, and only once a step.
    """
    if implementation.compiler_partitioned:
        return replace(train, reduce="step", prefetch="off", halves="off", unroll=train.layers_in_loop)
    device = mesh.devices.flat[0]
    resolved = resolve_overlap(layout, mesh.shape, config, train, platform_of(device), device.device_kind)
    if resolved.reduce == "layer" and implementation.sum_replicas and not implementation.sum_layer:
        if train.reduce == "layer":
            raise Infeasible("reduce=layer needs `sum_layer` beside `sum_replicas`; give it, or use reduce=step")
        return replace(resolved, reduce="step")
    return resolved


def _reduce_problem(layout: Layout, train: TrainConfig) -> str:
    """Why gradients cannot be summed layer by layer; empty if they can."""
    if "layers" in layout.dims:
        return "has no backward loop in a pipeline, whose stages accumulate gradients of microbatches; use reduce=step"
    if layout.shards and train.gather == "step":
        return "does not go with gather=step, which sums gradients once a step; use gather=layer or reduce=step"
    if train.compression != "none":
        return f"does not go with compression={train.compression}, which sums all gradients at once; use reduce=step"
    if train.microbatches > 1 and (layout.replicas or (layout.updates and not layout.scatters_each)):
        return f"would send gradients for each of microbatches={train.microbatches}; use reduce=step or microbatches=1"
    return ""


def _prefetch_problem(layout: Layout, config: GPTConfig, train: TrainConfig) -> str:
    """Why weights cannot be gathered one layer ahead; empty if they can."""
    if "layers" in layout.dims:
        return "has no loop over all layers in a pipeline; use prefetch=off"
    if train.gather == "step":
        return "does not go with gather=step, which gathers all weights at once; use gather=layer or prefetch=off"
    if not train.regather:
        return "gathers weights again for the backward pass; use regather=True or prefetch=off"
    if config.layers == 1:
        return "needs a second layer to gather, and layers=1; use prefetch=off"
    return ""


def _halves_problem(layout: Layout, sizes: Mapping[str, int], train: TrainConfig) -> str:
    """Why layers cannot run on two halves of the batch; empty if they can."""
    if layout.tokens:
        return "does not go with a context axis: its halves would send around two rings in any order; use halves=off"
    parts = size_of(layout.batch, sizes) * train.microbatches
    if train.batch_size % (2 * parts):
        each = f"batch_size={train.batch_size} / {parts} = {train.batch_size / parts:g}"
        needs = f"needs an even number of sequences in each microbatch on a device, and has {each}"
        return f"{needs}; use fewer microbatches, a larger batch or halves=off"
    return ""
