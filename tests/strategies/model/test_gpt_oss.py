"""gpt-oss: what its parts compute; cases.py has its steps."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from strategies import PRESETS
from strategies.model.attention import QKV, Reach, causal_attention
from strategies.model.clamped_experts import clamped
from strategies.model.gpt import param_count
from strategies.model.rotary import Yarn
from tests.strategies.formulas import assert_memory, compiled, cost
from tests.strategies.models import GPT_OSS, active_param_count


@pytest.mark.factorisations
@pytest.mark.parametrize("remat", ["none", "dots", "full"])
@pytest.mark.parametrize(("name", "mesh"), [("single", "data=1"), ("tensor", "tensor=4"), ("fsdp", "fsdp=4")])
def test_temporaries_where_tokens_are_dropped(name, mesh, remat):
    """With buffers instead of blocks temporaries are at least what a step must hold as well."""
    config = dataclasses.replace(GPT_OSS, capacity_factor=1.0, expert_group=4)
    assert_memory(compiled(name, mesh, config, remat=remat)[1], cost(name, mesh, config, remat=remat))


@pytest.mark.parametrize("reach", [None, Reach(4)])
def test_a_sink_is_one_more_key_without_a_value(reach):
    """Attention and its gradients, that of the sink too, are those of a softmax with one more score."""
    q, k, v, weight = (jax.random.normal(jax.random.key(i), (2, 16, 3, 4)) for i in range(4))
    sink_H = jnp.array([-1.0, 0.5, 3.0])

    def kernel(q, k, v, sink_H):
        qkv = dataclasses.replace(QKV.of(q, k, v), sink_H=sink_H)
        return (causal_attention(qkv, "xla", reach).reshape(q.shape) * weight).sum()

    def plain(q, k, v, sink_H):
        query, key = jnp.arange(16)[:, None], jnp.arange(16)
        mask = (query >= key) & (True if reach is None else query - key < reach.window)
        scores = jnp.where(mask, jnp.einsum("bthk,bshk->bhts", q, k) / 2, -jnp.inf)
        scores = jnp.concatenate([scores, jnp.broadcast_to(sink_H[:, None, None], (2, 3, 16, 1))], -1)
        return (jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores)[..., :-1], v) * weight).sum()

    of_all = (jax.jit(jax.value_and_grad(each, argnums=(0, 1, 2, 3))) for each in (kernel, plain))
    ours, theirs = (each(q, k, v, sink_H) for each in of_all)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), ours, theirs)


def test_the_clamped_activation_has_the_gradient_of_its_formula():
    """Beyond the clamps it is zero."""
    gate, up = jnp.array([-9.0, -1.0, 0.5, 8.0]), jnp.array([0.3, -8.0, 2.0, 9.0])

    def plain(gate, up):
        gate, up = jnp.clip(gate, None, 7), jnp.clip(up, -7, 7)
        return ((up + 1) * gate / (1 + jnp.exp(-1.702 * gate))).sum()

    ours = jax.grad(lambda *both: clamped(*both).sum(), (0, 1))(gate, up)
    np.testing.assert_allclose(ours, jax.grad(plain, (0, 1))(gate, up), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(clamped(gate, up).sum(), plain(gate, up), rtol=1e-6)


def test_angles_of_yarn_are_those_of_transformers():
    """Golden numbers of `ROPE_INIT_FUNCTIONS["yarn"]` for `GptOssConfig` (transformers 5.24): pairs and the scale."""
    yarn = Yarn(64, 150_000.0, 32.0)
    golden = [1.0, 0.031705696, 0.0067949593, 0.0010526022, 1.8188337e-05, 3.0235114e-07]
    np.testing.assert_allclose(yarn.angle_K[jnp.array([0, 9, 12, 15, 20, 31])], golden, rtol=1e-6)
    assert yarn.scale == pytest.approx(1.3465735902799727, rel=1e-12)


def test_counts_of_the_preset_are_the_published_ones():
    """20.91B parameters, and 3.61B that a token uses, without the input embedding (the model card, table 1)."""
    config = PRESETS["gpt-oss-20b"]
    assert param_count(config) == 20_914_757_184
    assert active_param_count(config) - config.vocab * config.embed == 3_608_307_264
