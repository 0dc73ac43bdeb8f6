"""Gathers and reduce-scatters of CPUs that communicate by gloo; test_processes.py has real processes."""

import pytest

from strategies.core import collectives, traffic
from tests.strategies.costs.steps import by_axes, compiled, cost, sent
from tests.strategies.equality import ROUNDING, assert_equal, single, train
from tests.strategies.sampling import nightly
from tests.strategies.test_equality import HARDEST


@pytest.fixture
def gloo(monkeypatch):
    """Steps are built as if their devices communicated by gloo."""
    for module in (collectives, traffic):
        monkeypatch.setattr(module, "reduce_scatters_wrongly", lambda: True)


@pytest.mark.usefixtures("gloo")
@pytest.mark.parametrize(
    ("name", "mesh"),
    [("tensor", "tensor=4"), ("hsdp", "data=2,fsdp=2"), *nightly(("fsdp", "fsdp=4"), ("zero2", "data=4"))],
)
def test_over_gloo_formulas_say_what_is_sent(name, mesh):
    """No program has a reduce-scatter there, and formulas equal it by kind and axes, to the byte."""
    found = sent(compiled(name, mesh)[0])
    assert found == by_axes(cost(name, mesh))
    assert {kind for kind, _ in found} >= {"all_to_all"}
    assert "reduce_scatter" not in {kind for kind, _ in found}


@pytest.mark.usefixtures("gloo")
@pytest.mark.parametrize("name", ["fsdp", "tensor"])
def test_over_gloo_steps_equal_one_device(name):
    """Sums of exchanged parts are those of a reduce-scatter, also of gradients."""
    assert_equal(train(name, HARDEST[name]), single(), ROUNDING["float32"])
