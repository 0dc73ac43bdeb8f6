"""Layers are spread evenly over the stages of a pipeline."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.infeasible import Infeasible
from strategies.pipelining.timetable import layer_slots


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 4))
def test_every_layer_has_one_slot(layers: int, stages: int, chunks: int) -> None:
    """Every layer has one slot, stages have equally many, and layers go round the stages chunk by chunk.

    No part has two layers more than another, or more layers than one before it.
    """
    if stages * chunks > layers:
        with pytest.raises(Infeasible, match=f"{layers} blocks are too few for {stages * chunks} parts"):
            layer_slots(layers, stages, chunks)
        return
    row = layer_slots(layers, stages, chunks)
    room = len(row) // (stages * chunks)
    assert room * stages * chunks == len(row)
    assert room == -(-layers // (stages * chunks))
    way = [row[(s * chunks + c) * room + i] for c in range(chunks) for s in range(stages) for i in range(room)]
    assert [layer for layer in way if layer >= 0] == list(range(layers))
    sizes = [sum(layer >= 0 for layer in way[start : start + room]) for start in range(0, len(way), room)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1
