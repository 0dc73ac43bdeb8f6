"""Layers are spread evenly over the stages of a pipeline."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.infeasible import Infeasible
from strategies.pipelining.orders import SCHEDULES, layer_slots
from strategies.pipelining.schedules import Schedule

ONE_OR_MORE_CHUNKS = st.one_of(
    st.builds(
        lambda stages, chunks: SCHEDULES["interleaved"](stages, stages, chunks), st.integers(1, 8), st.integers(1, 4)
    ),
    st.builds(lambda stages: SCHEDULES["zb-v"](stages, 2 * stages), st.integers(1, 8)),
)


@given(st.integers(1, 40), ONE_OR_MORE_CHUNKS)
def test_every_layer_has_one_slot(layers: int, schedule: Schedule) -> None:
    """Every layer has one slot, stages have equally many, and layers go round the stages chunk by chunk, or to and fro
    in a V.

    No part has two layers more than another, or more layers than one before it.
    """
    stages, chunks = schedule.stages, schedule.chunks
    if stages * chunks > layers:
        with pytest.raises(Infeasible, match=f"{layers} blocks are too few for {stages * chunks} parts"):
            layer_slots(layers, schedule)
        return
    row = layer_slots(layers, schedule)
    room = len(row) // (stages * chunks)
    assert room * stages * chunks == len(row)
    assert room == -(-layers // (stages * chunks))
    down = list(range(stages))
    around = [(s, c) for c in range(chunks) for s in (down[::-1] if schedule.v_shaped and c % 2 else down)]
    way = [row[(s * chunks + c) * room + i] for s, c in around for i in range(room)]
    assert [layer for layer in way if layer >= 0] == list(range(layers))
    sizes = [sum(layer >= 0 for layer in way[start : start + room]) for start in range(0, len(way), room)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1
