"""Checks that a step computes what one device computes, weight by weight.

Start at `check`. Callers that train the steps themselves use its two halves, `FirstSteps` and `compare`.
"""

from strategies.checking.check import BATCHES, CHECKED_STEPS, check, check_step, compare, in_float32, is_rounded
from strategies.checking.comparison import Agreement, Mismatch
from strategies.checking.first_steps import FirstSteps, Recorder
from strategies.checking.initial import initial_state, initial_weights, trained_weights

__all__ = [
    "BATCHES",
    "CHECKED_STEPS",
    "Agreement",
    "FirstSteps",
    "Mismatch",
    "Recorder",
    "check",
    "check_step",
    "compare",
    "in_float32",
    "initial_state",
    "initial_weights",
    "is_rounded",
    "trained_weights",
]
