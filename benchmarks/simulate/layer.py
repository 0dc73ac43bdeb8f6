"""Events of a layer, of the embedding and of the head on one device, for one microbatch.

The rules of the stack say when the device waits for each collective. A layer ends after its kernels are launched; where
kernels have a latency, each instead adds that.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from benchmarks.devices.topology import Topology
from benchmarks.simulate.kernels import Layer, head, kernels_of, layer
from benchmarks.simulate.links import collective_seconds, group
from benchmarks.simulate.machine import Machine
from benchmarks.simulate.queues import Event, Item, Wait
from benchmarks.simulate.stack import HALVES_SHARE, PAIR_SHARE, TOKENS_SHARE, ForwardBackward, Stack
from strategies.core.placement import Axes
from strategies.core.plan import Plan
from strategies.core.traffic import SENT, Bytes, Traffic

Way = Literal["forward", "backward", "inputs", "weights"]
"""A pass. The backward pass may be split: one for gradients of inputs, with all sums, and one for those of weights."""
TOKENS = "dispatch", "combine", "counts"
"""What devices that split experts send each other."""
TOKEN_CALLS = {
    **dict.fromkeys([("dispatch", "all_to_all"), ("combine", "all_to_all")], (1, 1)),
    **dict.fromkeys([("dispatch", "all_gather"), ("combine", "reduce_scatter"), ("counts", "all_to_all")], (1, 0)),
    **dict.fromkeys([("dispatch", "reduce_scatter"), ("combine", "all_gather")], (0, 1)),
}
"""Of what and of which kind -> how often a layer sends it forward and backward, if no dispatch is repeated."""
LAYER_TRAFFIC = "layers", "keys and values", "tokens and heads", *TOKENS
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
"""The queue of the host that launches kernels, and the part of a step in which devices wait for it, or for latency."""


@dataclass(frozen=True)
class LayerEvents:
    """What a device does for a microbatch in one of its layers, and in the embedding and the head.

    `layers` of the device send the traffic of the step; `recomputed_prefix_layers` of them run forward twice. With
    `paired` a pass shares its loop with one of another microbatch, whose kernels hide `PAIR_SHARE` of what it sends.
    """

    plan: Plan
    traffic: tuple[Traffic, ...]
    machine: Machine
    topology: Topology
    layers: int
    recomputed_prefix_layers: int = 0
    paired: bool = False

    @property
    def stack(self) -> Stack:
        """The rules."""
        return self.machine.stack

    def event(self, part: str, kind: str, axes: Axes, sent_bytes: Bytes | float, calls: float = 1) -> Event:
        """Collectives of one kind along some axes (`collective_seconds`), as an event on their links."""
        where = group(self.topology, self.plan.mesh, axes)
        return Event(part, collective_seconds(self.machine, kind, where, sent_bytes, calls), where.links)

    @property
    def prefetches(self) -> bool:
        """Whether weights are gathered beside a layer. The loops of pipelines here gather nothing ahead (fsdp.py)."""
        return "gathers" in self.stack.overlaps and not self.plan.staged

    @property
    def head_on_last_stage(self) -> bool:
        """Whether only the first pipeline stage embeds, and only the last computes the loss."""
        return self.plan.staged and self.stack.embedding_and_head == "first and last"

    def events(self, way: Way, gradients: Sequence[Event] = ()) -> Iterator[Item]:
        """Yield the events of a pass through a layer, with sums of its gradients over replicas beside it."""
        gathers = [*self.gathers(GATHERED[way])]
        beside = [*(gathers if self.prefetches else ()), *gradients, *self._collectives(way, beside=True)]
        beside_kernels = () if self.stack.kernels_have_latency else (HOST,)
        seconds = self._launches(way) * self.machine.constants.kernel_seconds
        yield Event(HOST, seconds, beside_kernels, beside_kernels)
        yield from (event._replace(labels=("layer",)) for event in beside)
        yield from self._work(way)
        yield from map(Wait, beside_kernels)
        yield from () if self.prefetches else gathers
        yield from [Wait("layer")] if beside else []

    def gathers(self, wanted: Collection[str], times: float | None = None) -> Iterator[Event]:
        """Yield the collectives that send `wanted` of sharded weights and gradients; those of several arrays are one.

        They send one of `times` equal shares of the step's bytes: by default that of a layer for a microbatch.
        """
        if times is None and self.plan.train.gather == "step":
            return  # all are gathered at once
        sent: dict[str, float] = {}
        for term in self.traffic:
            if self.is_sharded(term) and term.what in wanted:
                sent[term.kind] = sent.get(term.kind, 0) + term.sent_bytes
        passes = self.layers + self.recomputed_prefix_layers * ("weights" in wanted)  # which forward passes gather
        times = times or passes * self.plan.train.microbatches
        for kind, sent_bytes in sent.items():
            yield self.event("gathers", kind, self.shards, sent_bytes / times)

    @cached_property
    def shards(self) -> Axes:
        """Mesh axes over which weights are sharded between steps; empty if none are."""
        return self.plan.over(self.plan.placement.shards)

    def is_sharded(self, term: Traffic) -> bool:
        """Whether this is traffic of sharded weights in passes, and not of their update."""
        of_update = term.array == "gradients" and term.when == "update"
        return bool(self.shards) and term.axes == self.shards and not of_update

    def embedding_and_head(self) -> tuple[list[Event], list[Event]]:
        """The events of the embedding, the head and the loss, forward and backward."""
        plan, last_alone = self.plan, self.head_on_last_stage
        parts = plan.tensors if last_alone else plan.size(*plan.vocab_axes)
        forward, backward = (
            [Event("head", sum(kernel.seconds(self.machine) for kernel in kernels))]
            for kernels in head(plan, self.stack, parts)
        )
        for term in (term for term in self.traffic if term.what in HEAD_TRAFFIC):
            # A stage that has the head alone sends to the devices of the tensor axis only.
            axes = tuple(axis for axis in term.axes if not last_alone or axis in plan.axes_of("head_features"))
            if axes:
                sent = SENT[term.kind](term.operand_bytes, plan.size(*axes)) / plan.train.microbatches
                half = self.event("head collectives", term.kind, axes, sent / 2, 1 / 2)
                forward.append(half)
                backward.append(half)
        return forward, backward

    @cached_property
    def kernels(self) -> Layer:
        """The kernels of the layer."""
        return layer(self.plan, self.stack, self.machine.precision)

    def _work(self, way: Way) -> Iterator[Event]:
        """Yield the kernels of a pass, and the collectives that the device waits for at once."""
        for kernel in getattr(self.kernels, way):
            yield Event(kernel.kind, kernel.seconds(self.machine))
        yield from self._collectives(way, beside=False)

    def _launches(self, way: Way) -> float:
        """Kernels that are launched for a pass. A part of a backward pass has its share of the seconds."""
        launches = kernels_of(self.plan, self.stack, back=way != "forward")
        if way in ("forward", "backward"):
            return launches
        parts: tuple[Way, Way] = ("inputs", "weights")
        both = {part: sum(event.seconds for event in self._work(part)) for part in parts}
        return launches * both[way] / (sum(both.values()) or 1)

    def _collectives(self, way: Way, *, beside: bool) -> Iterator[Event]:
        """Yield the collectives of a layer in a pass: the shares of them that run beside its kernels, or the others."""
        plan, back = self.plan, way != "forward"
        if way == "weights":  # whose gradients need nothing of other devices
            return
        for term in (term for term in self.traffic if term.what in LAYER_TRAFFIC):
            calls = self._calls_of(term.what, term.kind)
            share = self._share_beside(term) if beside else 1 - self._share_beside(term)
            if not (share and calls[back]):
                continue
            # Gathers: forward, backward, and for gradients behind a matmul (Korthikanti et al. 2022, section 4.2.2).
            gathers = term.kind == "all_gather" and term.what not in TOKENS
            of_passes = (1 / 3, 1 / 3) if gathers else [number / sum(calls) for number in calls]
            again = self.recomputed_prefix_layers * of_passes[0]
            layers = plan.layers_and_mtp if term.what in TOKENS else self.layers + again
            sent = term.sent_bytes * of_passes[back] / plan.train.microbatches / layers
            yield self.event("layer collectives", term.kind, term.axes, sent * share, calls[back] * share)

    def _share_beside(self, term: Traffic) -> float:
        """Share of a collective of a layer that runs beside its kernels, or beside the other half of the batch.

        The collectives of both halves are in flight at once, so that their latency counts once.
        """
        overlaps = self.stack.overlaps
        halves = self.plan.train.halves == "on" and "halves" in overlaps
        if self.paired:
            return PAIR_SHARE
        if term.what in TOKENS:
            return TOKENS_SHARE * (halves and not self.plan.blocks_rows)
        if term.what != "layers":
            return float(term.what == "keys and values" and term.what in overlaps)
        if "tensor" in overlaps and self.plan.sequence_parallel:
            return 1 - 1 / self.plan.tensors
        return HALVES_SHARE * halves

    def _calls_of(self, what: str, kind: str) -> ForwardBackward:
        """Collectives of a kind that a layer needs for a purpose in each pass."""
        branches, full = len(self.plan.block.branches()), self.plan.train.remat == "full"
        attentions, mixtures = self.plan.block.attentions(), self.plan.block.mixtures()
        if what == "keys and values" and self.plan.share.ring > 1:
            hops = self.plan.share.ring - 1
            return ForwardBackward(attentions * hops, attentions * (2 * hops + 1))
        if what in TOKENS:
            forward, back = (mixtures * calls for calls in TOKEN_CALLS[what, kind])
            again = mixtures - (what == "combine") if full and forward else 0  # nothing takes the last sums again
            return ForwardBackward(forward, back + again)
        if what == "tokens and heads":
            return ForwardBackward(2 * attentions, (4 if full else 2) * attentions)
        return ForwardBackward(branches, branches + (branches - 1 if full else 0))  # as tensor.py counts them
