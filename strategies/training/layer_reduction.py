"""Sum the gradients of each layer over devices inside the backward loop over layers (`TrainConfig.reduce="layer"`).

The sum of a layer's gradients depends on no other layer, so a compiler may overlap it with the backward pass of the
layers before it (Li et al. 2020, "PyTorch Distributed", section 3.2.3). Autodiff leaves gradients on the device that
computed them. So each stored weight of the blocks is paired with a target, the array whose gradient is the sum: the
weight itself, or with a sharded update (ZeRO stages 1 and 2) this device's shard of it. A layer runs with the weight,
and its gradients, summed, become those of the targets.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
from flax import nnx
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array

from strategies.backends.backend import are_virtual
from strategies.config import GPTConfig, TrainConfig
from strategies.mesh import mark_varying
from strategies.model.gpt import GPT
from strategies.model.hooks import Hooks
from strategies.model.order import after
from strategies.model.weights import Weights
from strategies.sharding.layout import Layout
from strategies.sharding.weight_shards import Shards
from strategies.step import Differentiate, Divisor, Implementation, Tokens
from strategies.training.gradients import cast
from strategies.training.overlap import delays_sums

Dims = Sequence[str]


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
        delayed: whether the sums run one layer late (model/delayed_sums.py).
        virtual: whether the devices are virtual CPU devices, which may deadlock.
    """

    layout: Layout
    train: TrainConfig
    implementation: Implementation
    shards: Shards | None
    delayed: bool
    virtual: bool

    @classmethod
    def of(
        cls, layout: Layout, config: GPTConfig, mesh: Mesh, train: TrainConfig, implementation: Implementation
    ) -> "LayerReduction | None":
        """The sums in the backward loop of a step; None if `reduce`, as resolved (overlap.py), is not "layer"."""
        if train.reduce != "layer":
            return None
        shards = layout.shards_of(layout.updates, config, mesh.shape) if layout.updates else None
        delayed = delays_sums(layout, mesh.shape, config, train)
        return cls(layout, train, implementation, shards, delayed, are_virtual(mesh.devices.ravel()))

    @property
    def hooks(self) -> Hooks:
        """The hooks of the strategy, with one that runs each layer with its weights and sums their gradients."""
        return replace(self.implementation.hooks, layer=self.run_layer, delays_sums=self.delayed)

    def differentiate(self, differentiate: Differentiate) -> Differentiate:
        """A `Differentiate` whose gradients of the blocks are summed over devices."""
        axes = (*self.layout.replicas, *self.layout.updates)

        def of_targets(
            build: Callable[[Weights], GPT], weights: Weights, tokens_BS: Tokens, divisor: Divisor
        ) -> tuple[Array, Weights]:
            blocks = weights["blocks"]
            run_with = mark_varying(lax.stop_gradient(blocks), axes)
            parts = self.shards.map_weights(self.shards.local_part, {"blocks": blocks}) if self.shards else {}
            targets = cast(parts, "float32")  # as the sums of gradients are, whatever `master` makes of the weights

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
    # A norm of the blocks varies over the mesh axes over which the last norm does.
    return loss, {**grads, "head": after(grads["blocks"]["norm1"]["scale_D"], grads["head"])}
