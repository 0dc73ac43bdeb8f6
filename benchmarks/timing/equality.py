"""The first law, held in every row: whatever its mesh, a step computes what one device computes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax

from benchmarks.cases import Case
from benchmarks.failures import Mismatch, NonFinite
from strategies.step import Metrics

CHECKED_STEPS = 3
BATCHES = 2
"""One less than the checked steps: the last of them sees the first batch again, and its loss tells what was learnt."""

ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-9}
"""The most that storing a number changes it, relative to the number."""


@dataclass(frozen=True)
class Trajectory:
    """The first steps of a training run: loss (nats per token) and global norm of the gradients, a number a step."""

    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]

    @classmethod
    def of(cls, metrics: Sequence[Metrics]) -> "Trajectory":
        """Fetch what the steps left on the devices."""
        host = jax.device_get(metrics)
        return cls(tuple(float(m["loss"]) for m in host), tuple(float(m["grad_norm"]) for m in host))

    def require_finite(self, when: str) -> None:
        """Refuse a run that has left the numbers.

        Raises:
            NonFinite: names the first such loss and gradient norm.
        """
        for loss, grad_norm in zip(self.losses, self.grad_norms, strict=True):
            if not (math.isfinite(loss) and math.isfinite(grad_norm)):
                raise NonFinite(f"loss {loss} and gradient norm {grad_norm} {when}")

    def require_equal(self, single: "Trajectory", case: Case) -> None:
        """Refuse a run that departs from one device's by more than rounding.

        Raises:
            Mismatch: names the first step that does, the numbers and the bound.
        """
        for name, ours, theirs in (
            ("loss", self.losses, single.losses),
            ("gradient norm", self.grad_norms, single.grad_norms),
        ):
            for step, (value, expected) in enumerate(zip(ours, theirs, strict=True), start=1):
                bound = step * rounding(case) * abs(expected)
                apart = abs(value - expected)
                if apart > bound:
                    problem = f"step {step}: {name} {value:.7g} where one device has {expected:.7g}"
                    raise Mismatch(f"{problem}, {apart:.1e} apart; rounding explains {bound:.1e}")


def rounding(case: Case) -> float:
    """The relative difference between two orders of the same sums, after one step; it adds up from step to step.

    A sum of n float32 terms, reordered, changes by about sqrt(n) roundoffs, for the errors of its terms are
    independent (Higham & Mary 2019, "A New Approach to Probabilistic Rounding Error Analysis"). The longest run over
    the tokens, the hidden features or the vocabulary. Four such sums follow one another in a layer, two in the head,
    and as many on the way back; their errors are independent too. bfloat16 sums in float32 and rounds only what it
    stores: the same without the sqrt(n).
    """
    config = case.config
    longest = max(case.batch_size * config.sequence, config.mlp_dim, config.vocab) if case.dtype == "float32" else 1
    sums = 2 * (4 * config.layers + 2)
    return math.sqrt(longest * sums) * ROUNDOFF[case.dtype]
