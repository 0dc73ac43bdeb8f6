"""The predicted step: a pass through a layer is simulated, and the passes run on the stages of the pipeline.

a100s = machine("a100_megatron")
timeline = predict_seconds(predict("tensor", config, "tensor=8", train), a100s, Topology.parse("a100_80gb:1x8"))
timeline.step_seconds, timeline.parts
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from operator import attrgetter

from benchmarks.devices.topology import Topology
from benchmarks.simulate.kernels import Kernel
from benchmarks.simulate.layer import GATHERED, HEAD_TRAFFIC, HOST, LAYER_TRAFFIC, TOKENS, LayerEvents, Way
from benchmarks.simulate.links import Network, bandwidth, collective_seconds, group
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
from strategies.core.plan import Plan
from strategies.core.sizes import BYTES
from strategies.core.traffic import SENT
from strategies.costs.predict import Cost
from strategies.pipelining.schedules import Kind

PARAMETER_TRAFFIC = "gradients", "weights"
"""What is sent once a step for each parameter that a device has."""
BETWEEN_STAGES = "stages"
"""What stages send to their neighbours."""
PASSES = "passes"
"""The lane of passes, and of what is done between and after them; the other lanes say what they are spent on."""
LANES = {
    "matmul": COMPUTE,
    "attention": COMPUTE,
    "head": COMPUTE,
    "memory": MEMORY,
    "optimizer": MEMORY,
    "gathers": EXPOSED,
    "layer collectives": EXPOSED,
    "head collectives": EXPOSED,
    "sends": EXPOSED,
    "gradients": EXPOSED,
    HOST: "host",
    "fixed": "host",
}
"""What a step is spent on -> its lane, as in a simulated program where that has it."""


def predict_seconds(cost: Cost, machine: Machine, topology: Topology, losses: int = 1) -> Timeline:
    """Predict the time of a step, by what its last stage spends it on.

    Args:
        cost: the step by formulas.
        machine: the devices and the software.
        topology: the devices that the mesh takes, all of them.
        losses: of each token (DeepSeek-AI 2024, "DeepSeek-V3", section 2.2).
    """
    return Step(cost, machine, topology, losses).timeline()


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
        self.network = Network(machine, topology, cost.plan.mesh)
        layers, again = cost.plan.all_layers, cost.plan.layers_again
        self.layer = LayerEvents(cost.plan, cost.traffic, self.network, layers, again)

    def timeline(self) -> Timeline:
        """The seconds of the last stage."""
        parts = added(self.stages.parts, self.afterwards)
        return Timeline({name: seconds for name, seconds in parts.items() if seconds})

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
        if self.plan.layers_again:
            lead = self._lead_passes({"F": "forward", "B": "backward"})
            forward, backward = added(forward, lead["F"]), added(backward, lead["F"], lead["B"])
        return Stages(self.plan, self.machine.stack, self.work, {"F": forward, "B": backward}, self.send_seconds)

    @property
    def work(self) -> Mapping[Kind, Parts]:
        """Seconds of a pass through the layers of a stage's chunk, by the kind of pass.

        Leading dense layers are among them, but for pipelines: all stages run them as they embed.
        """
        splits = self.plan.staged and self.plan.schedule.splits_backward
        halves: dict[Kind, Way] = {"B": "inputs", "W": "weights"} if splits else {"B": "backward"}
        ways: dict[Kind, Way] = {"F": "forward", **halves}
        layers = self.plan.layers / self.plan.schedule.chunks
        found: dict[Kind, Parts] = {kind: scaled(self._layer_pass(way).parts, layers) for kind, way in ways.items()}
        if not self.plan.staged:
            found = {kind: added(parts, found[kind]) for kind, parts in self._lead_passes(ways).items()}
        if self.layer.prefetches:
            # A microbatch's first gather, and its last scatter, have nothing to hide behind.
            first, last = (simulate(self.layer.exposed(kind)).parts for kind in ("all_gather", "reduce_scatter"))
            found |= {"F": added(first, found["F"]), "B": added(found["B"], last)}
        return found

    def _lead_passes(self, ways: Mapping[Kind, Way]) -> Mapping[Kind, Parts]:
        """Seconds of passes through the leading dense layers; of none if there are none."""
        if not (lead := self.plan.lead):
            return {kind: {} for kind in ways}
        dense = replace(self.layer, plan=lead, traffic=tuple(each for each in self.traffic if each.what not in TOKENS))
        return {kind: scaled(simulate(dense.events(way)).parts, lead.layers) for kind, way in ways.items()}

    def _layer_pass(self, way: Way) -> Timeline:
        """A pass through a layer. The backward pass is also that to which sums of gradients are compared."""
        return self._backward if way == "backward" else simulate(self.layer.events(way))

    @cached_property
    def _backward(self) -> Timeline:
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
        return self.network.event("sends", "permute", plan.over(plan.axes_of("layers")), sent).seconds

    @cached_property
    def afterwards(self) -> Parts:
        """Seconds of what follows the passes, in order. With `gather="step"` all weights are gathered before them."""
        at_once = [*GATHERED["forward"], *GATHERED["backward"]] if self.plan.train.gather == "step" else []
        updated = self.elements * self.plan.updated / self.plan.elements
        moved = self.machine.stack.kernels.optimizer_bytes * updated
        return {
            "gathers": sum(event.seconds for wanted in at_once for event in self.layer.gathers([wanted], 1)),
            "gradients": self.gradients_seconds,
            "optimizer": Kernel("memory", 0, moved).seconds(self.machine),
            "fixed": self.machine.constants.step_seconds,
        }

    @property
    def gradients_seconds(self) -> float:
        """Seconds of what is sent once a step, without the sums of gradients that the last backward pass hides.

        Weights are gathered after the update, beside nothing. The first stage may have more of both than others.
        """
        plan, held, others = self.plan, self.elements / self.plan.elements, self.tied_seconds
        stack = self.machine.stack
        hides = {"gradients": "gradients" in stack.overlaps or plan.train.reduce == "layer"}
        hides["weights"] = "updated weights" in stack.overlaps
        beside: list[Event] = []
        apart = {*LAYER_TRAFFIC, *HEAD_TRAFFIC, BETWEEN_STAGES}
        once = (term for term in self.traffic if term.what not in apart and not self.layer.is_sharded(term))
        for (what, kind, axes), terms in groupby(once, attrgetter("what", "kind", "axes")):
            sent = sum(term.sent_bytes for term in terms) * (held if what in PARAMETER_TRAFFIC else 1)
            event = self.network.event("gradients", kind, axes, sent, calls=0)
            if hides.get(what):
                beside.append(event._replace(seconds=event.seconds / plan.layers))
            else:
                others += event.seconds
        if not beside:
            return others
        with_sums = simulate(self.layer.events("backward", beside)).step_seconds
        return plan.layers * (with_sums - self._backward.step_seconds) + others

    @property
    def elements(self) -> float:
        """Parameters of a device. Of the first stage, the last to end, if only the ends have the table of tokens."""
        return first_stage_elements(self.plan) if self.layer.head_on_last_stage else self.plan.elements

    @property
    def tied_seconds(self) -> float:
        """Seconds to sum the gradients of a tied table over the first and the last stage, where both have it.

        Megatron-LM does so after it has summed them over replicas, in the group of embeddings (megatron/training.py).
        """
        plan = self.plan
        if not (plan.config.tied and self.layer.head_on_last_stage):
            return 0.0
        table = BYTES[plan.train.reduce_dtype] * plan.padded_vocab * plan.config.embed // plan.tensors
        where = self.network.first_and_last(plan.over(plan.axes_of("layers")))
        return collective_seconds(self.machine, "all_reduce", where, SENT["all_reduce"](table, where.devices))


def first_stage_elements(plan: Plan) -> float:
    """Parameters of a device of the first stage: its layers, and the tables of tokens and positions.

    Only the tensor axis splits the table of tokens. `Plan` splits it over the stages, too.
    """
    tables = (plan.padded_vocab / plan.tensors + plan.config.sequence) * plan.config.embed
    return sum(weight.elements for weight in plan.weights if weight.spec.is_stacked) + tables


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
