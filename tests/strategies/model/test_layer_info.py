"""A layer is told the positions of its tokens: a part of the model may use them, and GPT-2 does not."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

from strategies import MeshSpec
from strategies.context import contiguous
from strategies.model import gpt
from strategies.model.attention import QKV, zigzag
from strategies.model.hooks import ONE_DEVICE, Hooks
from strategies.model.layer_info import LayerInfo
from strategies.model.matmul import matmul
from strategies.model.part import add_bias, add_branch
from strategies.model.remat import KEPT
from strategies.model.self_attention import Attention
from tests.strategies.equality import ROUNDING, assert_equal, train
from tests.strategies.model.test_gpt import TINY, build, tokens
from tests.strategies.sampling import nightly
from tests.strategies.test_context import around


def rotated(x_BTHK, position_T):
    """Rotate pairs of features by angles that grow with the position (Su et al. 2021, "RoFormer", section 3.2.2)."""
    first, second = jnp.split(x_BTHK, 2, axis=-1)
    angle_TK = position_T[:, None] / 100 ** jnp.linspace(0, 1, first.shape[-1], endpoint=False)
    cos_T1K, sin_T1K = (function(angle_TK)[:, None].astype(x_BTHK.dtype) for function in (jnp.cos, jnp.sin))
    return jnp.concatenate([first * cos_T1K - second * sin_T1K, first * sin_T1K + second * cos_T1K], -1)


class RotaryAttention(Attention):
    """Attention that rotates queries and keys by the positions of their tokens."""

    def __call__(self, x_BTD, normed_BTD, info):
        """Add the attention of `normed` to the residual stream x."""
        hooks = info.hooks
        qkv_BTCE = add_bias(hooks.project(normed_BTD, self.qkv_DCA[...]), self.qkv_bias_CA)
        q, k, v = QKV(hooks.projected(checkpoint_name(qkv_BTCE, KEPT)), self.head_dim).apart
        qkv = QKV.of(rotated(q, info.positions_T), rotated(k, info.positions_T), v)
        mixed_BTA = hooks.attend(qkv, info.kernel, info.reach)
        return add_branch(x_BTD, hooks.sum(matmul(mixed_BTA, self.out_AD[...])), self.out_bias_D)


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


@pytest.mark.parametrize(
    ("name", "mesh", "options"),
    [
        ("context", "context=4", {}),
        ("three_d", "context=2,tensor=2", {"context_attention": "ulysses"}),
        *nightly(
            ("context", "context=4", {"attention_window": 5}),
            ("three_d", "fsdp=2,pipeline=2,context=2", {"remat": "full"}),
            ("tensor", "tensor=4", {}),
            ("auto", "fsdp=2,tensor=2", {}),
        ),
    ],
)
def test_rotated_queries_and_keys_equal_one_device(name, mesh, options, monkeypatch):
    """A part of the model that rotates by position is another class, and is spread as GPT-2's attention is.

    Here heads also have another size than embed / heads.
    """
    monkeypatch.setattr(gpt, "Attention", RotaryAttention)
    of_model = {"head_size": 6} | {key: options[key] for key in options if key == "attention_window"}
    reference = train("single", MeshSpec.parse("data=1"), steps=1, **of_model)
    mine = train(name, MeshSpec.parse(mesh), steps=1, **options | of_model)
    assert_equal(mine, reference, ROUNDING["float32"])
    monkeypatch.undo()
    assert train("single", MeshSpec.parse("data=1"), steps=1, **of_model)[0] != reference[0]
