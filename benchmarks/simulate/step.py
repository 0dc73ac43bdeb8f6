"""The predicted step: a pass through a layer is simulated, and the passes run on the stages of the pipeline."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from operator import attrgetter

from benchmarks.devices.topology import Topology
from benchmarks.simulate.kernels import Kernel, orthogonalisation, update_bytes
from benchmarks.simulate.layer import GATHERED, HEAD_TRAFFIC, HOST, LAYER_TRAFFIC, TOKENS, LayerEvents, Way
from benchmarks.simulate.links import bandwidth, group
from benchmarks.simulate.machine import Machine
from benchmarks.simulate.queues import (
    COMPUTE,
    EXPOSED,
    IDLE,
    MEMORY,
    Event,
    Parts,
    Span,
    Timeline,
    added,
    scaled,
    simulate,
)
from benchmarks.simulate.stages import Pass, Stages
from strategies.core.sizes import BYTES
from strategies.costs.predict import Cost
from strategies.pipelining.schedules import PassKind

PASSES = "passes"
"""The lane of passes, and of what is done between and after them; the other lanes say what they are spent on."""
SENDING = "gathers", "layer collectives", "head collectives", "sends", "gradients"
"""Parts of a step that are exposed communication."""
LANES = {
    **dict.fromkeys(("matmul", "attention", "head"), COMPUTE),
    **dict.fromkeys(("memory", "optimizer"), MEMORY),
    **dict.fromkeys(SENDING, EXPOSED),
    **dict.fromkeys((HOST, "fixed"), "host"),
}
"""What a step is spent on -> its lane, as in a simulated program where that has it."""


def predict_seconds(cost: Cost, machine: Machine, topology: Topology, losses: int = 1) -> Timeline:
    """Predict the time of a step on all devices of a topology, by what its last stage spends it on; a token may have
    several losses (DeepSeek-AI 2024, "DeepSeek-V3", section 2.2).
    """
    step = Step(cost, machine, topology, losses)
    parts = added(step.stages.parts, step.afterwards)
    return Timeline({name: seconds for name, seconds in parts.items() if seconds})


def bound_seconds(cost: Cost, machine: Machine, topology: Topology) -> float:
    """The least time of a step: its matmuls at the chip's peak with the pipeline's bubble, or its busiest kind of link.

    No step is faster. Different kinds of links work side by side. Memory is left out: caches may serve a part of it.
    """
    chip, mesh, busy = machine.chip, cost.plan.mesh, dict[str, float]()
    itemsize = machine.precision.itemsize if machine.precision else BYTES[cost.plan.train.dtype]
    for (kind, axes), parts in cost.sent.items():
        where = group(topology, mesh, axes)
        seconds = float(sum(parts.values())) / bandwidth(chip, kind, where)
        busy = added(busy, dict.fromkeys(where.links, seconds))
    compute = cost.least_flops / mesh.size / (1 - cost.bubble) / (chip.flops_per_second * machine.rate_share(itemsize))
    return max(compute, *busy.values(), 0.0)


class Step:
    """A step on a machine."""

    def __init__(self, cost: Cost, machine: Machine, topology: Topology, losses: int = 1) -> None:
        self.losses = losses
        self.plan, self.traffic, self.machine = cost.plan, cost.traffic, machine
        layers, again = cost.plan.all_layers, cost.plan.recomputed_prefix_layers
        self.layer = LayerEvents(cost.plan, cost.traffic, machine, topology, layers, again)

    def spans(self) -> Mapping[str, tuple[Span, ...]]:
        """The spans of each stage by its name: its passes, and what fills it from the begin to the end of the step."""
        stages = range(self.plan.stages)
        found, begin = [*self.stages.passes()], self.stages.end_seconds
        for name, seconds in self.afterwards.items():
            found += [Pass(stage, name, begin, {name: seconds}) for stage in stages if seconds]
            begin += seconds
        names = [f"stage {stage}" for stage in stages] if self.plan.staged else ["step"]
        return {name: tuple(_spans(pass_ for pass_ in found if pass_.stage == at)) for at, name in enumerate(names)}

    @cached_property
    def stages(self) -> Stages:
        """The passes on the stages."""
        forward, backward = (scaled(simulate(one).parts, self.losses) for one in self.layer.embedding_and_head())
        if self.plan.recomputed_prefix_layers:
            lead = self._lead_passes({"F": "forward", "B": "backward"})
            forward, backward = added(forward, lead["F"]), added(backward, lead["F"], lead["B"])
        if self.plan.staged and self.plan.mtp:  # all stages run the MTP block
            forward = added(forward, simulate(self.layer.events("forward")).parts)
            backward = added(backward, self._backward.parts)
        return Stages(self.plan, self.machine.stack, self.work, {"F": forward, "B": backward}, self.send_seconds)

    @property
    def work(self) -> Mapping[str, Parts]:
        """Seconds of a pass through the layers of a stage's chunk, by the kind of pass; in lockstep of pairs, too.

        Leading dense layers and the MTP block are among them, but for pipelines: all stages run them at the ends.
        """
        splits = self.plan.staged and self.plan.schedule.splits_backward
        halves: dict[PassKind, Way] = {"B": "inputs", "W": "weights"} if splits else {"B": "backward"}
        ways: dict[PassKind, Way] = {"F": "forward", **halves}
        layers = (self.plan.layers if self.plan.staged else self.plan.layers_and_mtp) / self.plan.schedule.chunks
        found: dict[str, Parts] = {
            kind: scaled((self._backward if way == "backward" else simulate(self.layer.events(way))).parts, layers)
            for kind, way in ways.items()
        }
        if not self.plan.staged:
            found = {kind: added(parts, found[kind]) for kind, parts in self._lead_passes(ways).items()}
        if self.layer.prefetches:
            # Nothing hides a microbatch's first gather, and the last reduce-scatter of its gradients.
            first, last = (simulate(self.layer.gathers(GATHERED[way])).parts for way in ("forward", "weights"))
            found |= {"F": added(first, found["F"]), "B": added(found["B"], last)}
        if self.plan.schedule.pairs and self.machine.stack.lockstep:
            # GPUs alone hide more in pairs than apart, as compiled (docs/experiments/2026-11-29-fused-pairs.md).
            hides = self.plan.pairs_in_one_loop and self.machine.chip.platform in ("cuda", "gpu")
            both = (simulate(replace(self.layer, paired=hides).events(way)).parts for way in ("forward", "backward"))
            found["FB"] = scaled(added(*both), layers)
        return found

    def _lead_passes(self, ways: Mapping[PassKind, Way]) -> Mapping[PassKind, Parts]:
        """Seconds of passes through the leading dense layers; of none if there are none."""
        if not (lead := self.plan.lead):
            return {kind: {} for kind in ways}
        dense = replace(self.layer, plan=lead, traffic=tuple(each for each in self.traffic if each.what not in TOKENS))
        return {kind: scaled(simulate(dense.events(way)).parts, lead.layers) for kind, way in ways.items()}

    @cached_property
    def _backward(self) -> Timeline:
        """A backward pass through a layer, to which one beside sums of gradients is compared."""
        return simulate(self.layer.events("backward"))

    @property
    def send_seconds(self) -> float:
        """Seconds to send a microbatch's residual stream to the next stage."""
        plan = self.plan
        hidden = "sends" in self.machine.stack.overlaps and plan.schedule.chunks > 1
        if not plan.staged or hidden:
            return 0.0
        # Each device of Megatron-LM's tensor axis sends a part (Narayanan et al. 2021, section 4.1).
        elements = plan.residual / plan.tensors if self.layer.head_on_last_stage else plan.own_residual
        sent = elements / plan.train.microbatches * BYTES[plan.train.dtype]
        return self.layer.event("sends", "permute", plan.over(plan.axes_of("layers")), sent).seconds

    @cached_property
    def afterwards(self) -> Parts:
        """Seconds of what follows the passes, in order. With `gather="step"` all weights are gathered before them."""
        at_once = [*GATHERED["forward"], *GATHERED["backward"]] if self.plan.train.gather == "step" else []
        moved = update_bytes(self.plan, self.machine.stack)
        return {
            "gathers": sum(event.seconds for wanted in at_once for event in self.layer.gathers([wanted], 1)),
            "gradients": self.gradients_seconds,
            "optimizer": sum(
                kernel.seconds(self.machine) for kernel in (Kernel("memory", 0, moved), *orthogonalisation(self.plan))
            ),
            "fixed": self.machine.constants.step_seconds,
        }

    @property
    def gradients_seconds(self) -> float:
        """Seconds of what is sent once a step, without the sums of gradients that the last backward pass hides."""
        plan, others = self.plan, 0.0
        beside: list[Event] = []
        apart = {*LAYER_TRAFFIC, *HEAD_TRAFFIC, "stages"}
        once = (term for term in self.traffic if term.what not in apart and not self.layer.is_sharded(term))
        for (what, kind, axes), terms in groupby(once, attrgetter("what", "kind", "axes")):
            sent = sum(term.sent_bytes for term in terms)
            event = self.layer.event("gradients", kind, axes, sent, calls=0)
            if what == "gradients" and plan.train.reduce == "layer":
                beside.append(event._replace(seconds=event.seconds / plan.layers))
            else:
                others += event.seconds
        if not beside:
            return others
        with_sums = simulate(self.layer.events("backward", beside)).step_seconds
        return plan.layers * (with_sums - self._backward.step_seconds) + others


def _spans(of_stage: Iterable[Pass]) -> Iterator[Span]:
    """Spans of a stage: its passes, what they are spent on in turn, and the bubbles between them."""
    now = 0.0
    for pass_ in sorted(of_stage, key=lambda pass_: pass_.begin_seconds):
        if pass_.begin_seconds - now > 1e-12:
            yield Span(IDLE, "bubble", now, pass_.begin_seconds - now)
        now = pass_.begin_seconds
        yield Span(PASSES, pass_.name, now, sum(pass_.parts.values()))
        for name, seconds in pass_.parts.items():
            if seconds:
                yield Span(LANES[name], name, now, seconds)
                now += seconds
