"""Compositions: a model, a strategy, a mesh, options and a backend that a fuzzer draws; and what becomes of one.

A composition is either refused with a way out, or it builds, traces, holds what formulas say, and computes what one
device computes. Anything else is a failure.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any
from unittest import mock

import jax

from strategies import (
    STRATEGIES,
    GPTConfig,
    Infeasible,
    MeshSpec,
    Step,
    Strategy,
    TrainConfig,
    context,
    data,
    expert,
    fsdp,
    pipeline,
    strategy,
    tensor,
    zero,
)
from strategies.backends.backend import CPU, GPU, NVIDIA_GPU, TPU, V5E, V5P, V6E
from strategies.checking import check_step
from strategies.core.axis import Axis
from strategies.costs.predict import Cost, predict_axes
from strategies.model import block, clamped_experts, experts, parts, self_attention
from tests.strategies.equality import assert_equal, initial, rounding_of, trained

AXES: dict[str, Axis] = {
    "replicas": data.REPLICAS,
    "data": data.AXIS,
    "zero1": zero.AXIS1,
    "zero2": zero.AXIS2,
    "fsdp": fsdp.AXIS,
    "pipeline": pipeline.AXIS,
    "context": context.AXIS,
    "expert": expert.AXIS,
    "zero_expert": zero.EXPERT,
    "tensor": tensor.AXIS,
}
"""Axes of user-defined strategies. Their names, joined by "+", are the strategy of a composition."""
PARTS: tuple[tuple[type, ...], ...] = (
    (parts.LayerNorm, parts.RMSNorm),
    (
        self_attention.Attention,
        self_attention.RotaryAttention,
        self_attention.BiasedRotaryAttention,
        self_attention.HeadNormAttention,
        self_attention.WidthNormAttention,
        self_attention.SinkAttention,
    ),
    (parts.MLP, parts.GatedMLP),
    (experts.Experts, clamped_experts.ClampedExperts),
)
"""Parts of user-defined blocks. The names of one of each kind, joined by "+", are the block of a composition."""
BACKENDS = {"cpu": CPU, "cuda": NVIDIA_GPU, "gpu": GPU, "tpu": TPU, "v5e": V5E, "v5p": V5P, "v6e": V6E}
"""Backends for which steps are traced."""

OF_ONE_DEVICE = (
    *("batch_size", "microbatches", "dtype", "z_loss", "warmup_steps", "decay_steps", "clip_norm"),
    *("optimizer", "by_head", "matrix_scale", "nesterov"),
)
"""Options that change what one device computes."""


@dataclass(frozen=True)
class Composition:
    """What a fuzzer draws. Its repr rebuilds it.

    Attributes:
        strategy: its name in `STRATEGIES`, or names of `AXES` joined by "+".
        mesh: the text of a mesh.
        model: fields of `GPTConfig`; its block may be names of `PARTS` joined by "+".
        train: fields of `TrainConfig`.
        backend: its name in `BACKENDS`.
    """

    strategy: str
    mesh: str
    model: dict[str, Any]
    train: dict[str, Any] = field(default_factory=dict)
    backend: str = "cpu"

    @property
    def is_registered(self) -> bool:
        """Whether the strategy is a built-in one."""
        return self.strategy in STRATEGIES

    def made_strategy(self) -> Strategy:
        """The strategy.

        Raises:
            ValueError: its axes exclude each other.
        """
        if self.is_registered:
            return STRATEGIES[self.strategy]
        return Strategy("own", tuple(AXES[name] for name in self.strategy.split("+")))

    def build(self) -> Step:
        """The step.

        Raises:
            Infeasible: it is refused.
        """
        config, mesh = GPTConfig(**self.model), MeshSpec.parse(self.mesh)
        return self.made_strategy().build(config, mesh, TrainConfig(**self.train))

    def predict(self) -> Cost:
        """What formulas say of the step.

        Raises:
            Infeasible: it is refused.
        """
        config, train = GPTConfig(**self.model), TrainConfig(**self.train)
        return predict_axes(self.made_strategy().axes, config, self.mesh, train, BACKENDS[self.backend].platform)

    def in_float32(self) -> "Composition":
        """The same in float32."""
        narrow = {"reduce_dtype": "float32", "master": "none", "momentum_dtype": "float32"}
        return replace(self, train={**self.train, "dtype": "float32", **narrow})

    @contextlib.contextmanager
    def known(self) -> Iterator[None]:
        """Know its block, and take the devices for its backend's, in this context."""
        name = self.model.get("block", "gpt2")
        blocks = {name: own_block(name)} if "+" in name else {}
        with (
            mock.patch.dict(block.BLOCKS, blocks),
            mock.patch.object(strategy, "backend_of", return_value=BACKENDS[self.backend]),
        ):
            yield


@cache
def own_block(name: str) -> type[block.Block]:
    """A block of these parts. Attention without rotations needs the table of positions."""
    kinds = [
        next(kind for kind in kinds if kind.__name__ == part)
        for kinds, part in zip(PARTS, name.split("+"), strict=True)
    ]
    norm_kind, attention, dense, mixture = kinds
    parts = {"norm1": norm_kind, "attention": attention, "norm2": norm_kind, "mlp": dense}
    positions = not issubclass(attention, self_attention.RotaryAttention)
    return type("OwnBlock", (block.Block,), {"parts": parts, "mixture": mixture, "learned_positions": positions})


class NoWayOut(Exception):
    """A refusal that does not say what to do."""


def built(composition: Composition) -> Step | None:
    """The step of a composition; None if it is refused.

    Raises:
        NoWayOut: a refusal has no second half after a semicolon, which says what to do.
        Exception: anything but a refusal is a failure.
    """
    try:
        return composition.build()
    except Infeasible as refusal:
        if ";" not in str(refusal):
            raise NoWayOut(str(refusal)) from refusal
        return None


def attempt(composition: Composition) -> None:
    """Build and trace the step of a composition, unless it is refused.

    Raises:
        AssertionError: the step and the formulas disagree, or the step returns another state than it takes.
        Exception: the step cannot be built or traced.
    """
    with composition.known():
        if step := built(composition):
            if composition.made_strategy().has_formulas:
                assert_as_predicted(step, composition)
            trace(step)


def assert_as_predicted(step: Step, composition: Composition) -> None:
    """Formulas accept what the step accepts, and know its arguments to the byte."""
    cost = composition.predict()
    held = sum(
        math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
        for array in jax.tree.leaves((step.state, step.batch))
    )
    assert sum(cost.arguments.values()) == held
    assert cost.sent_bytes >= 0
    assert min(cost.temporaries.values()) >= 0


def trace(step: Step) -> None:
    """Trace what a step runs. The new state is as the old one."""
    state, metrics = jax.eval_shape(step.update, step.state, step.batch)
    assert shapes(state) == shapes(step.state)
    assert {metric.shape for metric in metrics.values()} == {()}
    assert jax.eval_shape(step.evaluation, step.state.params, step.batch).shape == ()
    if step.config.experts:
        jax.eval_shape(step.load, step.state.params, step.batch)


def shapes(tree: Any) -> list[tuple[Any, Any]]:
    """Shapes and dtypes of arrays, by path."""
    return [(path, (array.shape, array.dtype)) for path, array in jax.tree.leaves_with_path(tree)]


def assert_as_one_device(composition: Composition) -> None:
    """Two steps in float32 compute what one device computes, unless the composition is refused.

    Raises:
        AssertionError: a loss, a gradient or a weight differs by more than rounding explains.
    """
    exact = {**composition.in_float32().train, "compression": "none"}
    if exact.get("matrices") == "block":
        exact["matrices"] = "deal"
    alone = {name: exact[name] for name in OF_ONE_DEVICE if name in exact}
    composition = replace(composition, train=exact, backend="cpu")
    with composition.known():
        if step := built(composition):
            single = Composition("single", "data=1", composition.model, alone).build()
            mine, reference = (trained(each, initial(each), range(2))[0] for each in (step, single))
            assert_equal(mine, reference, rounding_of(step.config, step.train), step.train)


def assert_no_alarm(composition: Composition) -> None:
    """The check that precedes each measurement accepts a step in its dtype, unless the composition is refused.

    Raises:
        Mismatch: the check takes rounding for an error.
    """
    composition = replace(composition, backend="cpu")
    with composition.known():
        step = built(composition)
        if step and not step.inexact:
            check_step(step)
