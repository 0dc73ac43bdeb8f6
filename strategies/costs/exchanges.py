"""Communication of a training step in order: the terms of the traffic model, and when each is sent."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from strategies.config import TrainConfig
from strategies.core.placement import Axes, Placement
from strategies.core.plan import Plan
from strategies.core.traffic import WHEN, Bytes
from strategies.costs.predict import Cost


@dataclass(frozen=True)
class Sent:
    """What one device sends in a step by one kind of collective, for one purpose.

    Attributes:
        along: mesh axes along which the devices of a group differ.
        split: axes that split the array before or after the collective, whichever are more.
        links: (sender, receiver) pairs of a permute, as positions along the axes; otherwise empty.
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


def exchanges(cost: Cost) -> Iterator[Sent]:
    """What a device sends, in step order. Terms that differ only in their weight are summed."""
    plan, total = cost.plan, dict[tuple[str, str, str, Axes, str], Bytes]()
    for each in cost.traffic:
        what = "gradients' norm" if each.what == "norm" else each.what
        key = what, each.array, each.kind, each.axes, each.when
        total[key] = total.get(key, 0) + each.sent_bytes
    for (what, array, kind, along, moment), sent_bytes in sorted(
        total.items(), key=lambda item: WHEN.index(item[0][4])
    ):
        links = links_of(along, plan) if kind == "permute" else ()
        yield Sent(what, array, kind, along, moment, split(array, plan.placement, plan.train), links, int(sent_bytes))


def split(array: str, placement: Placement, train: TrainConfig) -> Axes:
    """The axes that split an array before or after a collective, whichever are more; outermost first."""
    if array == "activations":
        tensors = placement.dims.get("head_features", ()) if train.sequence_parallel else ()
        return (*placement.batch, *placement.tokens, *tensors)
    return united(placement.dims.get("layers", ()), features(placement), placement.shards, placement.updates)


def links_of(along: Axes, plan: Plan) -> tuple[tuple[int, int], ...]:
    """(sender, receiver) pairs of a permute: between pipeline stages as scheduled, otherwise around a ring."""
    if plan.staged and along == plan.axes_of("layers"):
        edges = {edge for column in plan.ticks.edges for edges in column for edge in edges}
        return tuple(sorted(edges))
    size = plan.size(*along)
    return tuple((device, (device + 1) % size) for device in range(size))


def features(placement: Placement) -> Axes:
    """The axes that split the features of a layer."""
    return united(*(names for dim, names in placement.dims.items() if dim not in ("layers", "vocab")))


def united(*axes: Axes) -> Axes:
    """The union of the axes."""
    return tuple(dict.fromkeys(chain(*axes)))
