"""The options of a step that let communication overlap with computation: their defaults, and what forbids them.

`reduce="layer"` sums gradients in the backward loop over layers (layer_reduction.py, model/delayed_sums.py),
`prefetch="on"` gathers weights one layer ahead (model/prefetch.py), `halves="on"` runs layers on two halves of the
batch (model/halves.py), and `unroll` has several layers in an iteration, in which compilers overlap one layer's
communication with another's compute. The default of all is "auto", which depends on the devices (backends/backend.py).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from jax.sharding import Mesh

from strategies.backends.backend import Backend, backend_of
from strategies.config import GPTConfig, Infeasible, TrainConfig
from strategies.sharding.layout import Layout, size_of
from strategies.step import Implementation


def resolve_overlap(
    layout: Layout, sizes: Mapping[str, int], config: GPTConfig, train: TrainConfig, backend: Backend
) -> TrainConfig:
    """Resolve `reduce="auto"`, `prefetch="auto"`, `halves="auto"` and `unroll="auto"`.

    Args:
        layout: of the strategy.
        sizes: of the mesh axes.
        config: the model.
        train: with any `reduce`, `prefetch`, `halves` and `unroll`. Options without effect in this layout are
            ignored.
        backend: of the devices: what is faster there is the default.

    Returns:
        `train` with `reduce` "layer" or "step", `prefetch` and `halves` "on" or "off", and a number for `unroll`.

    Raises:
        Infeasible: `reduce="layer"`, `prefetch="on"` or `halves="on"`, and the model, the mesh or other options do not
            allow it.
    """
    layout = layout.along([axis for axis, size in sizes.items() if size > 1])
    prefetch = _prefetch(layout, config, train, backend)
    return replace(
        train,
        reduce=_reduce(layout, train, backend),
        prefetch=prefetch,
        halves=_halves(layout, sizes, train, backend),
        unroll=_unroll(layout, train, prefetch, backend),
    )


def delays_sums(layout: Layout, sizes: Mapping[str, int], config: GPTConfig, train: TrainConfig) -> bool:
    """Whether gradients are summed one layer late (model/delayed_sums.py), by `train` as resolved.

    Not where weights are gathered in the loop. With `prefetch` that delays sums already; without it hsdp gets slower
    (docs/experiments/2026-11-25-defaults-of-backends.md). Nor with two layers: compilers remove a loop over one layer,
    and then hold the gradients of both beside each other.
    """
    return train.reduce == "layer" and config.layers > 2 and size_of(layout.shards, sizes) == 1


def _reduce(layout: Layout, train: TrainConfig, backend: Backend) -> Literal["layer", "step"]:
    if not (layout.replicas or layout.updates) or train.reduce == "step":
        return "step"
    problem = _reduce_problem(layout, train)
    if problem and train.reduce == "layer":
        raise Infeasible(f"reduce=layer {problem}")
    return "layer" if train.reduce == "layer" or (backend.sums_by_layer and not problem) else "step"


def _prefetch(layout: Layout, config: GPTConfig, train: TrainConfig, backend: Backend) -> Literal["on", "off"]:
    if not layout.shards or train.prefetch == "off":
        return "off"
    problem = _prefetch_problem(layout, config, train)
    if problem and train.prefetch == "on":
        raise Infeasible(f"prefetch=on {problem}")
    replicated = set(layout.batch) & set(layout.replicas)  # with a context axis nothing was measured
    faster = backend.prefetches_replicated if replicated else backend.prefetches
    default = faster and not problem
    return "on" if train.prefetch == "on" or default else "off"


def _halves(layout: Layout, sizes: Mapping[str, int], train: TrainConfig, backend: Backend) -> Literal["on", "off"]:
    if "head_features" not in layout.dims or train.halves == "off":
        return "off"
    problem = _halves_problem(layout, sizes, train)
    if problem and train.halves == "on":
        raise Infeasible(f"halves=on {problem}")
    default = backend.halves and not problem
    return "on" if train.halves == "on" or default else "off"


def _unroll(layout: Layout, train: TrainConfig, prefetch: str, backend: Backend) -> int:
    """Resolve `unroll`, of a step with `prefetch` as it was resolved.

    By default an iteration has several layers only where weights are gathered in the loop and communication beside a
    layer can be hidden. With float32 sums that takes much more memory, so it is left to the user there.
    """
    if train.unroll != "auto":
        return train.unroll
    gathers = layout.shards and not layout.dims and not layout.tokens and train.gather == "layer"
    hidden = gathers and prefetch == "off" and train.reduce_dtype == "bfloat16"
    return backend.layers_per_gather if hidden else 1


def resolve_for_step(
    config: GPTConfig, mesh: Mesh, train: TrainConfig, layout: Layout, implementation: Implementation
) -> TrainConfig:
    """Resolve the options for the devices of a mesh, and for what a strategy implements.

    Raises:
        Infeasible: as `resolve_overlap`; or the strategy sums gradients by itself, and only once a step.
    """
    if implementation.compiler_partitioned:
        return replace(train, reduce="step", prefetch="off", halves="off", unroll=train.layers_in_loop)
    resolved = resolve_overlap(layout, mesh.shape, config, train, backend_of(mesh.devices.flat[0]))
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
