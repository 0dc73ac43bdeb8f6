"""How evenly the experts of a case are loaded: counted once, outside the timed steps."""

import warnings
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from benchmarks.cases.failures import reason_of
from benchmarks.run.measure import Training
from strategies import Step
from strategies.model.gpt import choice_flops_per_token, flops_per_token
from strategies.step import Load


@dataclass(frozen=True)
class ExpertLoad:
    """What the routers of a step do with one batch.

    Attributes:
        largest_over_mean: choices of the most chosen expert over the mean of all, in the layer where this is largest.
        dropped_fraction: of all choices, those that no expert takes.
        balance_loss: the load-balancing loss without its factor, E sum_e f_e P_e, as the mean of layers; 1 if balanced.
    """

    largest_over_mean: float
    dropped_fraction: float
    balance_loss: float

    @classmethod
    def of(cls, load: Load) -> "ExpertLoad":
        """That of a counted load.

        >>> ExpertLoad.of(Load(np.array([[3.0, 1.0]]), np.array([[2.0, 2.0]]), np.array([1.0])))
        ExpertLoad(largest_over_mean=1.5, dropped_fraction=0.25, balance_loss=1.0)
        """
        choices_LE, probs_LE, dropped_L = (np.asarray(each, np.float64) for each in load)
        share_LE, probs_LE = (each_LE / each_LE.sum(1, keepdims=True) for each_LE in (choices_LE, probs_LE))
        experts = share_LE.shape[1]
        balance = experts * (share_LE * probs_LE).sum(1).mean()
        return cls(float(experts * share_LE.max()), float(dropped_L.sum() / choices_LE.sum()), float(balance))


def expert_facts(step: Step, training: Training, case: object) -> dict[str, Any]:
    """Fields of the record: the load for the next batch, and the model FLOPs without those of dropped choices.

    Empty for a model without experts. A failure is only a warning, because the row is complete without.
    """
    if step.load is None:
        return {}
    try:
        load = ExpertLoad.of(jax.device_get(step.load(training.state.params, next(training.batches))))
    except Exception as error:
        warnings.warn(f"{case}: the load of its experts could not be counted: {reason_of(error)}", stacklevel=2)
        return {}
    flops = flops_per_token(step.config) - round(load.dropped_fraction * choice_flops_per_token(step.config))
    return {"load": load, "model_flops_per_step": flops * step.tokens_per_step}
