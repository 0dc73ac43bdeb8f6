"""Seconds of the collectives of sharded weights and of their gradients."""

from collections.abc import Collection
from dataclasses import dataclass

from benchmarks.seconds.network import Network
from strategies.costs.plan import Plan
from strategies.costs.traffic import Traffic
from strategies.sharding.layout import Axes

GATHERED = {"forward": ("weights",), "backward": ("weights again", "gradients")}
"""What is gathered and scattered in each pass, where weights are sharded, as traffic.py names it."""


@dataclass(frozen=True)
class Sharded:
    """The weights of a step that are sharded between steps, and what is sent of them."""

    plan: Plan
    traffic: tuple[Traffic, ...]
    network: Network

    @property
    def axes(self) -> Axes:
        """Mesh axes over which they are sharded; empty if none are."""
        return self.plan.over(self.plan.layout.shards)

    def has(self, each: Traffic) -> bool:
        """Whether this is traffic of them."""
        return bool(self.axes) and each.axes == self.axes

    def seconds(self, wanted: Collection[str], times: int, *, of_layer: bool) -> float:
        """Seconds of collectives of a part of them. Each kind sends the arrays of its part one after another.

        Args:
            wanted: what is sent.
            times: how many such parts a step has, which share its bytes.
            of_layer: whether a part is the arrays of a layer; else all arrays, those of all layers stacked.
        """
        sent: dict[str, float] = {}
        for each in self.traffic:
            if self.has(each) and each.what in wanted:
                sent[each.kind] = sent.get(each.kind, 0) + each.sent_bytes / times
        arrays = [each for each in self.plan.weights if {*self.axes} & {*each.axes}]
        combines = self.network.machine.stack.combines
        calls = 1 if combines else sum(each.of_blocks or not of_layer for each in arrays)
        return sum(self.network.seconds(kind, self.axes, count, calls, calls - 1) for kind, count in sent.items())
