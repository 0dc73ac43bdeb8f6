"""The first steps of a training run, reduced to the numbers that are compared with one device's."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from strategies.checking.bounds import FLOOR, Rounding
from strategies.checking.projections import Projection, is_on_host, kept_dims, project
from strategies.checkpoints.canonical import Leaf, leaves
from strategies.step import Metrics, State, Step, Tokens

FIRST, SECOND = "mu", "nu"
"""Names of AdamW's moments in the optimizer state. A first moment is a weighted mean of all steps' gradients."""


@dataclass(frozen=True)
class FirstSteps:
    """Results of a run's first steps.

    Attributes:
        losses: nats per token, one per step.
        grad_norms: global norm of the gradients before clipping, one per step.
        loss_scales: of each step in float16; otherwise 1.
        gradients: weight -> projection of the optimizer's first moment after the last step, a mean of the clipped
            gradients. Empty if the optimizer has none.
        of_first_step: the same after only the first step, for a mixture of experts.
        changes: weight -> projection of its change by all steps, optimizer included.
        drifts_LU: weight -> bound on the norm of the difference that rounding causes in its change; for one device
            only.
        stale: weights that differ from their rounded master weights.
        choices: tokens that choose each expert [L, E] in each step; empty without experts.
        evaluation: loss of the first batch before the first step, by `Step.evaluate`; None if not evaluated.
    """

    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    loss_scales: tuple[float, ...]
    gradients: Mapping[str, Projection] = field(default_factory=dict)
    changes: Mapping[str, Projection] = field(default_factory=dict)
    of_first_step: Mapping[str, Projection] = field(default_factory=dict)
    drifts_LU: Mapping[str, np.ndarray] = field(default_factory=dict)
    stale: tuple[str, ...] = ()
    choices: tuple[np.ndarray, ...] = ()
    evaluation: float | None = None


class Recorder:
    """Reduces a run's first steps to what is compared. Call `before` and `after` each step, then `first_steps`.

    With a learned router the first step's gradients are recorded separately: all runs choose the same experts there, up
    to rounding, whereas a wrong gradient may change choices in later steps.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self._metrics: list[Metrics] = []
        self._choices: list[Array] = []
        self._of_first_step: dict[str, Projection] = {}
        self._drift = _drift(step)
        self._drifts_LU: dict[str, np.ndarray] = {}

    def before(self, state: State, batch: Tokens) -> None:
        """Count the tokens of each expert in the next step, if there are experts."""
        if self.step.config.experts:
            self._choices.append(self.step.load(state.params, batch).choices_LE)

    def after(self, state: State, metrics: Metrics) -> None:
        """Record a step's metrics, on one device its drift, and with experts the gradients of the first step."""
        self._metrics.append(metrics)
        if self._choices and len(self._metrics) == 1:
            moments = _moments(self.step, state)
            projections = _projected(self.step, moments, [None] * len(moments))
            self._of_first_step = dict(zip(map(weight_of, moments), projections, strict=True))
        if self.step.mesh.size == 1:
            # By step, because an element's first gradient may be small where its later ones are not.
            for name, drift_LU in _drifts(self.step, self._drift, state, len(self._metrics)).items():
                self._drifts_LU[name] = self._drifts_LU.get(name, 0.0) + drift_LU

    def first_steps(self, state: State, weights: Callable[[], Sequence[Array]]) -> FirstSteps:
        """The results. `weights` returns the initial weights (initial.py) in the order of `trained_weights`."""
        metrics, choices = jax.device_get((self._metrics, self._choices))
        arrays = [*zip(leaves(self.step), jax.tree.leaves(state), strict=True)]
        moments = _moments(self.step, state)
        trained = [*{leaf.name: (leaf, array) for leaf, array in arrays if leaf.is_weight}.values()]
        projections = _projected(self.step, [*moments, *trained], [*[None] * len(moments), *weights()])
        return FirstSteps(
            losses=tuple(float(of_step["loss"]) for of_step in metrics),
            grad_norms=tuple(float(of_step["grad_norm"]) for of_step in metrics),
            loss_scales=tuple(float(of_step.get("loss_scale", 1)) for of_step in metrics),
            gradients=dict(zip(map(weight_of, moments), projections[: len(moments)], strict=True)),
            changes=dict(zip(map(weight_of, trained), projections[len(moments) :], strict=True)),
            of_first_step=self._of_first_step,
            drifts_LU=self._drifts_LU,
            stale=_stale(self.step, arrays) if state.master else (),
            choices=tuple(map(np.asarray, choices)),
        )


def _moments(step: Step, state: State) -> list[tuple[Leaf, Array]]:
    """AdamW's first moments; empty if the optimizer has none."""
    arrays = zip(leaves(step), jax.tree.leaves(state), strict=True)
    return [(leaf, array) for leaf, array in arrays if is_moment(leaf, FIRST)]


def is_moment(leaf: Leaf, name: str) -> bool:
    """Whether an array is a moment of this name, however the optimizer is wrapped."""
    return leaf.name.rpartition("/")[0].split("/")[-1] == name


def _projected(step: Step, arrays: Sequence[tuple[Leaf, Array]], minus: Sequence[Array | None]) -> list[Projection]:
    return project(step.mesh, [leaf for leaf, _ in arrays], [array for _, array in arrays], minus) if arrays else []


def _stale(step: Step, arrays: Sequence[tuple[Leaf, Array]]) -> tuple[str, ...]:
    """Weights of the forward pass that differ from their rounded master weights, by norm and projection."""
    weights = [placed for placed in arrays if placed[0].is_weight]
    count = len(weights) // 2
    held, masters = weights[:count], weights[count:]
    rounded = jax.jit(lambda masters: [each.astype(of.dtype) for each, (_, of) in zip(masters, held, strict=True)])
    ours = _projected(step, held, [None] * count)
    cast = rounded([array for _, array in masters])
    theirs = _projected(step, [(leaf, array) for (leaf, _), array in zip(masters, cast, strict=True)], [None] * count)

    def differs(mine: Projection, master: Projection) -> bool:
        off_LU = np.maximum(abs(mine.norm_LU - master.norm_LU), abs(mine.signed_LU - master.signed_LU))
        return bool(mine.differing) or not (off_LU <= 2.0**-18 * master.norm_LU).all()

    return tuple(weight_of(placed) for placed, *two in zip(held, ours, theirs, strict=True) if differs(*two))


def weight_of(placed: tuple[Leaf, Any]) -> str:
    """The weight that an array belongs to: "blocks.mlp.up_DF" for "mu/blocks.mlp.up_DF"."""
    return placed[0].name.rpartition("/")[2]


def _drift(step: Step) -> Callable[..., list[Any]]:
    """The function (second moments, weights, relative error of the gradients, Adam's bias correction) -> how far one
    update may drive apart each element in two runs whose gradients agree up to rounding.

    AdamW divides each element of a gradient by its own size. So an element much smaller than the others of its array
    has a larger relative error, up to a step of the opposite sign. Each new weight is also rounded.
    """
    train, of_moments = step.train, [leaf for leaf in leaves(step) if is_moment(leaf, SECOND)]

    def drift(leaf: Leaf, square: Any, weight: Any, relative_error: Any, floor: Any) -> Any:
        xp = square.__array_namespace__()
        dims = [dim for dim in range(square.ndim) if dim not in kept_dims(leaf)]
        norm = xp.sqrt(square.sum(tuple(dims), keepdims=True))
        elements = math.prod(square.shape[dim] for dim in dims)
        error = relative_error * xp.maximum(norm, floor) / math.sqrt(elements)
        update = xp.minimum(1, error / (xp.sqrt(square) + train.epsilon))
        return 2 * train.learning_rate * update + 2.0**-23 * abs(weight)

    def drifts(moments: Sequence[Any], weights: Sequence[Any], relative_error: Any, share: Any) -> list[Any]:
        squares = [moment / share for moment in moments]
        floor = FLOOR * sum(square.sum() for square in squares) ** 0.5
        inputs = zip(of_moments, squares, weights, strict=True)
        return [drift(*each, relative_error, floor) for each in inputs]

    return drifts if is_on_host(step.mesh) else jax.jit(drifts)


def _drifts(step: Step, drift: Callable[..., list[Any]], state: State, number: int) -> dict[str, np.ndarray]:
    """Norms of the drift of each weight in step `number` (from 1), for one device; empty without second moments."""
    arrays = [*zip(leaves(step), jax.tree.leaves(state), strict=True)]
    second = {weight_of(placed): placed for placed in arrays if is_moment(placed[0], SECOND)}
    weights = {weight_of(placed): placed[1] for placed in arrays if placed[0].is_weight}
    inputs = [array for _, array in second.values()], [weights[name] for name in second]
    inputs = jax.tree.map(np.asarray, inputs) if is_on_host(step.mesh) else inputs
    error = Rounding.of(step.config, step.train, number).gradient
    drifts = jax.device_put(drift(*inputs, error, 1 - step.train.beta2**number), step.mesh.devices.flat[0])
    placed = [(leaf, of) for (leaf, _), of in zip(second.values(), drifts, strict=True)]
    projections = _projected(step, placed, [None] * len(placed))
    return {name: of.norm_LU for name, of in zip(second, projections, strict=True)}
