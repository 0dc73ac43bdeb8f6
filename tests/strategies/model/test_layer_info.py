"""A layer is told the positions of its tokens: a part of the model may use them, and GPT-2 does not."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from strategies.context import contiguous
from strategies.model.attention import zigzag
from strategies.model.hooks import ONE_DEVICE, Hooks, LayerInfo
from tests.strategies.context_mesh import around
from tests.strategies.model.tiny_gpt import TINY, build, tokens


@pytest.mark.parametrize("own", [zigzag, contiguous], ids=lambda own: own.__name__)
def test_positions_are_those_of_the_tokens_of_a_device(own):
    """Of four devices each has the positions of its shard, in the order of its tokens: an array of them is its own."""
    info = LayerInfo(Hooks(own_context=own), "xla", None, sequence=16)
    positions = around(lambda: (info.positions_T, own(jnp.arange(16), 0)), 4, P("context"))()
    np.testing.assert_array_equal(*positions)
    assert sorted(np.asarray(positions[0])) == list(range(16))


def test_positions_of_one_device_are_all():
    """From 0 to the end of the sequence."""
    np.testing.assert_array_equal(LayerInfo(ONE_DEVICE, "xla", None, sequence=5).positions_T, range(5))


def test_gpt2_does_not_read_positions(monkeypatch):
    """So they are not in its program: the embedding has added them."""
    monkeypatch.setattr(LayerInfo, "positions_T", property(lambda info: pytest.fail("positions were computed")))
    model = build()
    model.run(model.embed(tokens(TINY)[:, :-1]))
