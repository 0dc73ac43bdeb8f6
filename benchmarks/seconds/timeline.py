"""A predicted step: its seconds by what they are spent on, and when a stage runs which pass."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

Parts = Mapping[str, float]
"""Seconds by what they are spent on."""


def added(*several: Parts) -> dict[str, float]:
    """The sums of parts of the same name.

    >>> added({"head": 1.0}, {"head": 2.0, "fixed": 3.0})
    {'head': 3.0, 'fixed': 3.0}
    """
    names = dict.fromkeys(name for parts in several for name in parts)
    return {name: sum(parts.get(name, 0.0) for parts in several) for name in names}


def scaled(parts: Parts, times: float) -> dict[str, float]:
    """Parts that are repeated."""
    return {name: seconds * times for name, seconds in parts.items()}


class LayerSeconds(NamedTuple):
    """Seconds of a layer for one microbatch.

    Attributes:
        forward: of the forward pass.
        inputs: of the gradients of its inputs, with what is recomputed and what else the backward pass does.
        weights: of the gradients of its weights, which zb-h1 computes later.
    """

    forward: Parts
    inputs: Parts
    weights: Parts

    @property
    def backward(self) -> Parts:
        """Seconds of the whole backward pass."""
        return added(self.inputs, self.weights)


class Pass(NamedTuple):
    """What a pipeline stage does from some time on.

    Attributes:
        stage: number of the stage; 0 without stages.
        name: the pass and its microbatch, such as F0, B0 or W0, or what is done between or after passes.
        begin_seconds: from the start of the step.
        parts: its seconds, in this order.
    """

    stage: int
    name: str
    begin_seconds: float
    parts: Parts

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return sum(self.parts.values())

    @property
    def end_seconds(self) -> float:
        """When it ends."""
        return self.begin_seconds + self.seconds


@dataclass(frozen=True)
class Timeline:
    """A predicted step of the slowest device.

    Attributes:
        parts: seconds by what they are spent on. They add up to the step.
    """

    parts: Parts

    @property
    def step_seconds(self) -> float:
        """Time of the step."""
        return sum(self.parts.values())
