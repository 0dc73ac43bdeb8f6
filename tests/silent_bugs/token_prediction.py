"""Multi-token prediction: targets that are not the tokens after the next."""

from typing import Any

from strategies.core.plan import Plan
from strategies.model import gpt
from strategies.model.mtp import after_next
from strategies.step import Implementation
from tests.silent_bugs.changed_implementations import Plant, patched_differentiation
from tests.silent_bugs.museum import Bug


def with_targets(shifted: Any) -> Plant:
    """Replace the function from each token's next token to the one after it while loss and gradients are traced."""

    def plant(plan: Plan, sound: Implementation) -> Implementation:
        return patched_differentiation(sound, gpt, "after_next", shifted)

    return plant


BUGS = [
    Bug(
        "mtp-shifted-twice",
        "https://github.com/radixark/miles/pull/2215",
        "Labels were shifted before a function that shifted them too, so all targets were off by one.",
        "loss of multi-token prediction: its targets are one token too late",
        "mtp",
        "context",
        "context=2",
        with_targets(lambda targets_BT: after_next(after_next(targets_BT))),
        {"block": "llama", "tied": False, "mtp_loss": 0.3},
    ),
]
