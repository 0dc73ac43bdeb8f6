"""Events of a layer, of the embedding and of the head on one device, for one microbatch.

A stack is a rule of what waits for what:

- A layer ends no sooner than the host has launched its kernels.
- Sharded weights are gathered, and their gradients scattered, beside the layer if the stack prefetches.
- Gradients of inputs are summed over a tensor axis beside the gradient of the branch's first weight, or waited for.
- Gradients of weights that are summed over replicas layer by layer are sent beside the layer.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from benchmarks.simulate.kernels import Kernel, Layer, beside_sums, head, layer, softmax_is_fused
from benchmarks.simulate.network import Network
from benchmarks.simulate.queues import Event, Item, Wait
from benchmarks.simulate.stack import FIRST_AND_LAST, ForwardBackward
from strategies.core.placement import Axes
from strategies.core.plan import Plan
from strategies.core.traffic import SENT, Traffic

Way = Literal["forward", "backward", "inputs", "weights"]
"""A pass. The backward pass may be split: one for gradients of inputs, with all sums, and one for those of weights."""
LAYER_TRAFFIC = "layers", "keys and values", "tokens and heads"
"""What layers send for each microbatch, as strategies name it. The device waits for it."""
HEAD_TRAFFIC = "embedding", "head", "ends"
"""What the embedding and the head send for each microbatch, and what stages tell each other of it."""
GATHERED: dict[Way, tuple[str, ...]] = {
    "forward": ("weights",),
    "backward": ("weights again", "gradients"),
    "inputs": ("weights again",),
    "weights": ("gradients",),
}
"""What is gathered and scattered in each pass, where weights are sharded, as strategies name it."""
HOST = "launches"
"""The queue of the host that launches kernels, and the part of a step in which the device waits for it."""


@dataclass(frozen=True)
class LayerEvents:
    """What a device does for a microbatch in a layer, and at both ends of the model."""

    plan: Plan
    traffic: tuple[Traffic, ...]
    network: Network

    def events(self, way: Way, gradients: Sequence[Event] = ()) -> Iterator[Item]:
        """Yield the events of a pass through a layer.

        Args:
            way: the pass.
            gradients: sums of the layer's gradients over replicas, which are sent beside it.
        """
        machine, gathers = self.network.machine, [*self.gathers(GATHERED[way])]
        # The pipelines here have no loop over all layers in which weights are gathered ahead (strategies/fsdp.py).
        ahead = gathers if machine.stack.prefetches and not self.plan.staged else []
        yield Event(HOST, self._launches(way) * machine.constants.kernel_seconds, (HOST,), (HOST,))
        yield from (each._replace(labels=("beside",)) for each in (*ahead, *gradients))
        yield from self._work(way)
        yield Wait(HOST)
        yield from [] if ahead else gathers
        yield from [Wait("beside")] if ahead or gradients else []

    def gathers(self, wanted: Collection[str], times: int | None = None) -> Iterator[Event]:
        """Yield the collectives of sharded weights and gradients. Those of several arrays are combined into one.

        Args:
            wanted: what is sent.
            times: of how many equal shares of the step's bytes they send one; by default those of a layer for a
                microbatch. With `gather="step"` a layer has none: all are gathered at once.
        """
        if times is None and self.plan.train.gather == "step":
            return
        sent: dict[str, float] = {}
        for each in self.traffic:
            if self.is_sharded(each) and each.what in wanted:
                sent[each.kind] = sent.get(each.kind, 0) + each.sent_bytes
        times = times or self.plan.layers * self.plan.train.microbatches
        for kind, sent_bytes in sent.items():
            yield self.network.event("gathers", kind, self.shards, sent_bytes / times)

    @cached_property
    def shards(self) -> Axes:
        """Mesh axes over which weights are sharded between steps; empty if none are."""
        return self.plan.over(self.plan.placement.shards)

    def is_sharded(self, each: Traffic) -> bool:
        """Whether this is traffic of sharded weights."""
        return bool(self.shards) and each.axes == self.shards

    def ends(self) -> tuple[list[Event], list[Event]]:
        """The embedding, the head and the loss, forward and backward."""
        plan, machine = self.plan, self.network.machine
        alone = plan.staged and machine.stack.embedding_and_head == FIRST_AND_LAST
        forward, backward = (
            [Event("head", sum(each.seconds(machine) for each in kernels))]
            for kernels in head(plan, machine.stack, plan.tensors if alone else plan.size(*plan.vocab_axes))
        )
        for each in (each for each in self.traffic if each.what in HEAD_TRAFFIC):
            # Alone, a stage sends to the devices of the tensor axis only.
            axes = tuple(axis for axis in each.axes if not alone or axis in plan.axes_of("head_features"))
            if axes:
                sent = SENT[each.kind](each.operand_bytes, plan.size(*axes)) / plan.train.microbatches
                half = self.network.event("sums of ends", each.kind, axes, sent / 2, 1 / 2)
                forward.append(half)
                backward.append(half)
        return forward, backward

    @cached_property
    def kernels(self) -> Layer:
        """The kernels of the layer."""
        return layer(self.plan, self.network.machine.stack)

    def _work(self, way: Way) -> Iterator[Item]:
        """Yield the kernels and the sums of a pass. What hides a sum is a kernel that follows its start."""
        kernels = [*getattr(self.kernels, way)]
        hides = way == "backward" and self.network.machine.stack.hides_sums
        beside = [*beside_sums(self.plan)] if hides else []
        for kernel in beside:
            kernels.remove(kernel)
        yield from map(self._priced, kernels)
        if way == "weights":
            return
        sums = [each for each in self.traffic if each.what in LAYER_TRAFFIC]
        hidden = [each for each in sums if each.what == "layers" and each.kind != "all_gather"] if beside else []
        direction = "forward" if way == "forward" else "backward"
        for each in sums:
            yield self._sums(each, direction, self._done(each, direction) - len(beside) * (each in hidden))
        for kernel in beside:
            yield from (self._sums(each, direction, 1)._replace(labels=("sum",)) for each in hidden)
            yield self._priced(kernel)
            yield from [Wait("sum")] if hidden else []

    def _priced(self, kernel: Kernel) -> Event:
        return Event(kernel.kind, kernel.seconds(self.network.machine))

    def _launches(self, way: Way) -> float:
        """Kernels that the host launches for a pass. A part of a backward pass has its share of the seconds."""
        stack, repeated = self.network.machine.stack, way != "forward"
        launches = stack.kernels.backward if repeated else stack.kernels.forward
        if repeated and self.plan.train.remat == "full":
            launches += stack.kernels.forward
        if not softmax_is_fused(self.plan, stack):
            again = repeated and self.plan.train.remat != "none"
            launches += stack.unfused_kernels.backward if repeated else stack.unfused_kernels.forward
            launches += again * stack.unfused_kernels.forward
        if way in ("forward", "backward"):
            return launches
        parts: tuple[Way, Way] = ("inputs", "weights")
        both = {part: sum(each.seconds for each in self._work(part) if isinstance(each, Event)) for part in parts}
        return launches * both[way] / (sum(both.values()) or 1)

    def _sums(self, each: Traffic, direction: Literal["forward", "backward"], calls: int) -> Event:
        """Collectives of a layer's activations.

        On two halves of the batch a layer has twice as many collectives, and waits for a part of them. Those of both
        halves are in flight at once, so that their latency counts once.

        Args:
            each: those of all layers and microbatches.
            direction: of the pass.
            calls: how many of the pass.
        """
        halved = self.plan.train.halves == "on"
        waited = calls * (1 - self.network.machine.stack.halves_hide if halved else 1)
        # Inputs of branches are gathered forward, backward, and again for gradients of weights. The third of these is
        # hidden behind the matmul before it (Korthikanti et al. 2022, section 4.2.2).
        done, all_calls = self._done(each, direction), self._calls(each.what)[1]
        share = 1 / 3 / done if each.kind == "all_gather" else 1 / all_calls
        sent = each.sent_bytes * share / self.plan.train.microbatches / self.plan.layers
        return self.network.event("sums of layers", each.kind, each.axes, sent * waited, waited)

    def _done(self, each: Traffic, direction: Literal["forward", "backward"]) -> int:
        """Collectives that a layer waits for in a pass."""
        return getattr(self._calls(each.what)[0], direction)

    def _calls(self, what: str) -> tuple[ForwardBackward, int]:
        """Collectives that a layer waits for, forward and backward, and how many the traffic of a layer counts.

        A stack that repeats whole layers also repeats the last sum.
        """
        branches, full = len(self.plan.block.branches()), self.plan.train.remat == "full"
        attentions = self.plan.block.attentions()
        if what == "keys and values" and self.plan.share.ring > 1:
            hops = self.plan.share.ring - 1
            return ForwardBackward(attentions * hops, attentions * (2 * hops + 1)), attentions * (3 * hops + 1)
        if what == "tokens and heads":
            back = (4 if full else 2) * attentions
            return ForwardBackward(2 * attentions, back), 2 * attentions + back
        counted = 2 * branches + (branches - 1 if full else 0)  # as tensor.py counts them
        done = 3 * branches if full and self.network.machine.stack.repeats == "all" else counted
        return ForwardBackward(branches, done - branches), counted
