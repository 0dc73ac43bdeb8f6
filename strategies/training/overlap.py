"""The options of a step that let communication overlap with computation: their defaults, and what forbids them.

`reduce="layer"` sums gradients in the backward loop over layers (layer_reduction.py), `prefetch="on"` gathers weights
one layer ahead (model/prefetch.py). Both have the default "auto", which depends on the devices.
"""

from dataclasses import replace

from strategies.config import GPTConfig, Infeasible, TrainConfig
from strategies.sharding.layout import Layout

GPUS = "gpu", "cuda"
"""Platforms of GPUs, as `platform_of` and JAX name them. For these XLA hides what both options let it hide.

For TPUs it hides less. On v5e, sums in the backward loop hide 2 of 9.6 ms, for 6 ms more of memory traffic. With
prefetch an fsdp step takes 778 ms, without it 707 ms (results/examples/pods). CPUs hide nothing."""


def resolve_overlap(layout: Layout, config: GPTConfig, train: TrainConfig, platform: str | None) -> TrainConfig:
    """Resolve `reduce="auto"` and `prefetch="auto"`.

    Args:
        layout: restricted to axes with more than one device.
        config: the model.
        train: with any `reduce` and `prefetch`. An option without effect in this layout is not refused.
        platform: of the devices, as `platform_of` names it; None for formulas without devices.

    Returns:
        `train` with `reduce` "layer" or "step", and `prefetch` "on" or "off".

    Raises:
        Infeasible: `reduce="layer"` or `prefetch="on"`, and the model, the layout or other options do not allow it.
    """
    sums, gathers = bool(layout.replicas or layout.updates), bool(layout.shards)
    reduces = _resolved(f"reduce={train.reduce}", train.reduce, "layer", sums, _reduce_problem(layout, train), platform)
    prefetches = _resolved(
        f"prefetch={train.prefetch}", train.prefetch, "on", gathers, _prefetch_problem(layout, config, train), platform
    )
    return replace(train, reduce="layer" if reduces else "step", prefetch="on" if prefetches else "off")


def _resolved(option: str, value: str, yes: str, acts: bool, problem: str, platform: str | None) -> bool:
    """Whether an option is on.

    Args:
        option: its name and value, for the error.
        value: `yes`, "auto", or that for off.
        yes: the value for on.
        acts: whether it has an effect in the layout.
        problem: why it is impossible; empty if it is possible.
        platform: of the devices.
    """
    if value == yes and acts and problem:
        raise Infeasible(f"{option} {problem}")
    return acts and not problem and (value == yes or (value == "auto" and platform in GPUS))


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
