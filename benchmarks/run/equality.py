"""Correctness check of every row: on any mesh, a step computes what one device computes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax

from benchmarks.cases.case import Case
from benchmarks.cases.failures import Mismatch, NonFinite
from strategies.step import Metrics

CHECKED_STEPS = 3
"""Number of first steps that are compared with one device."""
BATCHES = 2
"""One batch less than checked steps: the last step repeats the first batch, so its loss shows learning."""

ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-9, "float16": 2.0**-11}
"""Unit roundoff: the largest relative error of storing a number."""


@dataclass(frozen=True)
class Trajectory:
    """The first steps of a training run.

    Attributes:
        losses: nats per token, one per step.
        grad_norms: global norm of the gradients, one per step.
        loss_scales: of each step in float16; otherwise 1.
    """

    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    loss_scales: tuple[float, ...]

    @classmethod
    def of(cls, metrics: Sequence[Metrics]) -> "Trajectory":
        """Fetch the metrics of each step from the devices."""
        host = jax.device_get(metrics)
        return cls(
            tuple(float(m["loss"]) for m in host),
            tuple(float(m["grad_norm"]) for m in host),
            tuple(float(m.get("loss_scale", 1)) for m in host),
        )

    def require_finite(self, when: str, *, may_skip: bool = False) -> None:
        """Check that losses and gradient norms are finite.

        Args:
            when: where in the run these steps are, for the message.
            may_skip: accept float16 steps that were skipped because gradients overflowed, if their loss is finite and
                the loss scale can still be halved.

        Raises:
            NonFinite: names the first bad loss and gradient norm.
        """
        for loss, grad_norm, scale in zip(self.losses, self.grad_norms, self.loss_scales, strict=True):
            overflowed = math.isfinite(loss) and not math.isfinite(grad_norm) and scale > 1
            if not (math.isfinite(loss) and math.isfinite(grad_norm)) and not (overflowed and may_skip):
                advice = f": gradients overflow with --option loss_scale={scale:g}; take a smaller one"
                raise NonFinite(f"loss {loss} and gradient norm {grad_norm} {when}{advice if overflowed else ''}")

    def require_equal(self, single: "Trajectory", case: Case) -> None:
        """Check that this run equals one device's up to rounding.

        Raises:
            Mismatch: names the first step that differs, the numbers and the bound.
        """
        for name, values, references in (
            ("loss", self.losses, single.losses),
            ("gradient norm", self.grad_norms, single.grad_norms),
        ):
            for step, (value, expected) in enumerate(zip(values, references, strict=True), start=1):
                bound = step * rounding_bound(case) * abs(expected)
                difference = abs(value - expected)
                if difference > bound:
                    problem = f"step {step}: {name} {value:.7g} where one device has {expected:.7g}"
                    raise Mismatch(f"{problem}, {difference:.1e} apart; rounding explains {bound:.1e}")


def rounding_bound(case: Case) -> float:
    """Bound on the relative difference that another order of summation makes in one step. It adds up over steps.

    A reordered sum of n float32 terms changes by about sqrt(n) roundoffs, because the errors of its terms are
    independent (Higham & Mary 2019, "A New Approach to Probabilistic Rounding Error Analysis"). The longest sums run
    over the tokens, the hidden features or the vocabulary. A layer has four such sums in sequence, the head two, and
    the backward pass as many again; their errors are independent too. In bfloat16 and float16, programs
    accumulate in float32 and round only what they store, which gives the same bound without the sqrt(n).
    """
    config = case.config
    longest = max(case.batch_size * config.sequence, config.mlp_dim, config.vocab) if case.dtype == "float32" else 1
    sums_in_sequence = 2 * (4 * config.layers + 2)
    return math.sqrt(longest * sums_in_sequence) * ROUNDOFF[case.dtype]
