"""gpt-oss: what its parts compute, and every strategy trains it as one device does, with formulas to the byte."""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from strategies import PRESETS, STRATEGIES, MeshSpec
from strategies.costs.predict import predict
from strategies.device_mesh import first_devices
from strategies.model.attention import QKV, Reach, causal_attention
from strategies.model.clamped_experts import clamped
from strategies.model.gpt import active_param_count, param_count
from strategies.model.rotary import Yarn
from tests.strategies.costs.steps import assert_exact, assert_held, compiled_step
from tests.strategies.equality import CONFIG, ROUNDING, TRAIN, assert_equal, initial, trained
from tests.strategies.sampling import nightly

SMALL = dataclasses.replace(
    CONFIG,
    block="gpt_oss",
    key_heads=4,
    attention_window=3,
    full_attention_every=2,
    experts=4,
    expert_mlp=24,
    rope_theta=150_000.0,
    rope_factor=32.0,
    tied=False,
)


def ran(name, mesh, **options):
    """The results of three steps, and the step."""
    spec = MeshSpec.parse(mesh)
    step = STRATEGIES[name].build(SMALL, spec, dataclasses.replace(TRAIN, **options), first_devices(spec.size))
    return trained(step, initial(step), range(3))[0], step


@cache
def alone():
    """The results of one device."""
    return ran("single", "data=1")[0]


@pytest.mark.parametrize(
    ("name", "mesh", "options"),
    [
        ("three_d", "expert=2,tensor=2", {"sequence_parallel": False}),
        *nightly(
            ("fsdp", "fsdp=4", {}),
            ("tensor", "tensor=4", {}),
            ("tensor", "tensor=4", {"remat": "full"}),
            ("context", "context=2", {}),
            ("context", "context=4", {"context_attention": "ulysses"}),
            ("expert", "data=2,expert=2", {"dispatch": "all_to_all"}),
            ("expert", "expert=4", {"dispatch": "all_to_all", "remat": "full"}),
            ("expert", "data=2,expert=4", {"dispatch": "all_gather", "remat": "none"}),
            ("pipeline", "pipeline=2", {"microbatches": 4}),
            ("three_d", "fsdp=2,expert=2,tensor=2", {"remat": "full"}),
            ("auto", "fsdp=2,tensor=2", {}),
        ),
    ],
)
def test_every_strategy_trains_it_as_one_device(name, mesh, options):
    """Losses, gradients and weights are those of one device; bytes sent, FLOPs and arguments are those of formulas.

    Temporaries are at least what it must hold. No two collectives may be in flight together.
    """
    results, step = ran(name, mesh, **options)
    assert_equal(results, alone(), ROUNDING["float32"])
    program, memory = compiled_step(step)
    if name == "auto":  # nothing is predicted of what the compiler partitions
        assert program.concurrent == ()
    else:
        predicted = predict(name, SMALL, mesh, step.train)
        assert_exact(program, memory, predicted)
        assert_held(memory, predicted)


@pytest.mark.factorisations
@pytest.mark.parametrize("remat", ["none", "dots", "full"])
@pytest.mark.parametrize(("name", "mesh"), [("single", "data=1"), ("tensor", "tensor=4"), ("fsdp", "fsdp=4")])
def test_temporaries_where_tokens_are_dropped(name, mesh, remat):
    """With buffers instead of blocks temporaries are at least what it must hold as well."""
    config, spec = dataclasses.replace(SMALL, capacity_factor=1.0, expert_group=4), MeshSpec.parse(mesh)
    train = dataclasses.replace(TRAIN, remat=remat)
    _, memory = compiled_step(STRATEGIES[name].build(config, spec, train, first_devices(spec.size)))
    predicted = predict(name, config, mesh, train)
    assert_held(memory, predicted)


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
