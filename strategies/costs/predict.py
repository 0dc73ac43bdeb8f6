"""What a step costs on a mesh, by closed formulas: FLOPs, bytes sent, bytes held, bubble. It takes no devices.

    train = TrainConfig(batch_size=1536, microbatches=12, dtype="bfloat16")
    cost = predict("three_d", PRESETS["gpt3-175b"], MeshSpec.parse("data=16,pipeline=8,tensor=8"), train)
    cost.sent["all_reduce", ("data",)]  # bytes that one device sends in a step, by what they are

The formulas are held against compiled programs in tests/strategies/costs/test_predict.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import strategies
from strategies.config import GPTConfig, Infeasible, TrainConfig
from strategies.costs import memory
from strategies.costs.plan import Plan
from strategies.costs.traffic import TERMS, Traffic
from strategies.mesh import MeshSpec
from strategies.model.attention import Attention
from strategies.model.gpt import Block, flops_per_token
from strategies.model.head import Head
from strategies.pipelining.schedules import Costs
from strategies.sharding.layout import Axes, Layout


def predict(strategy: str, config: GPTConfig, mesh: MeshSpec | str, train: TrainConfig) -> "Cost":
    """What a step of a strategy costs. The mesh may be its text.

    Raises:
        Infeasible: nothing is known of the strategy, or model, mesh and batch do not fit together.
    """
    layouts = known()
    if strategy not in layouts:
        raise Infeasible(f"nothing is known of what {strategy} sends; it can be {', '.join(layouts)}")
    plan = Plan(config, MeshSpec.of(mesh), train, layouts[strategy])
    terms = (*TERMS, *strategies.STRATEGIES[strategy].traffic)
    return Cost(plan, tuple(each for term in terms for each in term(plan)))


def known() -> Mapping[str, Layout]:
    """The layouts of all strategies that state one, but for those of which the compiler decides what is sent."""
    by_hand = [strategy for strategy in strategies.STRATEGIES.values() if not strategy.twins]
    return {strategy.name: strategy.layout for strategy in by_hand if strategy.layout is not None}


@dataclass(frozen=True)
class Cost:
    """What a step costs. Bytes are those of one device.

    Attributes:
        plan: the model as the mesh splits it.
        traffic: all that a device sends, term by term.
    """

    plan: Plan
    traffic: tuple[Traffic, ...]

    @property
    def sent(self) -> Mapping[tuple[str, Axes], Mapping[str, int]]:
        """Bytes that a device sends in a step, by kind of collective and mesh axes, and by what they are."""
        total: dict[tuple[str, Axes], dict[str, int]] = {}
        for each in self.traffic:
            parts = total.setdefault((each.kind, each.axes), {})
            parts[each.what] = parts.get(each.what, 0) + each.sent_bytes
        return total

    @property
    def sent_bytes(self) -> int:
        """By all collectives."""
        return sum(each.sent_bytes for each in self.traffic)

    @property
    def arguments(self) -> Mapping[str, int]:
        """Bytes that a device holds between steps, by what they are, and of the batch."""
        return memory.arguments(self.plan)

    @property
    def temporaries(self) -> Mapping[str, int]:
        """Bytes that a device holds at the step's peak besides, by what they are."""
        return memory.temporaries(self.plan)

    def model_flops(self, *, causal: bool = False) -> int:
        """Of all devices, nothing recomputed (Chowdhery et al. 2022, "PaLM", appendix B).

        Where it is causal, attention counts half: no token attends to those behind it (Dao 2023, section 4.1).
        """
        config, tokens = self.plan.config, self.plan.train.batch_size * self.plan.config.sequence
        masked = 3 * config.layers * Attention.score_flops(config) if causal else 0
        return tokens * (flops_per_token(config) - masked)

    @property
    def flops(self) -> Mapping[str, int]:
        """Of the matmuls that all devices do, by what they are for: what a model needs, and what is done besides.

        `attention again`: the backward pass computes the scores again (Dao et al. 2022, section 3.1). `recomputed`:
        with `remat="full"` that pass begins with a block's forward pass, but for its last matmul and the scores, which
        then are there (Korthikanti et al. 2022, section 4); and logits in chunks are computed again. `padding` of the
        vocabulary. `empty`: what stages with fewer layers than the largest do not do, but a compiled program counts,
        for it cannot tell. `masked`, below zero: what attention leaves out, for causality masks it out. Of
        layers that are in no loop, with `unroll` as many as there are, the compiler may find all that would be computed
        again.
        """
        plan, config = self.plan, self.plan.config
        tokens = plan.train.batch_size * config.sequence
        scores, recomputed = self._scores, self._recomputed
        logits = Head.matmul_flops(config, plan.rows)
        masked = 6 * (config.layers * Attention.score_flops(config) - scores)
        layers = 3 * config.layers * Block.matmul_flops(config) + 7 * scores + recomputed
        return {
            "model": self.model_flops(),
            "attention again": tokens * scores,
            "recomputed": tokens * (recomputed + (logits if plan.logits_again else 0)),
            "padding": tokens * 3 * (logits - Head.matmul_flops(config)),
            "empty": tokens * layers // config.layers * (plan.layer_slots - config.layers),
            "masked": -tokens * masked,
        }

    @property
    def _scores(self) -> int:
        """FLOPs of the attention scores of a token: one of attention's two matmuls forward, and four backward.

        Of n devices around which keys and values go, causality leaves 2n + 1 of the 4n pairs of chunks that each has
        (ring_attention.py); of one device three of four (attention.py). Of an odd number of tokens there are no halves.
        """
        config, ring = self.plan.config, self.ring
        square = config.layers * Attention.score_flops(config)
        return square if config.sequence % 2 else square * (2 * ring + 1) // (4 * ring)

    @property
    def _recomputed(self) -> int:
        """FLOPs to compute all layers of a token again for the backward pass."""
        if self.plan.train.remat != "full":
            return 0
        config = self.plan.config
        forward = config.layers * Block.recomputed_flops(config) + self._scores
        # Of what has passed a ring's loop the compiler does not find the scores that are there.
        blocks = 2 * self.ring + 1
        passing = blocks - 3 if self.ring > 2 else 0
        return forward + self._scores * passing // blocks

    @property
    def passes(self) -> Costs:
        """FLOPs of a token in all layers: forward, gradients of inputs, and gradients of weights.

        As in Qi et al. 2023, "Zero Bubble Pipeline Parallelism", table 1; here the first part of the backward pass
        also computes attention scores again, and with `remat="full"` the layers.
        """
        scores, matmuls = self._scores, self.plan.config.layers * Block.matmul_flops(self.plan.config)
        return Costs(matmuls + 2 * scores, matmuls + 5 * scores + self._recomputed, matmuls)

    @property
    def ring(self) -> int:
        """Devices around which keys and values go."""
        return 1 if self.plan.ulysses else self.plan.size(*self.plan.layout.tokens)

    @property
    def hardware_flops(self) -> int:
        """Of all devices, with what is computed again and of padding, and without `empty`."""
        return sum(self.flops.values()) - self.flops["empty"]

    @property
    def bubble(self) -> float:
        """The part of its time for which a stage is idle, if its passes take as long as they have FLOPs.

        With GPipe and 1F1B that is (S-1) / (M+S-1) for S stages and M microbatches (Huang et al. 2019, section 2.3),
        however long the passes are. With ZB-H1 stages wait for (S-1) (F+B-W), of M (F+B+W) that they work (Qi et al.
        2023, table 2): without recomputation for a third of what they wait with 1F1B, with it for longer.
        """
        return self.plan.order.bubble(self.passes)
