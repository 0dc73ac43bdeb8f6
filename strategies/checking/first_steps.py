"""The first steps of a training run, reduced to the numbers that are compared with one device's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import jax
import numpy as np
from jaxtyping import Array

from strategies.checking.drifts import FIRST, WEIGHTS, adam_drift, arrays_of, drifts, projected, weight_of
from strategies.checking.projections import Projection
from strategies.checkpoints.canonical import leaves
from strategies.step import Metrics, State, Step, Tokens


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
        self._drift = adam_drift(step)
        self._drifts_LU: dict[str, np.ndarray] = {}

    def before(self, state: State, batch: Tokens) -> None:
        """Count the tokens of each expert in the next step, if there are experts."""
        if self.step.config.experts:
            self._choices.append(self.step.load(state.params, batch).choices_LE)

    def after(self, state: State, metrics: Metrics) -> None:
        """Record a step's metrics, on one device its drift, and with experts the gradients of the first step."""
        self._metrics.append(metrics)
        if self._choices and len(self._metrics) == 1:
            moments = arrays_of(self.step, state, FIRST)
            self._of_first_step = dict(zip(moments, projected(self.step, [*moments.values()]), strict=True))
        if self.step.mesh.size == 1:
            # By step, because an element's first gradient may be small where its later ones are not.
            for name, drift_LU in drifts(self.step, self._drift, state, len(self._metrics)).items():
                self._drifts_LU[name] = self._drifts_LU.get(name, 0.0) + drift_LU

    def first_steps(self, state: State, weights: Callable[[], Sequence[Array]]) -> FirstSteps:
        """The results. `weights` returns the initial weights (initial.py) in the order of `trained_weights`."""
        metrics, choices = jax.device_get((self._metrics, self._choices))
        moments, trained = (arrays_of(self.step, state, group) for group in (FIRST, WEIGHTS))
        placed = [*moments.values(), *trained.values()]
        projections = projected(self.step, placed, [*[None] * len(moments), *weights()])
        return FirstSteps(
            losses=tuple(float(of_step["loss"]) for of_step in metrics),
            grad_norms=tuple(float(of_step["grad_norm"]) for of_step in metrics),
            loss_scales=tuple(float(of_step.get("loss_scale", 1)) for of_step in metrics),
            gradients=dict(zip(moments, projections[: len(moments)], strict=True)),
            changes=dict(zip(trained, projections[len(moments) :], strict=True)),
            of_first_step=self._of_first_step,
            drifts_LU=self._drifts_LU,
            stale=_stale(self.step, state) if state.master else (),
            choices=tuple(map(np.asarray, choices)),
        )


def _stale(step: Step, state: State) -> tuple[str, ...]:
    """Weights of the forward pass that differ from their rounded master weights, by norm and projection."""
    weights = [each for each in zip(leaves(step), jax.tree.leaves(state), strict=True) if each[0].is_weight]
    count = len(weights) // 2
    held, masters = weights[:count], weights[count:]
    rounded = jax.jit(lambda masters: [each.astype(of.dtype) for each, (_, of) in zip(masters, held, strict=True)])
    ours = projected(step, held)
    cast = rounded([array for _, array in masters])
    theirs = projected(step, [(leaf, array) for (leaf, _), array in zip(masters, cast, strict=True)])

    def differs(mine: Projection, master: Projection) -> bool:
        off_LU = np.maximum(abs(mine.norm_LU - master.norm_LU), abs(mine.signed_LU - master.signed_LU))
        return bool(mine.differing) or not (off_LU <= 2.0**-18 * master.norm_LU).all()

    return tuple(weight_of(placed) for placed, *two in zip(held, ours, theirs, strict=True) if differs(*two))
