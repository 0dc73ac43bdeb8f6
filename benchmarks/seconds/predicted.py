"""Predicted seconds of a step, by a small simulation over what the formulas list.

its = machine("a100_megatron_cluster")
timeline = predict_seconds(predict("tensor", config, "tensor=8", train), its, Topology.parse("a100_80gb:1x8"))
timeline.step_seconds, timeline.parts
"""

from collections.abc import Collection

from benchmarks.devices.topology import Topology
from benchmarks.seconds.kernels import Kernel, beside_sums, head, layer, seconds_by_kind, softmax_is_fused
from benchmarks.seconds.machine import Machine
from benchmarks.seconds.memory import first_stage_elements
from benchmarks.seconds.network import Network, bandwidth, group
from benchmarks.seconds.pipelined import pipelined
from benchmarks.seconds.stack import FIRST_AND_LAST, NONE, Passes
from benchmarks.seconds.timeline import LayerSeconds, Parts, Timeline, added, scaled
from strategies.costs.plan import BYTES
from strategies.costs.predict import Cost
from strategies.costs.traffic import SENT, Traffic
from strategies.model.gpt import Block

OF_LAYERS = "layers", "keys and values", "tokens and heads"
"""What layers send for each microbatch, as traffic.py names it. The device waits for it."""
OF_ENDS = "embedding", "head", "ends"
"""What the embedding and the head send for each microbatch, and what stages tell each other of it."""
GATHERED = {"forward": ("weights",), "backward": ("weights again", "gradients")}
"""What layers gather and scatter for each microbatch in each pass, where weights are sharded."""
OF_PARAMETERS = "gradients", "weights"
"""What is sent once a step for each parameter that a device has."""
BETWEEN_STAGES = "stages"
"""What stages send to their neighbours."""

KEPT_BYTES, RETURNED_BYTES = 20 * 2**20, 36 * 2**20
"""Temporaries of a device that the C library keeps for the next step, and that it returns to the system. In between it
returns a part, because the temporaries of several devices share a heap of 64 MiB (glibc's malloc/arena.c,
HEAP_MAX_SIZE). Page faults of steps on eight devices, over their temporaries: 0 at 21 MiB, 0.2 at 24, 0.4 at 27, 0.6 at
31, 0.9 at 36 and 1.0 at 38."""


def predict_seconds(cost: Cost, machine: Machine, topology: Topology) -> Timeline:
    """Predict the time of a step on its slowest device; of virtual devices, on all of a host together.

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
    if not step.bubbles:
        parts = {**parts, "bubble": 0.0}
    parts = scaled(parts, step.sharing)
    parts = added(parts, {"fixed": machine.constants.step_seconds})
    return Timeline({name: seconds for name, seconds in parts.items() if seconds})


def bound_seconds(cost: Cost, machine: Machine, topology: Topology) -> float:
    """The least time of a step: its matmuls at the chip's peak with the pipeline's bubble, or its network traffic.

    No step is faster. A roofline (search/ranking.py) also has memory traffic, of which caches may serve a part.
    """
    devices, chip, outermost = cost.plan.mesh.size, machine.chip, machine.stack.outermost
    bubble = 0.0 if machine.stack.shared else cost.bubble
    compute = cost.least_flops / devices / (1 - bubble) / chip.flops_per_second
    sent = sum(
        sum(parts.values()) / bandwidth(chip, kind, group(topology, cost.plan.mesh, axes, outermost))
        for (kind, axes), parts in cost.sent.items()
    )
    return max(compute, sent) * machine.sharing(topology, devices)


class StepSeconds:
    """A step on a machine. Seconds are those of one device."""

    def __init__(self, cost: Cost, machine: Machine, topology: Topology) -> None:
        self.plan, self.traffic, self.machine = cost.plan, cost.traffic, machine
        self.sharing = machine.sharing(topology, cost.plan.mesh.size)
        self.temporaries = sum(cost.temporaries.values())
        self.network = Network(machine, topology, cost.plan.mesh)
        self.kernels = layer(cost.plan, machine.stack)
        self.microbatches = cost.plan.train.microbatches
        self.shards = cost.plan.over(cost.plan.layout.shards)
        of_blocks = [each for each in cost.plan.weights if each.of_blocks and {*self.shards} & {*each.axes}]
        self.gathers = 1 if machine.stack.combines else len(of_blocks)

    @property
    def bubbles(self) -> bool:
        """Whether a stage that waits leaves its device idle: virtual devices of one host leave it their cores."""
        axes = self.plan.over(self.plan.axes_of("layers"))
        return self.plan.staged and not (self.machine.stack.shared and self.network.group(axes).hosts == 1)

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
        launches = getattr(stack.kernels, way) + (self.plan.share.ring - 1) * getattr(stack.hop_kernels, way)
        if way == "backward" and self.plan.train.remat == "full":
            launches += stack.kernels.forward
        if not softmax_is_fused(self.plan, stack):
            repeated = way == "backward" and self.plan.train.remat != "none"
            launches += getattr(stack.unfused_kernels, way) + repeated * stack.unfused_kernels.forward
        if self.sharing <= stack.cores:
            launches *= stack.alone_launches
        parts = seconds_by_kind(getattr(self.kernels, way), self.machine)
        parts = added(parts, {"sums of layers": self.sums_seconds(way)})
        hidden = 0.0 if stack.shared else sum(parts.values())
        waits = max(0.0, launches * constants.kernel_seconds - hidden)
        parts = added(parts, {"launches": waits})
        # The pipelines here have no loop over all layers in which weights are gathered ahead (training/overlap.py).
        beside = stack.prefetches and self.plan.train.gather == "layer" and not self.plan.staged
        hidden = sum(parts.values()) if beside else 0.0
        return added(parts, {"gathers": max(0.0, self.gathers_seconds(GATHERED[way]) - hidden)})

    def sums_seconds(self, way: str) -> float:
        """Seconds of what a layer sends for one microbatch and waits for, "forward" or "backward"."""
        # Inputs of branches are gathered forward, backward, and again for gradients of weights. The third of these is
        # hidden behind the matmul before it (Korthikanti et al. 2022, section 4.2.2), unless devices share their cores.
        third = self.machine.stack.shared
        gathers = Passes(1 / 3, 2 / 3 if third else 1 / 3)
        total = 0.0
        for each in self.traffic:
            if each.what in OF_LAYERS:
                calls, all_calls = self.calls(each.what)
                if third and each.kind == "all_gather":
                    calls = Passes(calls.forward, sum(calls))
                share = getattr(gathers, way) if each.kind == "all_gather" else getattr(calls, way) / all_calls
                sent = each.sent_bytes * share / self.microbatches / self.plan.layers
                # A ring sends beside its attention, and tokens are gathered right after others were scattered.
                ring = each.what == "keys and values" and self.plan.share.ring > 1
                again = getattr(calls, way) if ring or each.kind == "all_gather" else 0
                total += self.network.seconds(each.kind, each.axes, sent, getattr(calls, way), again)
                if way == "backward" and each.what == "layers" and each.kind != "all_gather":
                    total -= self.hidden_sums_seconds(each, all_calls)
        return total

    def hidden_sums_seconds(self, each: Traffic, all_calls: int) -> float:
        """Seconds of a layer's sums of gradients of inputs that run beside the matmuls of gradients of weights.

        Args:
            each: the sums of all layers and microbatches.
            all_calls: how many of them are of a layer and a microbatch.
        """
        apart = self.plan.staged and self.plan.schedule.splits_backward
        if apart or not self.machine.stack.hides_sums:
            return 0.0
        sent = each.sent_bytes / self.microbatches / self.plan.layers / all_calls
        one = self.network.seconds(each.kind, each.axes, sent)
        return sum(min(one, kernel.seconds(self.machine)) for kernel in beside_sums(self.plan))

    def calls(self, what: str) -> tuple[Passes, int]:
        """Collectives that a layer waits for, forward and backward, and how many the traffic of a layer counts.

        A stack that repeats whole layers also repeats the last sum.
        """
        branches, full = len(Block.branches()), self.plan.train.remat == "full"
        if what == "keys and values" and (ring := self.plan.share.ring) > 1:
            return Passes(ring - 1, 2 * ring - 1), 3 * ring - 2
        if what == "tokens and heads":
            return (Passes(2, 4), 6) if full else (Passes(2, 2), 4)
        counted = 2 * branches + (branches - 1 if full else 0)  # as traffic.py counts them
        done = 3 * branches if full and self.machine.stack.repeats == "all" else counted
        return Passes(branches, done - branches), counted

    def gathers_seconds(self, wanted: Collection[str]) -> float:
        """Seconds of a layer's collectives of sharded weights and gradients for one microbatch, by what they send."""
        sent: dict[str, float] = {}
        for each in self.traffic:
            if self.sharded(each) and each.what in wanted:
                sent[each.kind] = sent.get(each.kind, 0) + each.sent_bytes / self.microbatches / self.plan.layers
        calls = self.gathers
        return sum(self.network.seconds(kind, self.shards, count, calls, calls - 1) for kind, count in sent.items())

    def first_gather_seconds(self) -> Passes:
        """Seconds of a microbatch's first gather and of its last scatter, which have nothing to hide behind."""
        if not self.machine.stack.prefetches or self.plan.train.gather == "step":
            return NONE
        return Passes(self.gathers_seconds(("weights",)), self.gathers_seconds(("gradients",)))

    def sharded(self, each: Traffic) -> bool:
        """Whether this is traffic of weights that are sharded between steps."""
        return bool(self.shards) and each.axes == self.shards

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
        both = {"sums of ends": sent / 2, "launches": stack.end_kernels / 2 * self.machine.constants.kernel_seconds}
        return {"head": forward, **both}, {"head": backward, **both}

    def send_seconds(self) -> float:
        """Seconds to send a microbatch's residual stream to the next stage."""
        plan, stack = self.plan, self.machine.stack
        # Each device of Megatron-LM's tensor axis sends a part (Narayanan et al. 2021, section 4.1).
        elements = plan.residual / plan.tensors if stack.ends == FIRST_AND_LAST else plan.own_residual
        sent = elements / self.microbatches * BYTES[plan.train.dtype]
        again = 0.0
        if stack.shared:  # of the exchanges at the end of a tick all but the first
            exchanges = plan.ticks.shared.edges >= 0
            again = 1 - float(exchanges.any(axis=1).sum() / exchanges.sum())
        return self.network.seconds("permute", plan.over(plan.axes_of("layers")), sent, again=again)

    def after(self, backward_seconds: float) -> Parts:
        """Seconds of what follows the passes.

        Args:
            backward_seconds: of a layer for one microbatch.
        """
        return {
            "gradients": self.gradients_seconds(self.plan.layers * backward_seconds),
            "optimizer": self.optimizer_seconds(),
            "allocation": self.allocation_seconds(),
        }

    def gradients_seconds(self, backward_seconds: float) -> float:
        """Seconds of what is sent once a step, without the sums of gradients that the last backward pass hides.

        Weights are gathered after the update, beside nothing. The first stage may have more of both than others.
        """
        held = self.elements / self.plan.elements
        gradients = others = 0.0
        for each in self.traffic:
            if each.what in (*OF_LAYERS, *OF_ENDS, BETWEEN_STAGES) or self.sharded(each):
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
        """Seconds to accumulate gradients of microbatches, and to update the parameters that the device updates."""
        stack = self.machine.stack
        times = self.microbatches if self.microbatches > 1 else 0
        moved = (stack.optimizer_bytes / self.plan.updates + stack.accumulation_bytes * times) * self.elements
        launches = stack.update_kernels * self.machine.constants.kernel_seconds
        return Kernel("memory", 0, moved).seconds(self.machine) + launches

    def allocation_seconds(self) -> float:
        """Seconds for the system to provide the temporaries, where the host's allocator does not keep them."""
        returned = (self.temporaries - KEPT_BYTES) / (RETURNED_BYTES - KEPT_BYTES)
        fresh = self.temporaries * min(1.0, max(0.0, returned))
        return Kernel("memory", 0, self.machine.stack.fresh_bytes * fresh).seconds(self.machine)
