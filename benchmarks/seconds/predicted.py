"""Predicted seconds of a step, by a small simulation over what the formulas list.

its = machine("a100_megatron_cluster")
timeline = predict_seconds(predict("tensor", config, "tensor=8", train), its, Topology.parse("a100_80gb:1x8"))
timeline.step_seconds, timeline.parts
"""

from collections.abc import Collection

from benchmarks.devices.topology import Topology
from benchmarks.seconds.kernels import Kernel, head, layer, seconds_by_kind, softmax_is_fused
from benchmarks.seconds.machine import Machine
from benchmarks.seconds.memory import first_stage_elements
from benchmarks.seconds.network import Network, bandwidth, group
from benchmarks.seconds.pipelined import pipelined
from benchmarks.seconds.sharded import GATHERED, Sharded
from benchmarks.seconds.stack import FIRST_AND_LAST, NONE, Passes
from benchmarks.seconds.sums import OF_LAYERS, LayerSums
from benchmarks.seconds.timeline import LayerSeconds, Parts, Timeline, added, scaled
from strategies.core.sizes import BYTES
from strategies.core.traffic import SENT
from strategies.costs.predict import Cost

OF_ENDS = "embedding", "head", "ends"
"""What the embedding and the head send for each microbatch, and what stages tell each other of it."""
OF_PARAMETERS = "gradients", "weights"
"""What is sent once a step for each parameter that a device has."""
BETWEEN_STAGES = "stages"
"""What stages send to their neighbours."""


def predict_seconds(cost: Cost, machine: Machine, topology: Topology) -> Timeline:
    """Predict the time of a step on its slowest device.

    Args:
        cost: the step by formulas.
        machine: the devices and the software.
        topology: the devices that the mesh takes, all of them.
    """
    step = StepSeconds(cost, machine, topology)
    layers, ends = step.layers(), step.ends()
    if cost.plan.staged:
        parts = pipelined(cost.plan, machine.stack, layers, ends, step.send_seconds())
    else:
        times = cost.plan.train.microbatches
        inside = added(layers.forward, layers.backward)
        parts = scaled(added(scaled(inside, cost.plan.layers), *ends), times)
        parts = added(parts, {"gathers": times * sum(step.first_gather_seconds())})
    parts = added(parts, step.after(sum(layers.backward.values())))
    parts = added(parts, {"fixed": machine.constants.step_seconds})
    return Timeline({name: seconds for name, seconds in parts.items() if seconds})


def bound_seconds(cost: Cost, machine: Machine, topology: Topology) -> float:
    """The least time of a step: its matmuls at the chip's peak with the pipeline's bubble, or its network traffic.

    No step is faster. A roofline (search/ranking.py) also has memory traffic, of which caches may serve a part.
    """
    devices, chip, outermost = cost.plan.mesh.size, machine.chip, machine.stack.outermost
    compute = cost.least_flops / devices / (1 - cost.bubble) / chip.flops_per_second
    sent = sum(
        float(sum(parts.values())) / bandwidth(chip, kind, group(topology, cost.plan.mesh, axes, outermost))
        for (kind, axes), parts in cost.sent.items()
    )
    return max(compute, sent)


class StepSeconds:
    """A step on a machine. Seconds are those of one device."""

    def __init__(self, cost: Cost, machine: Machine, topology: Topology) -> None:
        self.plan, self.traffic, self.machine = cost.plan, cost.traffic, machine
        self.network = Network(machine, topology, cost.plan.mesh)
        self.kernels = layer(cost.plan, machine.stack)
        self.microbatches = cost.plan.train.microbatches
        self.sharded = Sharded(cost.plan, cost.traffic, self.network)
        self.sums = LayerSums(cost.plan, cost.traffic, self.network)

    def layers(self) -> LayerSeconds:
        """Seconds of a layer for one microbatch.

        Gradients of weights have their share of the waits for launches, and of sharded weights they are scattered.
        """
        backward = self.layer("backward")
        weights = seconds_by_kind(self.kernels.weights, self.machine)
        working = sum(seconds for name, seconds in backward.items() if name not in ("launches", "gathers"))
        weights["launches"] = backward["launches"] * (sum(weights.values()) / working if working else 0.0)
        weights["gathers"] = self.gathers_seconds(("gradients",)) if self.plan.staged else 0.0
        return LayerSeconds(self.layer("forward"), added(backward, scaled(weights, -1)), weights)

    def layer(self, way: str) -> Parts:
        """Seconds of a layer for one microbatch, "forward" or "backward", the latter with what it recomputes.

        The device waits for launches if they take longer than kernels and sums, and for weights that take longer to
        gather than what they are gathered beside.
        """
        stack, constants = self.machine.stack, self.machine.constants
        launches = getattr(stack.kernels, way)
        if way == "backward" and self.plan.train.remat == "full":
            launches += stack.kernels.forward
        if not softmax_is_fused(self.plan, stack):
            repeated = way == "backward" and self.plan.train.remat != "none"
            launches += getattr(stack.unfused_kernels, way) + repeated * stack.unfused_kernels.forward
        parts = seconds_by_kind(getattr(self.kernels, way), self.machine)
        parts = added(parts, {"sums of layers": self.sums.seconds(way)})
        waits = max(0.0, launches * constants.kernel_seconds - sum(parts.values()))
        parts = added(parts, {"launches": waits})
        # The pipelines here have no loop over all layers in which weights are gathered ahead (strategies/fsdp.py).
        beside = stack.prefetches and self.plan.train.gather == "layer" and not self.plan.staged
        hidden = sum(parts.values()) if beside else 0.0
        return added(parts, {"gathers": max(0.0, self.gathers_seconds(GATHERED[way]) - hidden)})

    def gathers_seconds(self, wanted: Collection[str]) -> float:
        """Seconds of a layer's collectives of sharded weights and gradients for one microbatch, by what they send.

        Zero with `gather="step"`, which gathers all layers at once (`whole_gathers_seconds`).
        """
        if self.plan.train.gather == "step":
            return 0.0
        return self.sharded.seconds(wanted, self.plan.layers * self.microbatches)

    def whole_gathers_seconds(self) -> float:
        """Seconds in which `gather="step"` gathers all weights before the passes and scatters gradients after them."""
        if self.plan.train.gather == "layer":
            return 0.0
        return sum(self.sharded.seconds(wanted, 1) for wanted in GATHERED.values())

    def first_gather_seconds(self) -> Passes:
        """Seconds of a microbatch's first gather and of its last scatter, which have nothing to hide behind."""
        if not self.machine.stack.prefetches or self.plan.train.gather == "step":
            return NONE
        return Passes(self.gathers_seconds(("weights",)), self.gathers_seconds(("gradients",)))

    def ends(self) -> tuple[Parts, Parts]:
        """Seconds of the embedding, the head and the loss for one microbatch, forward and backward."""
        plan, stack = self.plan, self.machine.stack
        alone = plan.staged and stack.ends == FIRST_AND_LAST
        kernels = head(plan, stack, plan.tensors if alone else plan.size(*plan.vocab_axes))
        sent = 0.0
        for each in (each for each in self.traffic if each.what in OF_ENDS):
            # Alone, a stage sends to the devices of the tensor axis only.
            axes = tuple(axis for axis in each.axes if not alone or axis in plan.axes_of("head_features"))
            if axes:
                part = SENT[each.kind](each.operand_bytes, plan.size(*axes)) / self.microbatches
                sent += self.network.seconds(each.kind, axes, part)
        forward, backward = (sum(seconds_by_kind(each, self.machine).values()) for each in kernels)
        both = {"sums of ends": sent / 2}
        return {"head": forward, **both}, {"head": backward, **both}

    def send_seconds(self) -> float:
        """Seconds to send a microbatch's residual stream to the next stage."""
        plan, stack = self.plan, self.machine.stack
        # Each device of Megatron-LM's tensor axis sends a part (Narayanan et al. 2021, section 4.1).
        elements = plan.residual / plan.tensors if stack.ends == FIRST_AND_LAST else plan.own_residual
        sent = elements / self.microbatches * BYTES[plan.train.dtype]
        return self.network.seconds("permute", plan.over(plan.axes_of("layers")), sent)

    def after(self, backward_seconds: float) -> Parts:
        """Seconds of what follows the passes.

        Args:
            backward_seconds: of a layer for one microbatch.
        """
        return {
            "gathers": self.whole_gathers_seconds(),
            "gradients": self.gradients_seconds(self.plan.layers * backward_seconds),
            "optimizer": self.optimizer_seconds(),
        }

    def gradients_seconds(self, backward_seconds: float) -> float:
        """Seconds of what is sent once a step, without the sums of gradients that the last backward pass hides.

        Weights are gathered after the update, beside nothing. The first stage may have more of both than others.
        """
        held = self.elements / self.plan.elements
        gradients = others = 0.0
        for each in self.traffic:
            if each.what in (*OF_LAYERS, *OF_ENDS, BETWEEN_STAGES) or self.sharded.has(each):
                continue
            sent = each.sent_bytes * (held if each.what in OF_PARAMETERS else 1)
            seconds = self.network.seconds(each.kind, each.axes, sent, calls=0)
            if each.what == "gradients":
                gradients += seconds
            else:
                others += seconds
        hides = self.machine.stack.overlaps_gradients or self.plan.train.reduce == "layer"
        return max(0.0, gradients - (backward_seconds if hides else 0.0)) + others + self.tied_seconds()

    @property
    def elements(self) -> float:
        """Parameters of a device. Of the first stage, the last to end, if only the ends have the table of tokens."""
        alone = self.plan.staged and self.machine.stack.ends == FIRST_AND_LAST
        return first_stage_elements(self.plan) if alone else self.plan.elements

    def tied_seconds(self) -> float:
        """Seconds to sum the gradients of a tied table over the first and the last stage, where both have it.

        Megatron-LM does so after it has summed them over replicas, in the group of embeddings (megatron/training.py).
        """
        plan = self.plan
        if not (plan.staged and plan.config.tied and self.machine.stack.ends == FIRST_AND_LAST):
            return 0.0
        table = BYTES[plan.train.reduce_dtype] * plan.padded_vocab * plan.config.embed // plan.tensors
        where = self.network.first_and_last(plan.over(plan.axes_of("layers")))
        return self.network.seconds_of("all_reduce", where, SENT["all_reduce"](table, where.devices))

    def optimizer_seconds(self) -> float:
        """Seconds to update the parameters that the device updates."""
        moved = self.machine.stack.optimizer_bytes / self.plan.updates * self.elements
        return Kernel("memory", 0, moved).seconds(self.machine)
