"""Which stage gets which layers: the cut of a row of costs into parts whose largest is as small as can be."""

from collections.abc import Sequence
from functools import cache
from itertools import accumulate

from strategies.config import Infeasible


def partition(costs: Sequence[float], parts: int, first: float = 0.0, last: float = 0.0) -> tuple[int, ...]:
    """How many of the costs go to each part, in order, none empty; exact, by dynamic programming.

    Args:
        costs: of the layers, measured or modelled: seconds, FLOPs or bytes.
        parts: stages, or stages times chunks.
        first, last: what the first and the last part have besides, as an embedding and a head that are not shared.

    Raises:
        Infeasible: fewer costs than parts.

    >>> partition([1, 1, 1, 1, 1, 1, 1, 1], 3)
    (3, 3, 2)
    >>> partition([1, 1, 1, 1, 1, 1, 1, 1], 2, last=4)
    (6, 2)
    """
    count = len(costs)
    if parts > count:
        raise Infeasible(f"{count} layers are too few for {parts} parts of a pipeline; take at most {count}")
    sums = list(accumulate(costs, initial=0.0))
    # best[end]: the least largest part of the costs before `end`, and where the last of these parts starts.
    best = {end: (first + sums[end], 0) for end in range(1, count + 1)}
    starts = [best]
    for part in range(1, parts):
        extra = last if part == parts - 1 else 0.0
        best = {
            end: min(
                ((max(best[start][0], sums[end] - sums[start] + extra), start) for start in range(part, end)),
                key=lambda cut: (cut[0], -cut[1]),
            )
            for end in range(part + 1, count + 1)
        }
        starts.append(best)
    sizes, end = [], count
    for cuts in reversed(starts):
        start = cuts[end][1]
        sizes.append(end - start)
        end = start
    return tuple(reversed(sizes))


@cache
def places(layers: int, stages: int, chunks: int) -> tuple[int, ...]:
    """Which layer is in each place of the stacked blocks, stage after stage and on each chunk after chunk; -1 for none.

    A model's parts go round the stages, once for each chunk. All have as many places as the largest has layers.

    >>> places(4, 2, 2)
    (0, 2, 1, 3)
    >>> places(3, 2, 1)
    (0, 1, 2, -1)
    """
    sizes = partition([1.0] * layers, stages * chunks)
    starts = list(accumulate(sizes, initial=0))
    room = max(sizes)
    parts = [[*range(starts[i], starts[i + 1]), *[-1] * (room - size)] for i, size in enumerate(sizes)]
    return tuple(layer for stage in range(stages) for part in parts[stage::stages] for layer in part)
