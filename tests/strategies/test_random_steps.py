"""Steps that are drawn at random send and compute what formulas say, and none of them may deadlock."""

import pytest

from strategies import STRATEGIES
from strategies.costs.predict import predict
from tests.strategies.formulas import assert_exact, compiled_step
from tests.strategies.random_steps import drawn
from tests.strategies.sampling import nightly


@pytest.mark.parametrize("seed", [0, 5, *nightly(*range(100, 200))])
def test_drawn_step_is_what_formulas_say(seed):
    """Bytes sent by kind and axes, arguments and FLOPs are those of the compiled program, whatever fits together."""
    name, config, mesh, train = drawn(seed)
    program, memory = compiled_step(STRATEGIES[name].build(config, mesh, train))
    assert_exact(program, memory, predict(name, config, mesh, train))
