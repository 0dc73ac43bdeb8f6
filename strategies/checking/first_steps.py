"""The first steps of a training run, reduced to the numbers that are compared with one device's."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from strategies.checking.bounds import Rounding
from strategies.checking.projections import Projection, kept_dims, project
from strategies.checkpoints.canonical import Leaf, leaves
from strategies.step import Metrics, State, Step

MOMENTS = "mu/"
"""Where a checkpoint has AdamW's first moments, each the mean of the gradients of the steps so far, the last most."""


@dataclass(frozen=True)
class FirstSteps:
    """What the first steps of a run computed.

    Attributes:
        losses: nats per token, one per step.
        grad_norms: global norm of the gradients before clipping, one per step.
        loss_scales: of each step in float16; otherwise 1.
        gradients: weight -> projection of the optimizer's first moment after the last step: a mean over the steps of
            the clipped gradients. Empty if the optimizer keeps none.
        changes: weight -> projection of its change by all steps, optimizer included.
        drifts_LU: weight -> bound on the norm of the difference that rounding makes in its change; of one device only.
        choices: tokens that choose each expert [L, E] in each step; empty for a model without experts.
    """

    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    loss_scales: tuple[float, ...]
    gradients: Mapping[str, Projection] = field(default_factory=dict)
    changes: Mapping[str, Projection] = field(default_factory=dict)
    drifts_LU: Mapping[str, np.ndarray] = field(default_factory=dict)
    choices: tuple[np.ndarray, ...] = ()

    @classmethod
    def of(
        cls,
        step: Step,
        metrics: Sequence[Metrics],
        state: State,
        before: Sequence[Array],
        choices: Sequence[Array] = (),
    ) -> "FirstSteps":
        """Reduce a run to these numbers.

        Args:
            step: the step.
            metrics: of each of its steps.
            state: after the last of them.
            before: the weights before the first (`initial.initial_weights`), in the order of `trained_weights`.
            choices: as above, on the devices.
        """
        losses, norms, scales, choices = jax.device_get(
            (
                [m["loss"] for m in metrics],
                [m["grad_norm"] for m in metrics],
                [m.get("loss_scale", 1.0) for m in metrics],
                choices,
            )
        )
        arrays = [*zip(leaves(step), jax.tree.leaves(state), strict=True)]
        moments = [(leaf, array) for leaf, array in arrays if leaf.name.startswith(MOMENTS)]
        weights = [*{leaf.name: (leaf, array) for leaf, array in arrays if leaf.is_weight}.values()]
        compared = [leaf for leaf, _ in (*moments, *weights)]
        minus = [*[None] * len(moments), *before]
        projections = project(step.mesh, compared, [array for _, array in (*moments, *weights)], minus)
        gradients, changes = projections[: len(moments)], projections[len(moments) :]
        return cls(
            tuple(map(float, losses)),
            tuple(map(float, norms)),
            tuple(map(float, scales)),
            {_weight(leaf): of for (leaf, _), of in zip(moments, gradients, strict=True)},
            {_weight(leaf): of for (leaf, _), of in zip(weights, changes, strict=True)},
            _drifts(step, arrays, len(metrics)) if step.mesh.size == 1 else {},
            tuple(map(np.asarray, choices)),
        )


def _weight(leaf: Leaf) -> str:
    """The weight's name: "blocks.mlp.up_DF" of "mu/blocks.mlp.up_DF"."""
    return leaf.name.partition("/")[2]


def _drifts(step: Step, arrays: Sequence[tuple[Leaf, Array]], steps: int) -> dict[str, np.ndarray]:
    """How far AdamW may drive two runs apart whose gradients agree up to rounding; on one device.

    It divides each element of a gradient by its own size. So an element much smaller than the others of its array has
    that much more relative error, up to a step of the other sign. And each new weight is rounded.
    """
    train, rounding = step.train, Rounding.of(step.config, step.train, steps)
    second = {_weight(leaf): (leaf, array) for leaf, array in arrays if leaf.name.startswith("nu/")}
    if not second:
        return {}
    weights = {_weight(leaf): array for leaf, array in arrays if leaf.is_weight}

    def drift(leaf: Leaf, square: Array, weight: Array, floor: Array) -> Array:
        dims = [dim for dim in range(square.ndim) if dim not in kept_dims(leaf)]
        norm = jnp.sqrt(square.sum(dims, keepdims=True))
        elements = math.prod(square.shape[dim] for dim in dims)
        error = rounding.gradient * jnp.maximum(norm, floor) / math.sqrt(elements)
        update = jnp.minimum(1, error / (jnp.sqrt(square) + train.epsilon))
        return steps * (2 * train.learning_rate * update + 2.0**-23 * jnp.abs(weight))

    def all_drifts(moments: Sequence[Array], weights: Sequence[Array]) -> list[Array]:
        squares = [moment / (1 - train.beta2**steps) for moment in moments]
        floor = rounding.floor * jnp.sqrt(jnp.stack([square.sum() for square in squares]).sum())
        inputs = zip([leaf for leaf, _ in second.values()], squares, weights, strict=True)
        return [drift(*each, floor) for each in inputs]

    drifts = jax.jit(all_drifts)([array for _, array in second.values()], [weights[name] for name in second])
    projections = project(step.mesh, [leaf for leaf, _ in second.values()], drifts, [None] * len(second))
    return {name: of.norm_LU for name, of in zip(second, projections, strict=True)}
