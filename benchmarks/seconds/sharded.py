"""Seconds of the collectives of sharded weights and of their gradients."""

from collections.abc import Collection
from dataclasses import dataclass

from benchmarks.seconds.network import Network
from strategies.core.placement import Axes
from strategies.core.plan import Plan
from strategies.core.traffic import Traffic

GATHERED = {"forward": ("weights",), "backward": ("weights again", "gradients")}
"""What is gathered and scattered in each pass, where weights are sharded, as strategies name it."""


@dataclass(frozen=True)
class Sharded:
    """The weights of a step that are sharded between steps, and what is sent of them."""

    plan: Plan
    traffic: tuple[Traffic, ...]
    network: Network

    @property
    def axes(self) -> Axes:
        """Mesh axes over which they are sharded; empty if none are."""
        return self.plan.over(self.plan.placement.shards)

    def has(self, each: Traffic) -> bool:
        """Whether this is traffic of them."""
        return bool(self.axes) and each.axes == self.axes

    def seconds(self, wanted: Collection[str], times: int) -> float:
        """Seconds of collectives of a part of them. The arrays of a part are sent together.

        Args:
            wanted: what is sent.
            times: how many such parts a step has, which share its bytes.
        """
        sent: dict[str, float] = {}
        for each in self.traffic:
            if self.has(each) and each.what in wanted:
                sent[each.kind] = sent.get(each.kind, 0) + each.sent_bytes / times
        return sum(self.network.seconds(kind, self.axes, sent_bytes) for kind, sent_bytes in sent.items())
