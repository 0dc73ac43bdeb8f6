"""How evenly the experts of a case are loaded: counted once, outside the timed steps."""

import warnings
from typing import Any

import jax
import numpy as np

from benchmarks.cases.failures import reason_of
from benchmarks.run.measure import Training
from strategies import Step
from strategies.costs.layer import choice_flops_per_token, flops_per_token
from strategies.step import Load


def load_columns(load: Load) -> dict[str, float]:
    """The columns of a row on what the routers of a step do with one batch.

    >>> load_columns(Load(np.array([[3.0, 1.0]]), np.array([[2.0, 2.0]]), np.array([1.0])))
    {'experts.largest_over_mean': 1.5, 'experts.dropped_fraction': 0.25, 'experts.balance_loss': 1.0}
    """
    choices_LE, probs_LE, dropped_L = (np.asarray(each, np.float64) for each in load)
    share_LE, probs_LE = (each_LE / each_LE.sum(1, keepdims=True) for each_LE in (choices_LE, probs_LE))
    experts = share_LE.shape[1]
    return {
        "experts.largest_over_mean": float(experts * share_LE.max()),
        "experts.dropped_fraction": float(dropped_L.sum() / choices_LE.sum()),
        "experts.balance_loss": float(experts * (share_LE * probs_LE).sum(1).mean()),
    }


def expert_facts(step: Step, training: Training, case: object) -> dict[str, Any]:
    """Facts of the record: columns on the load for the next batch, and model FLOPs without those of dropped choices.

    Empty for a model without experts. A failure is only a warning, because the row is complete without.
    """
    if step.load is None:
        return {}
    try:
        columns = load_columns(jax.device_get(step.load(training.state.params, next(training.batches))))
    except Exception as error:
        warnings.warn(f"{case}: the load of its experts could not be counted: {reason_of(error)}", stacklevel=2)
        return {}
    dropped = columns["experts.dropped_fraction"] * choice_flops_per_token(step.config)
    flops = (flops_per_token(step.config) - round(dropped)) * step.tokens_per_step
    return {"columns": columns, "model_flops_per_step": flops}
