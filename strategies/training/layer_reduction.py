"""Sum the gradients of each layer over devices inside the backward loop over layers (`TrainConfig.reduce="layer"`).

The sum of a layer's gradients depends on no other layer, so that a compiler may hide it behind the backward pass of the
layers before it (Li et al. 2020, "PyTorch Distributed", section 3.2.3). Autodiff leaves gradients on the device that
computed them. So each stored weight of the blocks is paired with a target, the array whose gradient is the sum: the
weight itself, or with a sharded update (ZeRO stages 1 and 2) this device's shard of it. A layer runs with the weight,
and its gradients, summed, become those of the targets.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
from flax import nnx
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array

from strategies.config import GPTConfig, Infeasible, TrainConfig
from strategies.mesh import are_virtual, mark_varying
from strategies.model.gpt import GPT
from strategies.model.hooks import Hooks
from strategies.model.weights import Weights
from strategies.sharding.layout import Layout
from strategies.sharding.weight_shards import Shards
from strategies.step import Differentiate, Divisor, Implementation, Tokens
from strategies.training.gradients import cast

Dims = Sequence[str]
GPUS = "gpu", "cuda"
"""Platforms of GPUs, present and absent. For these XLA hides sums in the backward loop. For v5e it hides 2 of 9.6 ms,
for 6 ms more of memory traffic; on CPUs it hides nothing."""


@partial(jax.tree_util.register_dataclass, data_fields=["weight", "target"], meta_fields=[])
@dataclass(frozen=True)
class Paired:
    """A stored weight, and the array whose gradient is the summed gradient of the weight."""

    weight: Array
    target: Array


@dataclass(frozen=True)
class LayerReduction:
    """Sums of the gradients of each layer in the backward loop.

    Attributes:
        layout, train, implementation: those of the step.
        shards: of the weights over `Layout.updates`; None if each device updates all weights that it holds.
        virtual: whether the devices are virtual CPU devices, which may deadlock.
    """

    layout: Layout
    train: TrainConfig
    implementation: Implementation
    shards: Shards | None
    virtual: bool

    @classmethod
    def of(
        cls, layout: Layout, config: GPTConfig, mesh: Mesh, train: TrainConfig, implementation: Implementation
    ) -> "LayerReduction | None":
        """The sums in the backward loop of a step; None if it sums all gradients after the loop.

        Raises:
            Infeasible: `reduce="layer"`, and the layout, the options or the microbatches do not allow it.
        """
        present, devices = layout.along([axis for axis, size in mesh.shape.items() if size > 1]), mesh.devices.ravel()
        layered = resolve_reduce(present, train, devices[0].platform).reduce == "layer"
        if implementation.compiler_partitioned or not layered or not (present.replicas or present.updates):
            return None
        if implementation.sum_replicas and not implementation.sum_layer:
            if train.reduce == "layer":
                raise Infeasible("reduce=layer needs `sum_layer` beside `sum_replicas`; give it, or use reduce=step")
            return None
        shards = layout.shards_of(layout.updates, config, mesh.shape) if layout.updates else None
        return cls(layout, train, implementation, shards, are_virtual(devices))

    @property
    def hooks(self) -> Hooks:
        """The hooks of the strategy, with one that runs each layer with its weights and sums their gradients."""
        return replace(self.implementation.hooks, layer=self.run_layer)

    def differentiate(self, differentiate: Differentiate) -> Differentiate:
        """A `Differentiate` whose gradients of the blocks are summed over devices."""
        axes = (*self.layout.replicas, *self.layout.updates)

        def of_targets(
            build: Callable[[Weights], GPT], weights: Weights, tokens_BS: Tokens, divisor: Divisor
        ) -> tuple[Array, Weights]:
            blocks = weights["blocks"]
            run_with = mark_varying(lax.stop_gradient(blocks), axes)
            targets = self.shards.map_weights(self.shards.local_part, {"blocks": blocks}) if self.shards else {}

            def paired(weights: Weights) -> GPT:
                return build({**weights, "blocks": jax.tree.map(Paired, run_with, weights["blocks"])})

            loss, grads = differentiate(paired, {**weights, **targets}, tokens_BS, divisor)
            return _after_blocks(loss, grads) if self.virtual else (loss, grads)

        return of_targets

    def run_layer(self, layer: nnx.State) -> nnx.State:
        """Paired weights of a layer -> the weights. Weights that are not paired, as in evaluation, stay as they are."""
        params, structure = jax.tree.flatten(layer, is_leaf=lambda leaf: isinstance(leaf, nnx.Param))
        pairs = [param.get_value() for param in params]
        if not isinstance(pairs[0], Paired):
            return layer

        @jax.custom_vjp
        def weights_of(weights: list[Array], targets: list[Array]) -> list[Array]:
            return weights

        dims = [param.dims for param in params]
        weights_of.defvjp(lambda weights, _: (weights, None), lambda _, grads: (None, self.summed(grads, dims)))
        weights = weights_of([pair.weight for pair in pairs], [pair.target for pair in pairs])
        return jax.tree.unflatten(structure, [param.replace(w) for param, w in zip(params, weights, strict=True)])

    def summed(self, grads: list[Array], dims: list[Dims]) -> list[Array]:
        """Gradients of one layer on each device, and the dims of its weights -> the gradients of the targets."""
        dtype, replicas = self.train.reduce_dtype, self.layout.replicas
        if self.shards:
            grads = [self.shards.scatter(grad, names, dtype) for grad, names in zip(grads, dims, strict=True)]
        if not replicas:
            return grads
        if self.implementation.sum_layer:
            return self.implementation.sum_layer(grads)
        return cast(lax.psum(cast(grads, dtype), replicas), "float32")


def _after_blocks(loss: Array, grads: Weights) -> tuple[Array, Weights]:
    """Make the gradients of the head depend on those of the blocks. Their values do not change if all are finite.

    Otherwise XLA's CPU backend may sum them concurrently with the backward loop, and virtual devices may deadlock
    (benchmarks/program/deadlock.py). The gradients of the embedding depend on the loop anyway.
    """
    # XLA cannot remove a product with 0, which may be NaN. So the dependency lasts until the schedule is fixed. A norm
    # of the blocks varies over the mesh axes over which the last norm does.
    dependency: Any = 0 * grads["blocks"]["norm1"]["scale_D"][0, 0]
    return loss, {**grads, "head": jax.tree.map(lambda grad: grad + dependency, grads["head"])}


def resolve_reduce(layout: Layout, train: TrainConfig, platform: str) -> TrainConfig:
    """Resolve `reduce="auto"`: "layer" on GPUs, where it sends no more; otherwise "step".

    Args:
        layout: restricted to axes with more than one device.
        train: with any `reduce`.
        platform: of the devices.

    Raises:
        Infeasible: `reduce="layer"`, and the layout, the options or the microbatches do not allow it.
    """
    problem = _problem(layout, train)
    if train.reduce == "layer" and problem:
        raise Infeasible(f"reduce=layer {problem}")
    if train.reduce != "auto":
        return train
    sums = layout.replicas or layout.updates
    return replace(train, reduce="layer" if sums and not problem and platform in GPUS else "step")


def _problem(layout: Layout, train: TrainConfig) -> str:
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
