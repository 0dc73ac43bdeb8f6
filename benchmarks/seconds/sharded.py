"""Seconds of the collectives of sharded weights and of their gradients."""

from collections.abc import Collection
from dataclasses import dataclass

from benchmarks.seconds.kernels import Kernel
from benchmarks.seconds.network import Network
from strategies.core.placement import Axes
from strategies.core.plan import Plan
from strategies.core.sizes import BYTES
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

    def seconds(self, wanted: Collection[str], times: int, *, of_layer: bool) -> float:
        """Seconds of collectives of a part of them. Each kind sends the arrays of its part one after another.

        Args:
            wanted: what is sent.
            times: how many such parts a step has, which share its bytes.
            of_layer: whether a part is the arrays of a layer; else all arrays, those of all layers stacked.
        """
        sent: dict[str, float] = {}
        copied = 0.0
        for each in self.traffic:
            if self.has(each) and each.what in wanted:
                sent[each.kind] = sent.get(each.kind, 0) + each.sent_bytes / times
                copied += self.copied_elements(each) / times
        arrays = [each for each in self.plan.weights if {*self.axes} & {*each.axes}]
        stack = self.network.machine.stack
        calls = 1 if stack.combines else sum(each.spec.is_stacked or not of_layer for each in arrays)
        seconds = Kernel("memory", 0, stack.transposed_bytes * copied).seconds(self.network.machine)
        return seconds + sum(self.network.seconds(kind, self.axes, n, calls, calls - 1) for kind, n in sent.items())

    def copied_elements(self, each: Traffic) -> float:
        """Elements that are copied for collectives of innermost dims: of the whole array and of the part of a device.

        XLA's collectives on CPUs join and split the outermost dim of an array in memory.
        """
        whole = each.operand_bytes / BYTES[each.dtype] * (self.plan.shards if each.kind == "all_gather" else 1)
        return whole * (1 + 1 / self.plan.shards) if each.innermost else 0.0
