"""Steps with splash attention: equal to one device, and with the FLOPs that the formulas state.

costs/test_kept.py has their residuals.
"""

import dataclasses
from functools import partial

import pytest
from jax.experimental.pallas.ops.tpu import splash_attention as kernels

from benchmarks.devices.topology import Topology
from strategies import STRATEGIES, MeshSpec, TrainConfig
from strategies.core import plan
from strategies.costs.predict import predict
from tests.strategies.equality import ROUNDING, assert_equal, train
from tests.strategies.jaxprs import gradients_of
from tests.strategies.models import SQUARE as CONFIG

PIPELINE = {"microbatches": 2}
SPLASH = {"attention": "splash"}


@pytest.fixture
def chosen(monkeypatch):
    """Splash attention on CPUs, unless XLA's is asked for: traced, but not lowered."""
    monkeypatch.setattr(
        plan, "kernel_for", lambda backend, config, train, **_: "xla" if train.attention == "xla" else "splash"
    )


@pytest.fixture
def interpreted(chosen, monkeypatch):
    """Splash attention interpreted on CPUs."""
    interpreted = partial(kernels.make_splash_mha_single_device, interpret=True)
    monkeypatch.setattr(kernels, "make_splash_mha_single_device", interpreted)


@pytest.fixture(scope="module")
def reference():
    """Two steps of one device with XLA's attention."""
    return train("single", "data=1", CONFIG, 2, batch_size=4)


@pytest.mark.factorisations
@pytest.mark.parametrize(
    ("name", "mesh", "options"),
    [
        ("context", "context=2", {"context_attention": "ulysses", "remat": "none"}),
        ("tensor", "tensor=2", {"remat": "full"}),
        ("fsdp", "fsdp=2", {}),
        ("three_d", "data=2,pipeline=2", PIPELINE | {"schedule": "zb-h1", "remat": "full"}),
    ],
    ids=str,
)
def test_a_step_equals_one_device(name, mesh, options, interpreted, reference):
    """Steps with interpreted splash attention compute what XLA's attention computes on one device."""
    assert_equal(train(name, mesh, CONFIG, 2, batch_size=4, **options), reference, ROUNDING["float32"])


def built(name, mesh, **train):
    """A step, and its cost by formula."""
    spec, options = MeshSpec.parse(mesh), TrainConfig(4, dtype="bfloat16", **train)
    step = STRATEGIES[name].build(CONFIG, spec, options)
    return step, predict(name, CONFIG, spec, dataclasses.replace(options, **SPLASH))


@pytest.mark.parametrize(("remat", "forwards"), [("none", 1), ("dots", 1), ("full", 2)])
def test_the_backward_pass_runs_no_second_forward_kernel(remat, forwards, chosen):
    """Unless nothing is kept. The formula counts two matmuls for each forward kernel, and seven for the backward."""
    step, cost = built("fsdp", "fsdp=2", remat=remat)
    text = str(gradients_of(step))
    assert text.count("name=splash_mha_fwd_residuals") == forwards
    without = predict("fsdp", CONFIG, "fsdp=2", TrainConfig(4, remat=remat, attention="xla"))
    # All scores of 128 tokens are in one block; XLA's attention skips a quarter of them.
    whole = 4 * 128 * 2 * 2 * 32 * 128
    xla = (8 if remat == "full" else 7) * whole * 3 // 4
    assert sum(cost.flops.values()) - sum(without.flops.values()) == (2 * forwards + 7) * whole - xla


@pytest.mark.libtpu
def test_it_is_compiled_for_tpus():
    """A step for TPUs has the three kernels, each once a layer, and no array of scores."""
    mesh, config = MeshSpec.parse("fsdp=4"), dataclasses.replace(CONFIG, sequence=256)
    train = TrainConfig(4, dtype="bfloat16")
    step = STRATEGIES["fsdp"].build(config, mesh, train, Topology.parse("v5e:2x2").devices())
    text = step.lower().compile().as_text()
    assert text
    for kernel in ("fwd_residuals", "dkv_no_residuals", "dq_no_residuals"):
        calls = [line for line in text.splitlines() if f"%splash_mha_{kernel}" in line and "custom-call(" in line]
        assert len(calls) == 1
    assert "[1,4,256,256]" not in text
