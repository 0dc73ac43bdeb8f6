"""Compare the first steps of a strategy with one device's, weight by weight."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from strategies.checking.bounds import FLOOR, TAIL, Rounding
from strategies.checking.first_steps import FirstSteps
from strategies.checking.projections import Projection
from strategies.model.block import part_and_layer

ROUTERS = "experts.router_DE", "experts.logit_bias_E"
"""Suffixes of weights that compute a router's logits."""


class Mismatch(ValueError):
    """A step does not compute what one device computes. The message names the number that differs."""


@dataclass(frozen=True)
class Agreement:
    """What was compared, and agrees up to rounding.

    Attributes:
        gradients: number of gradients: of each weight by layer, and by expert or by queries, keys and values.
        below_rounding: how many of these are so small, relative to the whole gradient, that rounding may halve them,
            like that of the key bias, which is zero except for rounding.
        flips: choices of experts that rounding changed, over all steps. They loosen the bounds.
        float32: for a step that computes or sums in 16 bits: whether its float32 step is "equal", or why it was not
            compared.
    """

    gradients: int
    below_rounding: int
    flips: int = 0
    float32: str = ""


@dataclass(frozen=True)
class Deviation:
    """A number that differs more than rounding explains.

    Attributes:
        what: such as "gradient of blocks.norm1.scale_D in layer 3".
        bound: the difference that rounding may cause.
        ratio: of the two norms; None if one device's is zero.
        scaled: whether the array is that multiple of one device's, as far as two numbers show it.
        relative: the difference divided by the norm of one device's array. A wrong gradient of one weight also changes
            all others from the next step on, but less, so the largest is named.
    """

    what: str
    kind: str
    value: float
    expected: float
    bound: float
    ratio: float | None
    scaled: bool
    relative: float

    def __str__(self) -> str:
        numbers = f"{self.kind} {self.value:.4g} where one device has {self.expected:.4g}"
        numbers = f"{numbers}; rounding explains {self.bound:.1e}"
        return (
            f"{self.what} is {self.ratio:.3f} of one device's ({numbers})" if self.scaled else f"{self.what}: {numbers}"
        )


@dataclass(frozen=True)
class Comparison:
    """The first steps of a strategy, and one device's.

    Attributes:
        sizes: of mesh axes, and the number of microbatches, which may explain a ratio.
        in_16_bits: whether the step computes, or sums gradients, in 16 bits.
        drift_factor: scales bounds on gradients relative to one device, which sums nothing in 16 bits over devices.
    """

    mine: FirstSteps
    single: FirstSteps
    rounding: Rounding
    sizes: Mapping[str, int] = field(default_factory=dict)
    in_16_bits: bool = False
    drift_factor: float = 1.0

    def require_equal(self) -> Agreement:
        """Check that all numbers agree up to rounding."""
        for steps, whose in ((self.single, "one device"), (self.mine, "the step")):
            _require_finite(steps, whose)
        if self.mine.loss_scales != self.single.loss_scales:
            raise Mismatch(f"loss scales {self.mine.loss_scales} where one device has {self.single.loss_scales}")
        if self.mine.stale:
            raise Mismatch(f"after the steps the weights {', '.join(self.mine.stale)} are not their masters, rounded")
        self._require("loss", self.mine.losses[:1], self.single.losses[:1])
        self._require_evaluation()
        self._require_replicas()
        if not self._turned_at(0).any():
            # Gradients before choices: a wrong gradient may change later choices, and its name is more helpful.
            self._refuse(
                self._deviations("gradient", self.mine.of_first_step, self.single.of_first_step, first_step=True)
            )
        self._require_choices()
        gradients = self._deviations("gradient", self.mine.gradients, self.single.gradients)
        if not gradients or self._is_common_factor(gradients):
            self._require("gradient norm", self.mine.grad_norms, self.single.grad_norms)
        self._refuse([*gradients, *self._deviations("change", self.mine.changes, self.single.changes)])
        self._require("loss", self.mine.losses, self.single.losses)
        return Agreement(
            sum(of.norm_LU.size for of in self.single.gradients.values()),
            sum(
                int((2 * self._bound_LU("gradient", name, of) >= of.norm_LU).sum())
                for name, of in self.single.gradients.items()
            ),
            self._flips,
        )

    def _is_common_factor(self, deviations: Sequence[Deviation]) -> bool:
        """Whether most gradients are off by the same factor as the first step's global norm."""
        factor = self.mine.grad_norms[0] / self.single.grad_norms[0] if self.single.grad_norms[0] else 1.0
        near = [abs((one.ratio or 0.0) - factor) < 0.2 * abs(1 - factor) for one in deviations]
        return sum(near) > 0.9 * len(near)

    @cached_property
    def _floor(self) -> float:
        return FLOOR * math.sqrt(sum(np.square(of.norm_LU).sum() for of in self.single.gradients.values()))

    @cached_property
    def _turned_LE(self) -> np.ndarray:
        """Each expert's choices that differ between the runs, over all steps."""
        return np.sum([self._turned_at(step) for step in range(len(self.single.choices))], 0)

    def _turned_at(self, step: int) -> np.ndarray:
        """The same for one step; empty without experts."""
        if not self.single.choices:
            return np.zeros(0)
        return np.abs(self.mine.choices[step] - self.single.choices[step])

    @property
    def _flips(self) -> int:
        """Number of choices of experts that differ, over all steps and layers."""
        return int(self._turned_LE.sum()) // 2

    @cached_property
    def _loosened(self) -> float:
        """Relative difference that changed choices cause in any gradient: this share of its terms is random."""
        total = sum(float(choices_LE[0].sum()) for choices_LE in self.single.choices)
        return 2 * math.sqrt(2 * self._flips / total) if self._flips else 0.0

    @cached_property
    def _router_drift(self) -> float:
        """Relative difference that rounding causes in experts' gradients after the first update of a router.

        AdamW moves weights whose gradients are all rounding by whole steps. Logits are products of a router's weights
        and normalised features, so they differ by the norm of that difference, and so does a token's share of an
        expert.
        """
        routers = (drift_LU for name, drift_LU in self.single.drifts_LU.items() if name.endswith(ROUTERS))
        return max((float(drift_LU.max()) for drift_LU in routers), default=0.0)

    def _require_choices(self) -> None:
        """Check that the runs send the same numbers of tokens to each expert, up to rounding of router scores."""
        total = sum(float(choices_LE.sum()) for choices_LE in self.single.choices)
        if self._flips > 2 + (0.1 if self.in_16_bits else 1e-3) * total:
            raise Mismatch(f"{self._flips} of {total:.0f} choices of experts differ from one device's")

    def _require(self, name: str, values: Sequence[float], expected: Sequence[float]) -> None:
        for step, (value, single) in enumerate(zip(values, expected, strict=True), start=1):
            bound = (step * self.rounding.of_step + self._loosened) * abs(single)
            if not abs(value - single) <= bound:
                numbers = f"step {step}: {name} {value:.7g} where one device has {single:.7g}"
                raise Mismatch(f"{numbers}, {abs(value - single):.1e} apart; rounding explains {bound:.1e}")

    def _require_evaluation(self) -> None:
        if self.mine.evaluation is not None and self.single.evaluation is not None:
            self._require("evaluated loss", [self.mine.evaluation], [self.single.evaluation])

    def _require_replicas(self) -> None:
        """Check that devices with the same part of a weight have equal gradients and weights."""
        for what, projections in (("gradient", self.mine.gradients), ("change", self.mine.changes)):
            for name, of in projections.items():
                for axis, difference in of.differing.items():
                    if not difference <= TAIL * self.rounding.gradient:
                        problem = f"the {what} of {name} differs between devices along `{axis}` by {difference:.1e}"
                        raise Mismatch(
                            f"{problem} of its norm, where it is replicated: a sum over `{axis}` is missing?"
                        )

    def _refuse(self, deviations: Sequence[Deviation]) -> None:
        if deviations:
            worst = max(deviations, key=lambda deviation: deviation.relative)
            others = f" ({len(deviations) - 1} more differ)" if len(deviations) > 1 else ""
            raise Mismatch(f"{worst}{self._explained(worst)}{others}")

    def _explained(self, deviation: Deviation) -> str:
        """The probable cause, if an axis or the microbatches explain a ratio."""
        if not deviation.scaled or not deviation.ratio:
            return ""
        for factor, problem in (
            (1 / deviation.ratio, "a sum over {} is missing"),
            (deviation.ratio, "summed twice over {}"),
        ):
            if names := [f"`{name}`" for name, size in self.sizes.items() if size > 1 and abs(factor - size) < 0.01]:
                return f": {problem.format(' or '.join(names))}?"
        return ""

    def _deviations(
        self, what: str, mine: Mapping[str, Projection], single: Mapping[str, Projection], *, first_step: bool = False
    ) -> list[Deviation]:
        """All numbers that differ more than rounding explains. `what` is "gradient" or "change"."""
        if mine.keys() != single.keys():
            names = ", ".join(sorted(mine.keys() ^ single.keys()))
            problem = f"the {what} of {names} cannot be compared, because only one of the two states has it"
            raise Mismatch(f"{problem}; an optimizer keeps the mean of the gradients as `mu`")
        return [
            deviation
            for name in mine
            for deviation in self._of_weight(
                what, name, mine[name], single[name], self._bound_LU(what, name, single[name], first_step=first_step)
            )
        ]

    def _of_weight(
        self, what: str, name: str, mine: Projection, single: Projection, bound_LU: np.ndarray
    ) -> Iterator[Deviation]:
        """Numbers of one weight that differ more than rounding explains: the worse one for each layer and unit."""
        layers, units = bound_LU.shape
        for at in np.ndindex(layers, units):
            bound, norms = float(bound_LU[at]), (float(mine.norm_LU[at]), float(single.norm_LU[at]))
            signed = float(mine.signed_LU[at]), float(single.signed_LU[at])
            off = {"norm": abs(norms[0] - norms[1]), "projection": abs(signed[0] - signed[1]) / TAIL}
            if all(difference <= bound for difference in off.values()):  # also false for NaN
                continue
            ratio = norms[0] / norms[1] if norms[1] else None
            scaled = ratio is not None and norms[1] > bound and abs(signed[0] - ratio * signed[1]) <= TAIL * bound
            kind = "norm" if scaled or not off["norm"] < off["projection"] else "projection"
            values = norms if kind == "norm" else signed
            place = (f" in layer {at[0]}" if layers > 1 else "") + (f", {single.units[at[1]]}" if units > 1 else "")
            relative = abs(values[0] - values[1]) / ((norms[1] + bound) or 1.0)
            bound *= 1 if kind == "norm" else TAIL
            yield Deviation(f"{what} of {name}{place}", kind, *values, bound, ratio, scaled, relative)

    def _bound_LU(self, what: str, name: str, single: Projection, *, first_step: bool = False) -> np.ndarray:
        """The difference of a norm that rounding, and choices of experts changed by it, may cause.

        No choice differs in the first step, as far as numbers of tokens show. They do not show two tokens that swap
        their experts, so in 16 bits its gradients may differ as much as if all choices that differ did so there.
        """
        loosened_LU = np.zeros_like(single.norm_LU)
        if not first_step or self.in_16_bits:
            loosened_LU = self._turned_share(name, single) * single.norm_LU
        if what == "change":
            # Router biases do not drift, because they move by equal steps.
            drift_LU = self.single.drifts_LU.get(name, 2.0**-20 * single.norm_LU)
            if name not in self.single.drifts_LU and self._flips:
                return 2 * single.norm_LU  # a changed choice may flip the sign of a router bias's step
            return self.drift_factor * drift_LU + 2 * loosened_LU
        if not first_step:
            loosened_LU = loosened_LU + self._router_drift * single.norm_LU
        return self.rounding.gradient * np.maximum(single.norm_LU, self._floor) + loosened_LU

    def _turned_share(self, name: str, single: Projection) -> float | np.ndarray:
        """Relative difference that changed choices of experts cause: in each expert's array by those of this expert."""
        if "expert 0" not in single.units or not self._flips:
            return self._loosened
        least_LE = np.maximum(sum(self.single.choices), 1)
        turned_LE = 2 * np.sqrt(self._turned_LE / least_LE)
        # The choices are of layers; a weight of a block of several layers has those of its place in the block.
        _, place = part_and_layer(name.split(".")[1])
        return self._loosened + turned_LE[place :: len(turned_LE) // len(single.norm_LU)]


def _require_finite(steps: FirstSteps, whose: str) -> None:
    for number, (loss, norm) in enumerate(zip(steps.losses, steps.grad_norms, strict=True), start=1):
        if not (math.isfinite(loss) and math.isfinite(norm)):
            scale = max(steps.loss_scales)
            advice = f"; take a loss_scale smaller than {scale:g}" if scale > 1 else ""
            raise Mismatch(f"step {number} of {whose}: loss {loss} and gradient norm {norm}{advice}")
