"""A mesh axis of a strategy: what it splits, does in a step, and sends. A strategy is a list of axes."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strategies.core.placement import Placement
from strategies.model.weights import WeightSpec
from strategies.schema import require_types
from strategies.step import Implementation


def _nothing(plan: Any) -> Mapping[str, Any]:
    return {}


def _unchanged(plan: Any) -> Implementation:
    return Implementation()


def _whole(plan: Any, spec: WeightSpec) -> bool:
    return False


@dataclass(frozen=True)
class Axis:
    """What a strategy does along one mesh axis.

    The functions take a `Plan` (core/plan.py): the model, the batch and the mesh under all axes of the strategy.

    Attributes:
        name: of the mesh axis.
        batch: whether it splits the batch.
        tokens: whether it splits the tokens of each sequence.
        dims: names of the weight dims that it splits, and with them the work. Gradients of a weight are all-reduced
            over every batch or token axis that does not shard that weight.
        shards: whether it also splits every weight, along the first dim that it divides (ZeRO-3). Weights are gathered
            before use. It splits the batch, too.
        may_split_dim_twice: whether `shards` may split a dim that `dims` already splits, if the weight has no other
            dim. Otherwise `shards` does not split such a weight.
        needs_loop: whether layers must be a loop in the program (`Plan.needs_loop`).
        updates: whether it splits gradients, optimizer state and updates, while weights stay whole (ZeRO-1 and 2). It
            splits the batch, too.
        reduce_scatter_per_microbatch: reduce-scatter gradients after every microbatch instead of once a step (ZeRO-2).
        options: fields of `TrainConfig` that change the step through this axis, in addition to those that change every
            step.
        resolve: plan with options as given -> values of options in place of "auto". It raises Infeasible for an option
            that is impossible here.
        require: plan with resolved options -> nothing. It raises Infeasible if what the axis splits does not divide.
        partial_gradient: (plan, spec of a weight) -> whether devices along this axis replicate the weight but each
            computes only a part of its gradient. The parts are summed once a step, in `reduce_dtype`.
        implement: plan -> what this axis does in the step. No two axes of a mesh may set the same function or hook.
        traffic: terms of what the axis sends (core/traffic.py), each a function of the plan.
        replica_sums: the term of what `Implementation.reduce` of this axis sends to replicas, in place of the
            all-reduces of gradients; None if it has no `reduce`, or if that sends as much as all-reduces. With "reduce"
            among its options the axis sums gradients of single layers, too (`Implementation.sum_layer`).

    Raises:
        ValueError: a field has the wrong type, or fields exclude each other.
    """

    name: str
    batch: bool = False
    tokens: bool = False
    dims: tuple[str, ...] = ()
    shards: bool = False
    may_split_dim_twice: bool = True
    needs_loop: bool = False
    updates: bool = False
    reduce_scatter_per_microbatch: bool = False
    options: tuple[str, ...] = ()
    resolve: Callable[..., Mapping[str, Any]] = _nothing
    require: Callable[..., Any] = _nothing
    partial_gradient: Callable[..., bool] = _whole
    implement: Callable[..., Implementation] = _unchanged
    traffic: tuple[Callable[..., Iterator[Any]], ...] = ()
    replica_sums: Callable[..., Iterator[Any]] | None = None

    def __post_init__(self) -> None:
        require_types(self)
        placement_of((self,))


@functools.cache
def placement_of(axes: Sequence[Axis]) -> Placement:
    """The `Placement` of a list of axes, outermost first."""

    def names(matching: Callable[[Axis], bool]) -> tuple[str, ...]:
        return tuple(axis.name for axis in axes if matching(axis))

    dims = dict.fromkeys(dim for axis in axes for dim in axis.dims)
    return Placement(
        batch=names(lambda axis: axis.batch),
        tokens=names(lambda axis: axis.tokens),
        dims={dim: names(lambda axis, dim=dim: dim in axis.dims) for dim in dims},
        shards=names(lambda axis: axis.shards),
        updates=names(lambda axis: axis.updates),
        reduce_scatter_per_microbatch=any(axis.reduce_scatter_per_microbatch for axis in axes),
        may_split_dim_twice=all(axis.may_split_dim_twice for axis in axes),
    )
