"""What each device of a mesh gets of a model and a batch, by arithmetic alone: no devices, no arrays.

The formulas in traffic.py, memory.py and predict.py are written in these numbers.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

import jax

from strategies import context, pipeline, tensor, three_d
from strategies.config import Dtype, GPTConfig, Infeasible, PipelineSchedule, TrainConfig, legal
from strategies.mesh import MeshSpec
from strategies.model.gpt import named_weights
from strategies.model.loss import tokens_at_once
from strategies.model.part import Share
from strategies.model.weights import Backward, used_dtype
from strategies.pipelining.schedules import Costs, Schedule
from strategies.pipelining.stages import layer_slots
from strategies.pipelining.timetable import Ticks
from strategies.sharding.layout import Axes, Layout, size_of

Dims = tuple[str, ...]

BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "int8": 1}


@dataclass(frozen=True)
class Weight:
    """An array of weights.

    Attributes:
        name: in the model, such as "blocks.mlp.up_DF".
        dims: their names.
        backward: whether the backward pass needs it.
        axes: mesh axes that split it.
        elements: that one device holds.
    """

    name: str
    dims: Dims
    backward: Backward
    axes: Axes
    elements: int

    @property
    def of_blocks(self) -> bool:
        """Whether it is stacked over layers."""
        return self.dims[0] == "layers"


@dataclass(frozen=True)
class Order:
    """A schedule, and what takes long to find out of it."""

    schedule: Schedule

    @cached_property
    def ticks(self) -> Ticks:
        """The schedule tick by tick."""
        return Ticks.of(self.schedule)

    @cached_property
    def _bubble(self) -> Callable[[Costs], float]:
        return cache(self.schedule.bubble)

    def bubble(self, costs: Costs) -> float:
        """See `Schedule.bubble`. Found once for each proportion of the costs."""
        return self._bubble(Costs(*(cost / sum(costs) for cost in costs)))


@cache
def order_of(layers: int, stages: int, microbatches: int, schedule: PipelineSchedule, chunks: int) -> Order:
    """Found once for all plans that have it.

    Raises:
        Infeasible: as `pipeline.order` does.
    """
    return Order(pipeline.order(layers, stages, microbatches, schedule, chunks)[0])


@dataclass(frozen=True)
class Plan:
    """A model, a mesh and a batch, under a layout.

    Raises:
        Infeasible: an axis that splits nothing, or does not divide what it is to split.
    """

    config: GPTConfig
    mesh: MeshSpec
    train: TrainConfig
    layout: Layout

    def __post_init__(self) -> None:
        """Refuse what does not fit, as `build` does."""
        layout = self.layout
        if strange := self.over(set(self.mesh.sizes) - layout.axes):
            raise Infeasible(f"mesh {self.mesh} has the axis {strange[0]}, which splits nothing here")
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
        """Those that split a dim of the model."""
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
        """Whether devices that split heads split the residual stream over its tokens."""
        return self.train.sequence_parallel and self.tensors > 1

    @cached_property
    def attending(self) -> TrainConfig:
        """With the way in which tokens on different devices attend to each other."""
        split = self.size(*self.layout.tokens) > 1
        return context.resolve_context_attention(self.train, self.stages) if split else self.train

    @property
    def ulysses(self) -> bool:
        """Whether attention is split over heads where else tokens are."""
        return self.size(*self.layout.tokens) > 1 and self.attending.context_attention == "ulysses"

    @property
    def vocab_axes(self) -> Axes:
        """Those that split the vocabulary."""
        return self.axes_of("vocab")

    @property
    def rows(self) -> int:
        """Of the vocabulary, with its padding."""
        return self.config.vocab_rows(self.size(*self.vocab_axes))

    @property
    def gathered(self) -> int:
        """How much larger than what a device holds are the weights of which gradients are taken."""
        return self.shards if self.train.gather == "step" else 1

    @property
    def staged(self) -> bool:
        """Whether there are pipeline stages, which work by a schedule. One stage is no pipeline."""
        return self.stages > 1

    @cached_property
    def order(self) -> Order:
        """In which stages work on microbatches; without stages, one is done with before the next."""
        train = self.train
        if not self.staged:
            return order_of(1, 1, train.microbatches, "1f1b", 1)
        return order_of(self.config.layers, self.stages, train.microbatches, train.schedule, train.chunks)

    @property
    def schedule(self) -> Schedule:
        """That order."""
        return self.order.schedule

    @property
    def ticks(self) -> Ticks:
        """The schedule tick by tick."""
        return self.order.ticks

    @cached_property
    def layer_slots(self) -> int:
        """Slots for layers on all stages: as many on each stage as the largest needs."""
        return len(layer_slots(self.config.layers, self.schedule.stages, self.schedule.chunks))

    @property
    def layers(self) -> int:
        """Layers of one device, counting empty slots."""
        return self.layer_slots // self.stages

    @property
    def tokens(self) -> int:
        """On which one device works, in a step."""
        return self.train.batch_size * self.config.sequence // self.size(*self.layout.batch, *self.layout.tokens)

    @cached_property
    def share(self) -> Share:
        """What one device computes of a layer, for one microbatch."""
        return Share(self.config, self.train, self.tokens // self.train.microbatches, self.tensors, self.ulysses)

    @property
    def residual(self) -> int:
        """Elements of the residual stream x[B,T,D] of these tokens."""
        return self.tokens * self.config.embed

    @property
    def own_residual(self) -> int:
        """Elements of the part of it that one device holds between layers."""
        return self.residual // (self.tensors if self.sequence_parallel else 1)

    @property
    def logits_again(self) -> bool:
        """Whether the head's backward pass computes the logits again: those that are made in chunks."""
        return self.train.logits_bytes is not None

    @property
    def logits_tokens(self) -> int:
        """Tokens whose logits there are at once."""
        tokens, rows = self.tokens // self.train.microbatches, self.rows // self.size(*self.vocab_axes)
        return tokens_at_once(tokens, rows, self.train.logits_bytes) if self.train.logits_bytes else tokens

    @cached_property
    def weights(self) -> tuple[Weight, ...]:
        """All of the model's."""
        sizes = dict(self.config.dim_sizes, vocab=self.rows, layers=self.layer_slots)
        spec = self.layout.spec(self.config, self.mesh.sizes)
        return tuple(
            Weight(name, dims, backward, axes, math.prod(sizes[dim] for dim in dims) // self.size(*axes))
            for name, (dims, backward) in named_weights(self.config.tied).items()
            for axes in [tuple(jax.tree.leaves(tuple(spec(dims))))]
        )

    def dtype(self, weight: Weight) -> Dtype:
        """The dtype in which a weight is used, and gathered."""
        return used_dtype(weight.dims, self.train.dtype)

    @property
    def elements(self) -> int:
        """Parameters that one device holds."""
        return sum(weight.elements for weight in self.weights)
