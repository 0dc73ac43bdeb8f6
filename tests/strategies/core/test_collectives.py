"""Gathers and reduce-scatters of CPUs that communicate by gloo; test_processes.py has real processes."""

import jax
import pytest

from strategies import MeshSpec, TrainConfig
from strategies.backends import backend
from strategies.core import shards
from strategies.costs.predict import predict
from tests.strategies.equality import BATCH, ROUNDING, assert_equal, single, train
from tests.strategies.formulas import by_axes, compiled, sent
from tests.strategies.meshes import HARDEST
from tests.strategies.models import SMALL
from tests.strategies.sampling import nightly


@pytest.fixture
def gloo(monkeypatch):
    """Steps are built as if their devices communicated by gloo."""
    for module in (shards, backend):
        monkeypatch.setattr(module, "reduce_scatters_wrongly", lambda: True)


@pytest.mark.usefixtures("gloo")
@pytest.mark.parametrize(
    ("name", "mesh"),
    [("tensor", "tensor=4"), ("hsdp", "data=2,fsdp=2"), *nightly(("fsdp", "fsdp=4"), ("zero2", "data=4"))],
)
def test_over_gloo_formulas_say_what_is_sent(name, mesh):
    """No program has a reduce-scatter there, and formulas equal it by kind and axes, to the byte."""
    found = sent(compiled(name, mesh)[0])
    here = backend.backend_of(jax.devices()[0])
    assert found == by_axes(predict(name, SMALL, mesh, TrainConfig(BATCH), here))
    assert {kind for kind, _ in found} >= {"all_to_all"}
    assert "reduce_scatter" not in {kind for kind, _ in found}


@pytest.mark.parametrize("platform", ["cuda", "cpu", None])
def test_formulas_do_not_ask_the_running_process(platform, request):
    """What is sent on devices that are told is the same by formula in every process, also in one that uses gloo."""
    told = "fsdp", SMALL, MeshSpec.parse("fsdp=4"), TrainConfig(BATCH), platform
    before = by_axes(predict(*told))
    request.getfixturevalue("gloo")
    assert by_axes(predict(*told)) == before
    assert ("reduce_scatter", ("fsdp",)) in before


@pytest.mark.usefixtures("gloo")
@pytest.mark.parametrize("name", ["fsdp", "tensor"])
def test_over_gloo_steps_equal_one_device(name):
    """Sums of exchanged parts are those of a reduce-scatter, also of gradients."""
    assert_equal(train(name, HARDEST[name]), single(), ROUNDING["float32"])
