"""What one device of a mesh holds and computes of a model and a batch, by arithmetic alone: no devices, no arrays.

The formulas in traffic.py, memory.py and predict.py use these numbers.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

import jax

from strategies import context, pipeline, tensor, three_d
from strategies.config import Dtype, GPTConfig, Infeasible, PipelineSchedule, TrainConfig, legal
from strategies.mesh import MeshSpec
from strategies.model.attention import kernel_for
from strategies.model.gpt import Block, named_weights
from strategies.model.loss import tokens_at_once
from strategies.model.part import Share
from strategies.model.weights import Backward, used_dtype
from strategies.pipelining.schedules import Costs, Schedule
from strategies.pipelining.stages import layer_slots
from strategies.pipelining.timetable import Ticks
from strategies.sharding.layout import Axes, Layout, size_of
from strategies.training.sharded_update import held_dtype, require_master

Dims = tuple[str, ...]

BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
"""Bytes of an element, by dtype."""


@dataclass(frozen=True)
class Weight:
    """An array of weights.

    Attributes:
        name: in the model, such as "blocks.mlp.up_DF".
        dims: names of its dims.
        backward: whether the backward pass needs it.
        axes: mesh axes that split it.
        last_axes: those that split its last dim.
        elements: number of its elements on one device.
    """

    name: str
    dims: Dims
    backward: Backward
    axes: Axes
    last_axes: Axes
    elements: int

    @property
    def of_blocks(self) -> bool:
        """Whether it is stacked over layers."""
        return self.dims[0] == "layers"


@dataclass(frozen=True)
class Order:
    """A schedule, with cached results of what takes long to compute from it."""

    schedule: Schedule

    @cached_property
    def ticks(self) -> Ticks:
        """The schedule tick by tick."""
        return Ticks.of(self.schedule)

    @cached_property
    def _bubble(self) -> Callable[[Costs], float]:
        return cache(self.schedule.bubble)

    def bubble(self, costs: Costs) -> float:
        """The fraction of time for which a stage is idle (`Schedule.bubble`), cached by proportions of the costs."""
        return self._bubble(Costs(*(cost / sum(costs) for cost in costs)))


@cache
def order_of(layers: int, stages: int, microbatches: int, schedule: PipelineSchedule, chunks: int) -> Order:
    """The `Order` of a schedule, cached for all plans that share it. Arguments are those of `pipeline.order`.

    Raises:
        Infeasible: fewer layers than parts, or microbatches that do not fit the schedule.
    """
    return Order(pipeline.order(layers, stages, microbatches, schedule, chunks)[0])


@dataclass(frozen=True)
class Plan:
    """A model, a mesh and a batch, under a layout, on devices of a platform that `kernel_for` knows.

    Raises:
        Infeasible: an axis splits nothing, or does not divide what it splits.
    """

    config: GPTConfig
    mesh: MeshSpec
    train: TrainConfig
    layout: Layout
    platform: str | None = None

    def __post_init__(self) -> None:
        """Refuse what does not fit, as `build` does."""
        layout = self.layout
        if strange := self.over(set(self.mesh.sizes) - layout.axes):
            raise Infeasible(f"mesh {self.mesh} has the axis {strange[0]}, which splits nothing here")
        self._require_known_split()
        require_master(layout, self.train)
        for axes in filter(None, (layout.shards, layout.updates)):
            layout.shards_of(axes, self.config, self.mesh.sizes)
        contexts = self.size(*layout.tokens)
        tensor.require_fit(self.config, self.train, self.tensors, contexts)
        context.require_fit(self.config, self.attending, contexts, self.tensors)
        if self.staged:
            _ = self.order
            if self.shards > 1:
                three_d.require_regather(self.train, self.stages)
        parts = self.size(*layout.batch) * self.train.microbatches
        if self.train.batch_size % parts:
            problem = f"{self.mesh} x microbatches={self.train.microbatches} does not divide"
            raise Infeasible(f"{problem} batch_size={self.train.batch_size}; {legal(self.train.batch_size, 'it')}")

    def _require_known_split(self) -> None:
        """Refuse a split of dims for which there are no formulas."""
        if unknown := [dim for dim in ("embed", "qkv", "sequence") if self.over(self.axes_of(dim))]:
            raise Infeasible(f"there are no formulas for a layout that splits {unknown[0]}; leave this dim whole")
        branches = {branch.contracted or "": branch for branch in Block.branches()}
        if len({self.over(self.axes_of(dim)) for dim in branches}) > 1:
            raise Infeasible(
                f"there are no formulas for {' and '.join(branches)} over different axes; give both the same"
            )

    @cached_property
    def _sizes(self) -> Mapping[str, int]:
        return self.mesh.sizes

    def size(self, *axes: str) -> int:
        """Devices along some axes; one that the mesh leaves out has size one."""
        return size_of(axes, self._sizes)

    def over(self, axes: Iterable[str]) -> Axes:
        """Those of the axes along which there is more than one device, in the mesh's order."""
        return tuple(axis for axis, size in self.mesh.axes if size > 1 and axis in axes)

    def axes_of(self, dim: str) -> Axes:
        """Mesh axes that split a dim of the weights, outermost first."""
        return self.layout.dims.get(dim, ())

    @property
    def tensors(self) -> int:
        """Devices that split the heads of a layer; 1 where none do."""
        return self.size(*self.axes_of("head_features"))

    @property
    def stages(self) -> int:
        """Devices that split the layers; 1 where none do."""
        return self.size(*self.axes_of("layers"))

    @property
    def shards(self) -> int:
        """Devices along `Layout.shards`; 1 without it."""
        return self.size(*self.layout.shards)

    @property
    def updates(self) -> int:
        """Devices along `Layout.updates`; 1 without it."""
        return self.size(*self.layout.updates)

    @property
    def sequence_parallel(self) -> bool:
        """Whether the devices that split the heads also split the residual stream over its tokens."""
        return self.train.sequence_parallel and self.tensors > 1

    @cached_property
    def attending(self) -> TrainConfig:
        """The training configuration, with `context_attention="auto"` resolved where a context axis splits tokens."""
        sizes = {"tensors": self.tensors, "stages": self.stages}
        contexts = self.size(*self.layout.tokens)
        return context.resolve_context_attention(self.config, self.train, contexts, **sizes, platform=self.platform)

    @property
    def ulysses(self) -> bool:
        """Whether the axes that split tokens split attention over its heads instead (`context_attention="ulysses"`)."""
        return self.size(*self.layout.tokens) > 1 and self.attending.context_attention == "ulysses"

    @property
    def vocab_axes(self) -> Axes:
        """Mesh axes that split the vocabulary."""
        return self.axes_of("vocab")

    @property
    def padded_vocab(self) -> int:
        """Size of the vocabulary with padding, on all devices together."""
        return self.config.vocab_rows(self.size(*self.vocab_axes))

    @property
    def gathered(self) -> int:
        """How many shards of each weight are gathered for a whole step: 1 unless `gather="step"`."""
        return self.shards if self.train.gather == "step" else 1

    @property
    def staged(self) -> bool:
        """Whether there are several pipeline stages, which run a schedule. One stage is no pipeline."""
        return self.stages > 1

    @cached_property
    def order(self) -> Order:
        """The order of passes. Without pipeline stages each microbatch ends before the next begins."""
        train = self.train
        if not self.staged:
            return order_of(1, 1, min(train.microbatches, 2), "1f1b", 1)  # two show what any number needs
        return order_of(self.config.layers, self.stages, train.microbatches, train.schedule, train.chunks)

    @property
    def schedule(self) -> Schedule:
        """The pipeline schedule; without pipeline stages, that of one stage."""
        return self.order.schedule

    @property
    def ticks(self) -> Ticks:
        """The schedule tick by tick."""
        return self.order.ticks

    @cached_property
    def layer_slots(self) -> int:
        """Number of slots for layers on all stages together. Each part has as many as the largest part has layers."""
        return len(layer_slots(self.config.layers, self.schedule.stages, self.schedule.chunks))

    @property
    def layers(self) -> int:
        """Slots for layers on one device, empty ones included."""
        return self.layer_slots // self.stages

    @property
    def tokens(self) -> int:
        """Tokens that one device processes in a step."""
        return self.train.batch_size * self.config.sequence // self.size(*self.layout.batch, *self.layout.tokens)

    @cached_property
    def share(self) -> Share:
        """What one device computes of a layer, for one microbatch."""
        tokens, contexts = self.tokens // self.train.microbatches, self.size(*self.layout.tokens)
        kernel = kernel_for(self.platform, self.config, self.train, ring=1 if self.ulysses else contexts)
        return Share(self.config, self.train, tokens, self.tensors, contexts, self.ulysses, kernel)

    @property
    def residual(self) -> int:
        """Elements of the residual stream x[B,T,D] of the tokens of one device, in a step."""
        return self.tokens * self.config.embed

    @property
    def own_residual(self) -> int:
        """Elements of the residual stream that one device holds between layers: with sequence parallelism, a shard."""
        return self.residual // (self.tensors if self.sequence_parallel else 1)

    @property
    def logits_again(self) -> bool:
        """Whether the head's backward pass recomputes the logits: it does if they are computed in chunks of tokens."""
        return self.train.logits_bytes is not None

    @property
    def logits_tokens(self) -> int:
        """Tokens whose logits exist on a device at the same time."""
        tokens = self.tokens // self.train.microbatches
        local_vocab = self.padded_vocab // self.size(*self.vocab_axes)
        return tokens_at_once(tokens, local_vocab, self.train.logits_bytes) if self.train.logits_bytes else tokens

    @cached_property
    def weights(self) -> tuple[Weight, ...]:
        """All weights of the model, with padding of the vocabulary and empty slots for layers."""
        sizes = dict(self.config.dim_sizes, vocab=self.padded_vocab, layers=self.layer_slots)
        spec = self.layout.spec(self.config, self.mesh.sizes)
        return tuple(
            Weight(name, dims, backward, axes, last, math.prod(sizes[dim] for dim in dims) // self.size(*axes))
            for name, (dims, backward) in named_weights(self.config.tied).items()
            for split in [tuple(spec(dims))]
            for axes, last in [(tuple(jax.tree.leaves(split)), tuple(jax.tree.leaves(split[len(dims) - 1 :])))]
        )

    def dtype(self, weight: Weight) -> Dtype:
        """The dtype in which a weight is used, and gathered."""
        return used_dtype(weight.dims, self.train.dtype)

    def held_bytes(self, weight: Weight) -> int:
        """Bytes of a weight as the state holds it, on one device."""
        return BYTES[held_dtype(weight.dims, self.train)] * weight.elements

    @property
    def parameter_bytes(self) -> int:
        """Bytes of the parameters as the state holds them, on one device."""
        return sum(map(self.held_bytes, self.weights))

    @property
    def elements(self) -> int:
        """Parameters that one device holds."""
        return sum(weight.elements for weight in self.weights)
