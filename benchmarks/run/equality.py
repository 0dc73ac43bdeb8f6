"""Correctness check of every row: on any mesh, a step computes what one device computes (strategies/checking)."""

import math
from collections.abc import Sequence
from dataclasses import replace

import jax

from benchmarks.cases.case import Case
from benchmarks.cases.failures import Mismatch, NonFinite
from strategies import checking
from strategies.checking import BATCHES, CHECKED_STEPS, Agreement, FirstSteps, in_float32, is_rounded
from strategies.step import Metrics, Step

__all__ = ["BATCHES", "CHECKED_STEPS", "agreement", "float32_case", "require_finite"]


def agreement(step: Step, mine: FirstSteps, single: FirstSteps) -> Agreement:
    """Compare first steps with those of one device."""
    try:
        return checking.compare(step, mine, single)
    except checking.Mismatch as error:
        raise Mismatch(str(error)) from error


def float32_case(case: Case) -> Case | None:
    """The same case in float32, in which rounding hides less; None if it is in float32 already."""
    if not is_rounded(case.training()):
        return None
    train = in_float32(case.training())
    options = tuple((name, getattr(train, name)) for name, _ in case.options)
    return replace(case, dtype="float32", options=options)


def require_finite(metrics: Sequence[Metrics], when: str, *, may_skip: bool = False) -> None:
    """Check that the losses and gradient norms of some steps are finite.

    Args:
        metrics: of the steps, on the devices or the host.
        when: where in the run these steps are, for the message.
        may_skip: accept float16 steps that were skipped because gradients overflowed, if their loss is finite and
            the loss scale can still be halved.
    """
    for step in jax.device_get(metrics):
        loss, grad_norm, scale = float(step["loss"]), float(step["grad_norm"]), float(step.get("loss_scale", 1))
        overflowed = math.isfinite(loss) and not math.isfinite(grad_norm) and scale > 1
        if not (math.isfinite(loss) and math.isfinite(grad_norm)) and not (overflowed and may_skip):
            advice = f": gradients overflow with --option loss_scale={scale:g}; take a smaller one"
            raise NonFinite(f"loss {loss} and gradient norm {grad_norm} {when}{advice if overflowed else ''}")
