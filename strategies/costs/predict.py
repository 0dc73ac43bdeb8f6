"""Predicted cost of a step on a mesh, by closed formulas: FLOPs, bytes sent, bytes held, bubble. It needs no devices.

    train = TrainConfig(batch_size=1536, microbatches=12, dtype="bfloat16")
    cost = predict("three_d", PRESETS["gpt3-175b"], MeshSpec.parse("data=16,pipeline=8,tensor=8"), train)
    cost.sent["all_reduce", ("data",)]  # bytes that one device sends in a step, by what they are

The formulas are compared with compiled programs in tests/strategies/test_laws.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import strategies
from strategies.arguments import require_instance
from strategies.backends.backend import Backend, backend_for
from strategies.config import TrainConfig
from strategies.core.axis import Axis
from strategies.core.matrices import Muon
from strategies.core.placement import Axes
from strategies.core.plan import Plan
from strategies.core.traffic import Bytes, Traffic, stated
from strategies.costs import layer, memory
from strategies.costs.scores import Scores, scores_of
from strategies.gpt_config import GPTConfig
from strategies.infeasible import Infeasible
from strategies.mesh import MeshSpec
from strategies.model.latent_attention import LATENTS
from strategies.pipelining.schedules import PassTimes
from strategies.strategy import Strategy


def predict(
    strategy: str, config: GPTConfig, mesh: MeshSpec | str, train: TrainConfig, platform: str | Backend | None = None
) -> "Cost":
    """Predict the cost of a step of a strategy, named as in `STRATEGIES`.

    `platform` is the devices', as `backend_for` takes it, or their record. It decides what "auto" means for
    `attention`, `reduce`, `prefetch`, `halves` and `context_attention`; default: as on CPUs, whatever the running
    process has.
    """
    with_formulas = strategies_with_formulas()
    if require_instance(strategy, str, "the strategy") not in with_formulas:
        raise Infeasible(f"{strategy} has no formulas; strategies with formulas are {', '.join(with_formulas)}")
    return predict_axes(with_formulas[strategy].axes, config, mesh, train, platform)


def predict_axes(
    axes: Sequence[Axis],
    config: GPTConfig,
    mesh: MeshSpec | str,
    train: TrainConfig,
    platform: str | Backend | None = None,
) -> "Cost":
    """Predict the cost of a step with a list of axes, outermost first, which need not be a registered strategy's."""
    spec = MeshSpec.of(mesh)
    require_instance(config, GPTConfig, "the model")
    require_instance(train, TrainConfig, "train")
    if not isinstance(platform, Backend):
        platform = backend_for(platform if platform is None else require_instance(platform, str, "the platform"))
    plan = Plan.of(axes, config, spec, train, platform)
    layer.require_known_split(plan)
    return Cost(plan)


def strategies_with_formulas() -> Mapping[str, Strategy]:
    """The strategies that have formulas, by name (`Strategy.has_formulas`)."""
    return {name: strategy for name, strategy in strategies.STRATEGIES.items() if strategy.has_formulas}


@dataclass(frozen=True)
class Cost:
    """The predicted cost of a step. Bytes are per device. `plan` is the model as the mesh splits it."""

    plan: Plan

    @cached_property
    def traffic(self) -> tuple[Traffic, ...]:
        """What a device sends, term by term."""
        return tuple(stated(self.plan))

    @property
    def sent(self) -> Mapping[tuple[str, Axes], Mapping[str, Bytes]]:
        """Bytes that a device sends in a step, by kind of collective and mesh axes, and by purpose."""
        total: dict[tuple[str, Axes], dict[str, Bytes]] = {}
        for each in self.traffic:
            parts = total.setdefault((each.kind, each.axes), {})
            parts[each.what] = parts.get(each.what, 0) + each.sent_bytes
        return total

    @property
    def sent_bytes(self) -> int:
        """Bytes that a device sends in a step."""
        return int(sum(each.sent_bytes for each in self.traffic))

    @property
    def arguments(self) -> Mapping[str, int]:
        """Bytes of the step's arguments on a device, by purpose: the state between steps, and the batch."""
        return memory.arguments(self.plan)

    @property
    def temporaries(self) -> Mapping[str, int]:
        """Bytes of the step's temporaries on a device at the peak, by purpose."""
        return memory.temporaries(self.plan)

    @property
    def needed_bytes(self) -> int:
        """Bytes that a device needs at the peak: arguments and temporaries."""
        return sum(self.arguments.values()) + sum(self.temporaries.values())

    def model_flops(self, *, causal: bool = False) -> int:
        """Model FLOPs of a step on all devices, without recomputation (Chowdhery et al. 2022, "PaLM", appendix B).

        Each token counts the last token's keys: all tokens, or its window and stride. With `causal=True` it counts its
        own keys: half for dense attention (Dao 2023, section 4.1).
        """
        config, batch_size = self.plan.config, self.plan.train.batch_size
        flops = batch_size * config.sequence * layer.flops_per_token(config)
        if not causal:
            return flops
        counted, tokens = config.sequence * layer.score_flops(config), config.sequence
        pairs = (2 * reach.pairs(tokens) if reach else tokens**2 for reach in self.plan.block.reaches(config))
        features = config.query_features + config.head_features
        return flops - batch_size * 3 * config.all_blocks * (counted - features * sum(pairs))

    @property
    def flops(self) -> Mapping[str, int]:
        """FLOPs of a step's matmuls on all devices, by purpose.

        model: what the model needs.
        attention again: the backward pass recomputes attention scores (Dao et al. 2022, section 3.1). Splash attention
            recomputes them twice, and their gradients once (model/attention/splash.py).
        latents again: keys and values that are computed again from latents, for the backward pass and on each device of
            a ring (model/attention/latent.py).
        recomputed: with `remat="full"` the backward pass of a block begins with its forward pass, except its last
            matmul and the scores, which still exist (Korthikanti et al. 2022, section 4), except in fused kernels.
            Logits computed in chunks are recomputed. A pipeline runs leading dense layers forward twice.
        capacity: experts' rows beyond k per token (model/experts.py); negative if the capacity has fewer. If empty
            blocks are skipped, only the blocks that balanced routing fills count.
        replicated: matmuls with weights that the tensor axis does not split, which all its devices run, and with
            replicated KV heads. All pipeline stages run the leading dense layers and the MTP block.
        padding: of the vocabulary.
        empty: empty slots of stages with fewer layers than the largest. They are not computed, but FLOP counts of a
            compiled program include them.
        optimizer: Muon's matmuls.
        masked: negative: scores that causality masks out and that are skipped. With a window or a stride, positive:
            scores in blocks that are not skipped, beyond those that the model counts.
        """
        plan, config = self.plan, self.plan.config
        tokens = plan.train.batch_size * config.sequence
        scores, recomputed = self._scores, self._recomputed
        attention = scores.forward + scores.backward
        logits = plan.head_uses * layer.logit_flops(config, plan.padded_vocab)
        capacity, again = self._capacity
        counted = 3 * config.all_blocks * layer.score_flops(config)
        layers = 3 * self._matmuls + attention + recomputed + self._expanded
        replicated = (4 if plan.train.remat == "full" else 3) * self._replicated
        beyond = {"capacity": 3 * capacity + again, "replicated": tokens * replicated}
        lead_forward, ends = self._staged_lead[0], sum(self._staged_lead) + sum(self._staged_mtp)
        of_stages = tokens * (layers - ends) + sum(beyond.values())
        beyond["replicated"] += tokens * (plan.stages - 1) * (lead_forward + ends)
        return {
            "model": self.model_flops(),
            "attention again": tokens * scores.again,
            "recomputed": tokens * (recomputed + lead_forward + (logits if plan.logits_again else 0)),
            "latents again": tokens * self._expanded,
            **beyond,
            "padding": tokens * 3 * (logits - plan.head_uses * layer.logit_flops(config)),
            "empty": of_stages // config.blocks * (plan.layer_slots - config.blocks),
            "optimizer": plan.mesh.size * self.optimizer_flops,
            "masked": tokens * (attention - scores.again - counted),
        }

    @property
    def optimizer_flops(self) -> int:
        """FLOPs of the optimizer's matmuls on a device."""
        return sum(group.flops for group in Muon(self.plan).groups)

    @property
    def least_flops(self) -> int:
        """FLOPs of a step on all devices without computing masked scores, but with recomputation and replication."""
        config, tokens = self.plan.config, self.plan.train.batch_size * self.plan.config.sequence
        masked = (self.model_flops() - self.model_flops(causal=True)) // 3
        needed, scores = tokens * config.all_blocks * layer.score_flops(config) - masked, self._scores
        return sum(self.flops.values()) - scores.all * (tokens * scores.pair - needed) // scores.pair

    @property
    def _scores(self) -> Scores:
        return scores_of(self.plan)

    @property
    def _capacity(self) -> tuple[int, int]:
        """FLOPs of experts' padding rows in a forward pass of all layers, and the recomputed part."""
        plan, (forward, again) = self.plan, layer.padding_flops(self.plan.share)
        times = self._blocks * plan.train.batch_size * plan.config.sequence // plan.share.tokens
        return times * forward, times * again if plan.train.remat == "full" else 0

    @property
    def _replicated(self) -> int:
        """Forward FLOPs per token of matmuls with replicated weights and KV heads, on all holders but one.

        With sequence parallelism latents are computed of a device's own tokens.
        """
        plan, axes = self.plan, {*self.plan.axes_of("head_features")}
        split = {dim for dim in plan.config.dim_sizes if axes & {*plan.axes_of(dim)}}
        split |= {*LATENTS} if plan.sequence_parallel else set()
        whole = [one for one in layer.matmuls(plan.block, plan.config) if not split & {*one.weight.dims}]
        copies = layer.matmul_flops(plan.held_config) - layer.matmul_flops(plan.config)
        repeated = self._blocks * (plan.tensors - 1) * sum(one.flops(plan.config) for one in whole)
        repeated += 0 if plan.sequence_parallel else (plan.tensors - 1) * layer.join_flops(plan.config)
        return repeated + plan.config.all_blocks * copies

    @property
    def _blocks(self) -> int:
        """Blocks, and the MTP block, which has the same parts."""
        return self.plan.config.all_blocks - self.plan.config.dense_layers

    @property
    def _matmuls(self) -> int:
        """Forward FLOPs per token of all matmuls with weights, but logits."""
        return self._in_layers(layer.matmul_flops) + layer.join_flops(self.plan.config)

    def _in_layers(self, flops: Callable[[GPTConfig], int]) -> int:
        """FLOPs per token in all layers; `flops` counts a layer."""
        return sum(each.config.blocks * flops(each.config) for each in self.plan.stacks)

    @property
    def _recomputed(self) -> int:
        """FLOPs per token to recompute all layers for the backward pass."""
        if self.plan.train.remat != "full":
            return 0
        joins = layer.join_flops(self.plan.config)
        return self._in_layers(layer.recomputed_flops) + joins + self._scores.recomputed

    @property
    def _expanded(self) -> int:
        """FLOPs per token in all layers of `Share.expansions`."""
        plan, (arrived, again) = self.plan, self.plan.share.expansions
        attentions = plan.config.all_blocks * plan.block.attentions()
        return attentions * (3 * arrived + again) * layer.expansion_flops(plan.config)

    @property
    def _staged_lead(self) -> tuple[int, ...]:
        """`passes` of leading dense layers before pipeline stages; otherwise zeros."""
        return tuple(map(int, Cost(self.plan.lead).passes)) if self.plan.staged and self.plan.lead else (0, 0, 0)

    @property
    def _staged_mtp(self) -> tuple[int, ...]:
        """`passes` of the MTP block after pipeline stages; otherwise zeros."""
        if not (self.plan.staged and self.plan.mtp):
            return (0, 0, 0)
        join = layer.join_flops(self.plan.config)
        joins = join, join * (2 if self.plan.train.remat == "full" else 1), join
        return tuple(int(each) + more for each, more in zip(Cost(self.plan.mtp).passes, joins, strict=True))

    @property
    def passes(self) -> PassTimes:
        """FLOPs per token in all layers: forward, gradients of inputs, and gradients of weights.

        As in Qi et al. 2023, "Zero Bubble Pipeline Parallelism", table 1. The gradients of inputs also include
        recomputation of attention scores, and with `remat="full"` of the layers. In a pipeline, leading dense layers
        and the MTP block are excluded, because all stages run them at once.
        """
        scores, tokens = self._scores, self.plan.train.batch_size * self.plan.config.sequence
        capacity, again = (flops / tokens for flops in self._capacity)
        matmuls = self._matmuls + capacity + self._replicated
        recomputed = (
            self._recomputed + self._expanded + again + (self._replicated if self.plan.train.remat == "full" else 0)
        )
        passes = PassTimes(matmuls + scores.forward, matmuls + scores.backward + recomputed, matmuls)
        ends = zip(passes, self._staged_lead, self._staged_mtp, strict=True)
        return PassTimes(*(each - lead - mtp for each, lead, mtp in ends))

    @property
    def ring(self) -> int:
        """Devices of the attention ring; 1 without a ring."""
        return self.plan.share.ring

    @property
    def hardware_flops(self) -> int:
        """FLOPs of a step on all devices, with recomputation and padding, without `empty`."""
        return sum(self.flops.values()) - self.flops["empty"]

    @property
    def bubble(self) -> float:
        """The fraction of time that a stage is idle, if the time of each pass is proportional to its FLOPs.

        With GPipe and 1F1B it is (S-1) / (M+S-1) for S stages and M microbatches (Huang et al. 2019, section 2.3),
        whatever the times of the passes. With ZB-H1 stages are idle for (S-1) (F+B-W) and work for M (F+B+W) (Qi et al.
        2023, table 2): they idle a third as long as with 1F1B without recomputation, and longer with it.
        """
        return self.plan.schedule.bubble(self.passes)

    @property
    def lockstep_bubble(self) -> float:
        """The fraction of time lost in addition to `bubble` if each tick lasts as long as on the busiest stage.

        An SPMD pipeline runs in lockstep, because all stages exchange arrays at the end of a tick.
        """
        return self.plan.schedule.lockstep_bubble(self.passes)
