"""A ring with fused kernels: equal to one device, with the residuals, kernels and FLOPs that the formulas state."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax.experimental.pallas.ops.tpu import splash_attention as kernels

from benchmarks.devices.topology import Topology
from benchmarks.program.compiled import read_program
from strategies import STRATEGIES, GPTConfig, Infeasible, MeshSpec, TrainConfig
from strategies.backends.backend import NVIDIA_GPU
from strategies.backends.device_mesh import first_devices
from strategies.config import Attention, Remat
from strategies.core import plan
from strategies.costs.predict import Cost, predict
from strategies.model.attention import QKV, causal, cudnn, kernel_for, ring_attention, zigzag
from strategies.model.attention.dense import attend
from strategies.step import Step
from tests.strategies.context_mesh import around
from tests.strategies.jaxprs import assert_kept, gradients_of
from tests.strategies.model.attention.kernels_by_hand import plain_attended, plain_gradients

CHUNK, HEADS, HEAD_DIM = 128, 2, 8
CONFIG = GPTConfig(layers=2, embed=32, heads=4, vocab=256, sequence=8 * CHUNK)


@pytest.mark.parametrize(("kind", "devices"), [("cudnn", 2), ("cudnn", 4), ("splash", 2)])
def test_it_attends_as_one_device(kind, devices, monkeypatch):
    """Values and gradients are those of one device.

    Splash attention is interpreted. For cuDNN, which CPUs do not have, its kernels are written in plain JAX.
    """
    interpreted = partial(kernels.make_splash_mha_single_device, interpret=True)
    monkeypatch.setattr(kernels, "make_splash_mha_single_device", interpreted)
    monkeypatch.setattr(cudnn, "attended", plain_attended)
    monkeypatch.setattr(cudnn, "gradients", plain_gradients)
    tokens = 2 * devices * CHUNK
    qkv_BTCA = jax.random.normal(jax.random.key(0), (1, tokens, 3, HEADS * HEAD_DIM))
    weight_BTA = jax.random.normal(jax.random.key(1), (1, tokens, HEADS * HEAD_DIM))

    def here(qkv_BTCA, weight_BTA):
        return (ring_attention(QKV(zigzag(qkv_BTCA, 1), HEAD_DIM), kind) * zigzag(weight_BTA, 1)).sum()

    def whole(qkv_BTCA, weight_BTA):
        return (attend(QKV(qkv_BTCA, HEAD_DIM)) * weight_BTA).sum()

    def mine(*inputs):
        return lax.psum(jax.value_and_grad(here)(*inputs), "context")

    with jax.default_matmul_precision("highest"):
        value, grads = jax.jit(around(mine, devices))(qkv_BTCA, weight_BTA)
        expected, expected_grads = jax.jit(jax.value_and_grad(whole))(qkv_BTCA, weight_BTA)
    rounding = 12 * math.sqrt(tokens) * 2**-24  # see equality.py
    assert abs(value - expected) < rounding * math.sqrt(weight_BTA.size)
    assert np.linalg.norm(grads - expected_grads) < rounding * np.linalg.norm(expected_grads)


def called(jaxpr: Any) -> Iterator[str]:
    """The name of each kernel that a program calls, once for each call."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            yield equation.params["name"]
        elif "dot_product_attention" in equation.primitive.name:
            yield equation.primitive.name
        else:
            for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
                inner = getattr(inner, "jaxpr", inner)
                yield from called(inner) if hasattr(inner, "eqns") else ()


@pytest.fixture
def traced(monkeypatch):
    """A function that builds a step with a ring of a kind of kernel, to be traced, and its cost by formula."""
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91_000)

    def build(kind: Attention, remat: Remat) -> tuple[Step, Cost]:
        monkeypatch.setattr(plan, "kernel_for", lambda *_, **__: kind)
        spec, train = MeshSpec.parse("context=4"), TrainConfig(4, dtype="bfloat16", remat=remat)
        step = STRATEGIES["context"].build(CONFIG, spec, train, first_devices(4))
        return step, predict("context", CONFIG, spec, dataclasses.replace(train, attention=kind))

    return build


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
@pytest.mark.parametrize(
    ("kind", "forward_kernel", "backward_kernels"),
    [
        ("cudnn", "dot_product_attention_fwd_wrapper", ["dot_product_attention_bwd_wrapper"]),
        ("splash", "splash_mha_fwd_residuals", ["splash_mha_dq_no_residuals", "splash_mha_dkv_no_residuals"]),
    ],
)
def test_layers_keep_what_the_formula_says(kind, forward_kernel, backward_kernels, remat, traced):
    """To the byte (jaxprs.py). The backward pass runs no second forward kernel, unless nothing is kept.

    There are seven calls of a kernel: three of a device's own keys, and two in the loop and two after it.
    """
    step, cost = traced(kind, remat)
    jaxpr = gradients_of(step)
    assert_kept(jaxpr, cost.plan)
    calls = Counter(called(jaxpr))
    assert calls.pop(forward_kernel) == 7 * (2 if remat == "full" else 1)
    assert calls == dict.fromkeys(backward_kernels, 7)


@pytest.mark.parametrize(("remat", "matmuls"), [("dots", 2 + 5), ("full", 4 + 5)])
def test_formulas_count_the_kernels(remat: Remat, matmuls: int) -> None:
    """Of the 16 pairs of a device's chunks seven in full, and of the two with a causal mask what a kernel computes.

    cuDNN counts three quarters of these, as on one device. Here a block of splash attention is a whole chunk. Its
    backward pass has two more matmuls of scores. XLA's attention computes all, and recomputes one matmul of six pairs.
    """
    square = 2 * 8 * CONFIG.layers * CONFIG.embed * CONFIG.sequence**2  # a matmul of all scores of the batch

    def flops(kind: Attention) -> int:
        train = TrainConfig(8, dtype="bfloat16", remat=remat, attention=kind)
        return predict("context", CONFIG, "context=4", train).hardware_flops

    xla = (2 + 5) * 9 + (9 + 6 if remat == "full" else 0)
    assert flops("splash") - flops("xla") == square * ((matmuls + 2) * 9 - xla) / 16
    assert flops("cudnn") - flops("xla") == square * (matmuls * (7 + 2 * 3 / 4) - xla) / 16


@pytest.mark.libtpu
@pytest.mark.factorisations  # every day test_splash.py compiles a step for TPUs
@pytest.mark.parametrize("kind", ["splash", "xla"])
def test_it_is_compiled_for_tpus(kind: Attention) -> None:
    """A step for TPUs has the FLOPs of the formulas, and with splash attention no array of scores."""
    mesh, config = MeshSpec.parse("context=4"), dataclasses.replace(CONFIG, sequence=8 * 256)
    train = TrainConfig(4, dtype="bfloat16", attention=kind)
    step = STRATEGIES["context"].build(config, mesh, train, Topology.parse("v5e:2x2").devices())
    text = step.gradients.lower(step.state, step.batch).compile().as_text() or ""
    program, cost = read_program(text, step.mesh.shape), predict("context", config, mesh, train, platform="tpu")
    assert program.flops * 4 == sum(cost.flops.values())
    assert ("[4,4,256,256]" in text) == (kind == "xla")


def test_another_version_of_jax_may_have_no_such_kernel(monkeypatch):
    """This version has it. Without it a ring has XLA's attention, and cuDNN's is refused."""
    train = TrainConfig(1, dtype="bfloat16")
    assert cudnn.available()
    monkeypatch.setattr(causal, "available", lambda: False)
    assert kernel_for(NVIDIA_GPU, CONFIG, train) == "cudnn"
    assert kernel_for(NVIDIA_GPU, CONFIG, train, ring=4) == "xla"
    with pytest.raises(Infeasible, match="attention=cudnn has no ring with this version of JAX; use auto or xla"):
        kernel_for(NVIDIA_GPU, CONFIG, dataclasses.replace(train, attention="cudnn"), ring=4)


@pytest.mark.parametrize("lost", ["_dot_product_attention_bwd_rule", "dot_product_attention", "AttentionLayout"])
def test_changed_functions_of_jax_are_not_called(lost, monkeypatch):
    """If JAX has no function of that name, or it takes other arguments, the kernel is not available."""
    module = "jax._src.cudnn.fused_attention_stablehlo"
    cudnn.available.cache_clear()
    monkeypatch.setattr(f"{module}.{lost}", lambda another, residuals, grads: None)
    assert not cudnn.available()
    monkeypatch.delattr(f"{module}.{lost}")
    cudnn.available.cache_clear()
    assert not cudnn.available()
    cudnn.available.cache_clear()
