"""Layers are partitioned into stages so that the slowest stage is as fast as possible."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.infeasible import Infeasible
from strategies.pipelining.stages import layer_slots, partition

COSTS = st.lists(st.integers(1, 20), min_size=1, max_size=7)


def slowest(costs: list[int], sizes: tuple[int, ...], first: int, last: int) -> int:
    """The cost of the slowest part."""
    ends = [0, *(sum(sizes[: i + 1]) for i in range(len(sizes)))]
    parts = [sum(costs[start:end]) for start, end in pairwise(ends)]
    parts[0] += first
    parts[-1] += last
    return max(parts)


@given(COSTS, st.integers(1, 7), st.integers(0, 30), st.integers(0, 30))
def test_no_cut_is_better(costs: list[int], parts: int, first: int, last: int) -> None:
    """No partition into nonempty parts has a faster slowest part, by brute force."""
    parts = min(parts, len(costs))
    cuts = ([0, *inner, len(costs)] for inner in combinations(range(1, len(costs)), parts - 1))
    best = min(slowest(costs, tuple(b - a for a, b in pairwise(ends)), first, last) for ends in cuts)
    sizes = partition(costs, parts, first, last)
    assert (len(sizes), sum(sizes), min(sizes) > 0) == (parts, len(costs), True)
    assert slowest(costs, sizes, first, last) == best


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 4))
def test_every_layer_has_one_slot(layers: int, stages: int, chunks: int) -> None:
    """Every layer has one slot, stages have equally many, and layers go round the stages chunk by chunk."""
    if stages * chunks > layers:
        with pytest.raises(Infeasible, match=f"{layers} layers are too few for {stages * chunks} parts"):
            layer_slots(layers, stages, chunks)
        return
    row = layer_slots(layers, stages, chunks)
    room = len(row) // (stages * chunks)
    assert room * stages * chunks == len(row)
    assert room == -(-layers // (stages * chunks))
    way = [row[(s * chunks + c) * room + i] for c in range(chunks) for s in range(stages) for i in range(room)]
    assert [layer for layer in way if layer >= 0] == list(range(layers))
