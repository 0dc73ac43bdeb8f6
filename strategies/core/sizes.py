"""Sizes: what one device of a mesh holds and computes of a model and a batch, under a strategy's axes.

This is arithmetic only: no devices, no arrays. The step and the formulas in costs/ use these numbers.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain

from strategies.backends.backend import NO_DEVICES, Backend
from strategies.config import Dtype, ReduceDtype, TrainConfig
from strategies.core.axis import Axis, placement_of
from strategies.core.placement import Axes, Placed, Placement, Weight, placed, size_of
from strategies.gpt_config import GPTConfig
from strategies.mesh import MeshSpec
from strategies.model.block import Block, block_of
from strategies.model.ends import tokens_at_once
from strategies.model.gpt import weight_specs
from strategies.model.weights import WeightSpec
from strategies.pipelining.orders import layer_slots
from strategies.pipelining.schedules import Schedule
from strategies.pipelining.timetable import Order, Ticks, order_of

BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
"""Bytes per element, by dtype."""


def held_dtype(spec: WeightSpec, train: TrainConfig) -> Dtype:
    """The dtype of a weight in `State.params`."""
    return "float32" if train.master == "none" else spec.used_dtype(train.dtype)


@dataclass(frozen=True)
class Sizes:
    """A model, a mesh and a batch under a strategy's axes (of size one if the mesh omits them), with
    resolved options.
    """

    config: GPTConfig
    mesh: MeshSpec
    train: TrainConfig
    axes: tuple[Axis, ...]
    backend: Backend = NO_DEVICES

    @cached_property
    def active(self) -> tuple[Axis, ...]:
        """The axes with more than one device, outermost first."""
        return tuple(axis for axis in self.axes if self.mesh.sizes.get(axis.name, 1) > 1)

    @cached_property
    def held_config(self) -> GPTConfig:
        """The model as devices hold it, with replicated KV heads if the tensor axis needs them."""
        return self.config.copied(self.tensors)

    @property
    def key_copies(self) -> int:
        """Devices of a tensor axis that hold the same KV head."""
        return self.held_config.key_features // self.config.key_features

    @cached_property
    def placement(self) -> Placement:
        """What the active axes split."""
        return placement_of(self.active)

    def placed(self, dims: Sequence[str]) -> Placed:
        """How a weight with these dims is split. One layer's weight has no dim `layers`."""
        return _placed(self.active, self.held_config, self.mesh, tuple(dims), self.train.by_layer)

    @cached_property
    def block(self) -> type[Block]:
        """The kind of the model's blocks."""
        return block_of(self.config)

    @cached_property
    def _sizes(self) -> Mapping[str, int]:
        return self.mesh.sizes

    def size(self, *axes: str) -> int:
        """Devices along some axes; an axis that the mesh omits has size one."""
        return size_of(axes, self._sizes)

    def over(self, axes: Iterable[str]) -> Axes:
        """The given axes that have more than one device, in mesh order."""
        return tuple(axis for axis, size in self.mesh.axes if size > 1 and axis in axes)

    def axes_of(self, dim: str) -> Axes:
        """Mesh axes that split a weight dim, outermost first."""
        return self.placement.dims.get(dim, ())

    @cached_property
    def tensors(self) -> int:
        """Devices that split a layer's heads; 1 without a split."""
        return self.size(*self.axes_of("head_features"))

    @cached_property
    def stages(self) -> int:
        """Devices that split the layers; 1 without a split."""
        return self.size(*self.axes_of("layers"))

    @cached_property
    def shards(self) -> int:
        """Devices along `Placement.shards`; 1 without them."""
        return self.size(*self.placement.shards)

    @property
    def sequence_parallel(self) -> bool:
        """Whether the tensor-parallel devices also split the residual stream by token."""
        return self.train.sequence_parallel and self.tensors > 1

    @property
    def ulysses(self) -> bool:
        """Whether the axes that split tokens split attention by head instead (`context_attention="ulysses"`)."""
        return self.size(*self.placement.tokens) > 1 and self.train.context_attention == "ulysses"

    @property
    def vocab_axes(self) -> Axes:
        """Mesh axes that split the vocabulary."""
        return self.axes_of("vocab")

    @property
    def padded_vocab(self) -> int:
        """Size of the vocabulary with padding, over all devices."""
        return self.config.vocab_rows(self.size(*self.vocab_axes))

    @property
    def gathered(self) -> int:
        """Shards of each weight that are gathered for a whole step: 1 unless `gather="step"`."""
        return self.shards if self.train.gather == "step" else 1

    def gathered_of(self, weight: Weight) -> int:
        """`gathered` for a sharded weight; otherwise 1."""
        return self.gathered if weight.stored_shard else 1

    @property
    def virtual(self) -> bool:
        """Whether the devices are several virtual CPU devices, which may deadlock (`backend.are_virtual`)."""
        return self.backend.platform == "cpu" and self.mesh.size > 1

    @property
    def overlap_grad_reduction(self) -> bool:
        """Whether gradients are reduced one layer late (model/layers.py).

        Not if weights are gathered in the loop: `prefetch` already delays the sums, and without it hsdp gets slower.
        Not with two layers: compilers remove a loop over one layer and then hold both layers' gradients. Not on virtual
        devices if leading dense layers send anything: the last sums, after the loop, would run concurrently with those
        layers' backward loop and could deadlock (benchmarks/program/deadlock.py).
        """
        lead_sends = self.config.lead is not None and (self.tensors > 1 or self.size(*self.placement.tokens) > 1)
        late = self.train.reduce == "layer" and self.config.blocks > 2 and self.shards == 1
        return late and not (self.virtual and lead_sends)

    def sums_in_loop(self, spec: WeightSpec) -> bool:
        """Whether the backward loop over layers sums a weight's gradient over devices."""
        return self.train.reduce == "layer" and spec.is_stacked

    @property
    def when_summed(self) -> str:
        """The part of the step in which gradients are summed over devices (`traffic.WHEN`)."""
        return "backward" if self.train.reduce == "layer" else "after backward"

    @property
    def staged(self) -> bool:
        """Whether several pipeline stages run a schedule."""
        return self.stages > 1

    @property
    def scatters_microbatches(self) -> bool:
        """Whether gradients are scattered after each microbatch: not on stages, which accumulate them."""
        return self.placement.reduce_scatter_per_microbatch and not self.staged

    @cached_property
    def order(self) -> Order:
        """The order of passes. Without pipeline stages each microbatch ends before the next begins."""
        train = self.train
        if not self.staged:
            return order_of(1, 1, min(train.microbatches, 2), "1f1b", 1)  # two stand for any number
        return order_of(self.config.blocks, self.stages, train.microbatches, train.schedule, train.chunks)

    @property
    def schedule(self) -> Schedule:
        """The pipeline schedule; without pipeline stages, the schedule of one stage."""
        return self.order.schedule

    @property
    def ticks(self) -> Ticks:
        """The schedule tick by tick."""
        return self.order.ticks

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """The layer in each slot of the stacked blocks, by stage; -1 for none (`orders.layer_slots`)."""
        if not self.staged:
            return tuple(range(self.config.blocks))
        return layer_slots(self.config.blocks, self.schedule)

    @property
    def layer_slots(self) -> int:
        """Number of layer slots over all stages. Each part has the number of layers of the largest part."""
        return len(self.slots)

    @cached_property
    def layers(self) -> int:
        """Layer slots on one device, including empty ones, without the leading dense layers."""
        return self.layer_slots // self.stages

    @property
    def tokens(self) -> int:
        """Tokens per device and step."""
        return self.train.batch_size * self.config.sequence // self.size(*self.placement.batch, *self.placement.tokens)

    @property
    def residual(self) -> int:
        """Elements of the residual stream x[B,T,D] of one device's tokens, per step."""
        return self.tokens * self.config.embed

    @property
    def own_residual(self) -> int:
        """Elements of the residual stream that one device holds between layers: a shard with sequence parallelism."""
        return self.residual // (self.tensors if self.sequence_parallel else 1)

    @property
    def logits_again(self) -> bool:
        """Whether the head's backward pass recomputes the logits: if they are computed in chunks of tokens."""
        return self.train.logits_bytes is not None

    @property
    def logits_tokens(self) -> int:
        """Tokens whose logits are in a device's memory at the same time."""
        tokens, local_vocab = self.tokens // self.train.microbatches, self.padded_vocab // self.size(*self.vocab_axes)
        return tokens_at_once(tokens, local_vocab, self.train.logits_bytes) if self.train.logits_bytes else tokens

    @cached_property
    def weights(self) -> Mapping[str, Weight]:
        """The table of weights by name, including padding of the vocabulary and empty layer slots."""
        return weights_of(self.active, self.config, self.block, self.mesh, self.layer_slots, self.train.by_layer)

    def dtype(self, weight: Weight) -> Dtype:
        """The dtype in which a weight is gathered and used."""
        return weight.spec.used_dtype(self.train.dtype)

    def summed_dtype(self, weight: Weight) -> ReduceDtype:
        """The dtype in which a weight's gradients are summed over devices."""
        return weight.spec.summed_dtype(self.train.reduce_dtype)

    def held_bytes(self, weight: Weight) -> int:
        """Bytes per device of a weight in the state."""
        return BYTES[held_dtype(weight.spec, self.train)] * weight.elements

    @property
    def parameter_bytes(self) -> int:
        """Bytes per device of all parameters in the state."""
        return sum(map(self.held_bytes, self.weights.values()))

    @property
    def elements(self) -> int:
        """Parameters per device."""
        return sum(weight.elements for weight in self.weights.values())


@lru_cache(maxsize=4096)
def _placed(axes: tuple[Axis, ...], config: GPTConfig, mesh: MeshSpec, dims: tuple[str, ...], by_layer: bool) -> Placed:
    """`Sizes.placed` for all plans with these active axes and this held model."""
    return placed(placement_of(axes), config, mesh.sizes, dims, by_layer=by_layer)


@lru_cache(maxsize=1024)
def weights_of(
    axes: tuple[Axis, ...], config: GPTConfig, block: type[Block], mesh: MeshSpec, layer_slots: int, by_layer: bool
) -> Mapping[str, Weight]:
    """`Sizes.weights` for all plans with these active axes; the batch and other options change no weight.

    The block is an argument because its name may be rebound, as for `weight_specs`.
    """
    plan = Sizes(config, mesh, TrainConfig(1), axes)
    sizes = dict(plan.held_config.dim_sizes, vocab=plan.padded_vocab, layers=layer_slots)

    def row(spec: WeightSpec) -> Weight:
        where = _placed(plan.active, plan.held_config, mesh, spec.dims, by_layer)
        elements = math.prod(sizes[dim] for dim in spec.dims)
        stored, updated = (elements // plan.size(*chain(*split)) for split in (where.stored, where.updated))
        return Weight(**vars(where), spec=spec, elements=stored, updated_elements=updated)

    return {name: row(spec) for name, spec in weight_specs(config).items()}
