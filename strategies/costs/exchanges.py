"""Communication of a training step in its order: the terms of the traffic model, and when each of them is sent."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from strategies.config import TrainConfig
from strategies.costs.predict import Cost
from strategies.costs.traffic import Bytes, Traffic
from strategies.mesh import MeshSpec
from strategies.pipelining.schedules import Schedule
from strategies.pipelining.timetable import Ticks
from strategies.sharding.layout import Axes, Layout, size_of

WHEN = (
    "before forward",
    "forward",
    "forward and backward",
    "backward",
    "after each microbatch",
    "after backward",
    "update",
)
"""The parts of a step, in order."""
ARRAYS: Mapping[str, str] = {
    "weights": "weights",
    "weights again": "weights",
    "gradients": "gradients",
    "gradients held alike": "gradients",
    "codes": "gradients",
    "scales": "gradients",
    "layers": "activations",
    "head": "activations",
    "embedding": "activations",
    "loss": "activations",
    "stages": "activations",
    "ends": "activations",
    "keys and values": "activations",
    "tokens and heads": "activations",
}
"""Kind of array by `Traffic.what`. Other names are from hooks of user-defined strategies, which send activations."""
NUMBER = "number"
"""Kind of array of a single number: the loss, or a part of the gradients' norm."""


@dataclass(frozen=True)
class Sent:
    """What one device sends in a step by one kind of collective, for one purpose.

    Attributes:
        what: what is sent, as in `Traffic`.
        array: kind of array: activations, weights, gradients or number.
        kind: kind of collective.
        along: mesh axes along which the devices of a group differ.
        when: part of the step, one of `WHEN`.
        split: axes that split the array before or after the collective, whichever are more.
        links: (sender, receiver) pairs of a permutation, as positions along the axes; otherwise empty.
        sent_bytes: bytes that the device sends in all these collectives of a step.
    """

    what: str
    array: str
    kind: str
    along: Axes
    when: str
    split: Axes
    links: tuple[tuple[int, int], ...]
    sent_bytes: int


def exchanges(
    cost: Cost, layout: Layout, mesh: MeshSpec, train: TrainConfig, schedule: Schedule | None
) -> Iterator[Sent]:
    """What a device sends, in the order of the step. Terms that differ only in the weight they send are summed."""
    total: dict[tuple[str, str, str, Axes, str], Bytes] = {}
    for each in cost.traffic:
        what = "gradients' norm" if each.what == "norm" else each.what
        key = what, array_of(each), each.kind, each.axes, when(each, layout, train)
        total[key] = total.get(key, 0) + each.sent_bytes
    for (what, array, kind, along, moment), sent_bytes in sorted(
        total.items(), key=lambda item: WHEN.index(item[0][4])
    ):
        links = links_of(along, mesh, schedule, layout) if kind == "permute" else ()
        yield Sent(what, array, kind, along, moment, split(array, layout, train), links, int(sent_bytes))


def array_of(each: Traffic) -> str:
    """The kind of array that a term of the traffic model sends."""
    if each.what == "norm" or (each.what == "loss" and each.operand_bytes <= 4):
        return NUMBER
    return ARRAYS.get(each.what, "activations")


def when(each: Traffic, layout: Layout, train: TrainConfig) -> str:
    """The part of the step in which a term of the traffic model is sent."""
    array = array_of(each)
    if array == "activations":
        return "forward" if each.what == "loss" else "forward and backward"
    if array == "weights":
        return when_gathered(each, layout, train)
    if each.what == "norm":
        return "update"
    if array == "gradients" and each.kind == "reduce_scatter":
        return when_scattered(layout, train)
    return "backward" if train.reduce == "layer" else "after backward"


def when_gathered(each: Traffic, layout: Layout, train: TrainConfig) -> str:
    """The part of the step in which weights are gathered."""
    if layout.updates:
        return "update"
    if train.gather == "step":
        return "before forward"
    return "backward" if each.what == "weights again" else "forward"


def when_scattered(layout: Layout, train: TrainConfig) -> str:
    """The part of the step in which gradients are reduce-scattered."""
    if (train.gather if layout.shards else train.reduce) == "layer":
        return "backward"
    return "after each microbatch" if layout.scatters_each else "after backward"


def split(array: str, layout: Layout, train: TrainConfig) -> Axes:
    """The axes that split an array where it is split most, before or after a collective; outermost first."""
    if array == "activations":
        tensors = layout.dims.get("head_features", ()) if train.sequence_parallel else ()
        return (*layout.batch, *layout.tokens, *tensors)
    return (*layout.dims.get("layers", ()), *features(layout), *layout.shards, *layout.updates)


def links_of(along: Axes, mesh: MeshSpec, schedule: Schedule | None, layout: Layout) -> tuple[tuple[int, int], ...]:
    """(sender, receiver) pairs of a permutation: between pipeline stages as scheduled, otherwise around a ring."""
    if schedule and along == layout.dims.get("layers"):
        edges = {edge for column in Ticks.of(schedule).edges for edges in column for edge in edges}
        return tuple(sorted(edges))
    size = size_of(along, mesh.sizes)
    return tuple((device, (device + 1) % size) for device in range(size))


def features(layout: Layout) -> Axes:
    """The axes that split the features of a layer."""
    axes = (axis for dim, names in layout.dims.items() if dim not in ("layers", "vocab") for axis in names)
    return tuple(dict.fromkeys(axes))
