"""Meshes of published rows, and the axes of steps that no strategy here has."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache

from benchmarks.devices.topology import Topology
from benchmarks.simulate.published_row import AXES, Published, ZeroStage
from strategies import context, expert, tensor, zero
from strategies.config import TrainConfig
from strategies.core.axis import Axis
from strategies.core.layer_reduction import resolve_reduce
from strategies.core.plan import Plan, applicable
from strategies.core.traffic import Traffic
from strategies.costs.predict import Cost, predict_axes
from strategies.gpt_config import GPTConfig
from strategies.infeasible import Infeasible
from strategies.mesh import MeshSpec
from strategies.strategy import vocabulary_traffic
from strategies.three_d import THREE_D


def cost_of(row: Published, config: GPTConfig, train: TrainConfig, topology: Topology) -> Cost:
    """The step of a row by formulas.

    Weights whose optimizer is sharded over data are gathered in the compute dtype, and updated in float32.
    """
    sizes = sizes_of(row)
    mesh = MeshSpec(tuple((axis, size) for axis, size in sizes.items() if size > 1) or (("data", 1),))
    shards = row.optimizer_sharded if sizes["data"] > 1 and row.optimizer_sharded in ("zero1", "zero2") else None
    axes = _axes(shards)
    train = replace(train, master="float32") if shards else train
    return predict_axes(axes, config, mesh, applicable(axes, train), topology.platform)


@cache
def _axes(sharded: ZeroStage | None) -> tuple[Axis, ...]:
    """The axes of a published step.

    An optimizer may be sharded beside other axes: Megatron-LM's splits a flat buffer, so what tensor splits is not
    split again. A pipeline may have rings. Each device of the tensor axis sends its own tokens to experts, in place of
    gathering those of all for the MLP.
    """
    changes = {
        "context": replace(context.AXIS, resolve=_ring),
        "expert": replace(expert.AXIS, traffic=(_exchanges,)),
        "tensor": replace(tensor.AXIS, traffic=(_layers, vocabulary_traffic)),
    }
    if sharded:
        shards = zero.AXIS2 if sharded == "zero2" else zero.AXIS1
        changes["data"] = replace(shards, may_split_dim_twice=False)
    return tuple(changes.get(axis.name, axis) for axis in THREE_D.axes)


def _exchanges(plan: Plan) -> Iterator[Traffic]:
    """Exchanges of tokens; each device of the tensor axis sends its own."""
    return _divided(expert.exchanges(plan), ("dispatch", "combine"), plan.tensors)


def _layers(plan: Plan) -> Iterator[Traffic]:
    """Sums of layers over the tensor axis. Those of a mixture have no sum of the MLP."""
    return _divided(tensor.layers(plan), ("layers",), 2 if plan.config.experts else 1)


def _divided(terms: Iterable[Traffic], names: tuple[str, ...], parts: int) -> Iterator[Traffic]:
    """Traffic in which terms with these names send 1 / `parts` of their bytes."""
    for term in terms:
        part = replace(term, operand_bytes=term.operand_bytes // parts, sent_bytes=Fraction(term.sent_bytes) / parts)
        yield part if term.what in names else term


def _ring(plan: Plan) -> dict[str, str]:
    return {**resolve_reduce(plan), "context_attention": "ring"}


def sizes_of(row: Published) -> dict[str, int]:
    """Sizes of the mesh axes. What shards parameters is called fsdp here, and what shards less is called data.

    Devices that a row counts along other axes, and that split experts, are taken from the tensor axis, which then
    splits each expert, and from data and fsdp.
    """
    sizes: dict[str, int] = {axis: getattr(row, axis) for axis in AXES}
    if (size := row.own_experts * math.prod(sizes.values())) != row.devices:
        raise Infeasible(f"{sizes} are {size} devices, and the row has {row.devices}")
    if row.optimizer_sharded != "zero3":
        sizes |= {"data": row.data * row.fsdp, "fsdp": 1}
    elif row.fsdp == 1:
        sizes |= {"data": 1, "fsdp": row.data}
    experts = row.expert or 1
    if row.experts and row.own_experts == 1:
        experts //= math.gcd(experts, row.tensor)
        of_data = math.gcd(experts, sizes["data"])
        of_fsdp = math.gcd(experts // of_data, sizes["fsdp"])
        sizes |= {"data": sizes["data"] // of_data, "fsdp": sizes["fsdp"] // of_fsdp}
        experts = of_data * of_fsdp
    sizes["expert"] = experts if row.experts else 1
    return {axis.name: sizes[axis.name] for axis in THREE_D.axes}
