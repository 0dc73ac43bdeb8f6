"""Seconds of the collectives of a layer's activations: sums over the tensor axis, tokens, keys and values."""

from dataclasses import dataclass

from benchmarks.seconds.kernels import beside_sums
from benchmarks.seconds.network import Network
from benchmarks.seconds.stack import Passes
from strategies.core.plan import Plan
from strategies.core.traffic import Traffic

OF_LAYERS = "layers", "keys and values", "tokens and heads"
"""What layers send for each microbatch, as strategies name it. The device waits for it."""


@dataclass(frozen=True)
class LayerSums:
    """What the layers of a step send, and wait for."""

    plan: Plan
    traffic: tuple[Traffic, ...]
    network: Network

    def seconds(self, way: str) -> float:
        """Seconds of what a layer sends for one microbatch and waits for, "forward" or "backward".

        On two halves of the batch a layer has twice as many collectives, and waits for a part of them. Those of both
        halves can be in flight at once, so that their latency counts once.
        """
        stack, halved = self.network.machine.stack, self.plan.train.halves == "on"
        # Inputs of branches are gathered forward, backward, and again for gradients of weights. The third of these is
        # hidden behind the matmul before it (Korthikanti et al. 2022, section 4.2.2).
        total = 0.0
        for each in self.traffic:
            if each.what in OF_LAYERS:
                calls, all_calls = self.calls(each.what)
                share = 1 / 3 if each.kind == "all_gather" else getattr(calls, way) / all_calls
                sent = each.sent_bytes * share / self.plan.train.microbatches / self.plan.layers
                total += self.network.seconds(each.kind, each.axes, sent, getattr(calls, way))
                if way == "backward" and each.what == "layers" and each.kind != "all_gather":
                    total -= self.hidden_sums_seconds(each, all_calls)
        return total * (1 - stack.halves_hide) if halved else total

    def hidden_sums_seconds(self, each: Traffic, all_calls: int) -> float:
        """Seconds of a layer's sums of gradients of inputs that run beside the matmuls of gradients of weights.

        Args:
            each: the sums of all layers and microbatches.
            all_calls: how many of them are of a layer and a microbatch.
        """
        apart = self.plan.staged and self.plan.schedule.splits_backward
        if apart or not self.network.machine.stack.hides_sums:
            return 0.0
        sent = each.sent_bytes / self.plan.train.microbatches / self.plan.layers / all_calls
        one = self.network.seconds(each.kind, each.axes, sent)
        return sum(min(one, kernel.seconds(self.network.machine)) for kernel in beside_sums(self.plan))

    def is_of_ring(self, what: str) -> bool:
        """Whether this is sent around a ring, beside attention."""
        return what == "keys and values" and self.plan.share.ring > 1

    def calls(self, what: str) -> tuple[Passes, int]:
        """Collectives that a layer waits for, forward and backward, and how many the traffic of a layer counts.

        A stack that repeats whole layers also repeats the last sum.
        """
        branches, full = len(self.plan.block.branches()), self.plan.train.remat == "full"
        attentions = self.plan.block.attentions()
        if self.is_of_ring(what):
            hops = self.plan.share.ring - 1
            return Passes(attentions * hops, attentions * (2 * hops + 1)), attentions * (3 * hops + 1)
        if what == "tokens and heads":
            back = (4 if full else 2) * attentions
            return Passes(2 * attentions, back), 2 * attentions + back
        counted = 2 * branches + (branches - 1 if full else 0)  # as tensor.py counts them
        done = 3 * branches if full and self.network.machine.stack.repeats == "all" else counted
        return Passes(branches, done - branches), counted
