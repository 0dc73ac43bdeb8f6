"""Steps that are drawn at random send and compute what formulas say, and none of them may deadlock."""

import jax
import pytest

from benchmarks.program.compiled import read_program
from strategies import STRATEGIES
from strategies.costs.predict import predict
from tests.strategies import quick
from tests.strategies.costs.drawn import drawn
from tests.strategies.costs.steps import by_axes, sent
from tests.strategies.sampling import nightly


@pytest.mark.parametrize("seed", [0, 5, *nightly(*range(100, 200))])
def test_drawn_step_is_what_formulas_say(seed):
    """Bytes sent by kind and axes, arguments and FLOPs are those of the compiled program, whatever fits together."""
    name, config, mesh, train = drawn(seed)
    step = STRATEGIES[name].build(config, mesh, train, jax.devices()[: mesh.size])
    compiled, predicted = quick.compiled(step.lower()), predict(name, config, mesh, train)
    text, memory = compiled.as_text(), compiled.memory_analysis()
    assert text
    assert memory
    program = read_program(text, step.mesh.shape)
    assert program.concurrent == ()
    assert sent(program) == by_axes(predicted)
    assert program.flops * mesh.size == sum(predicted.flops.values())
    assert memory.argument_size_in_bytes == sum(predicted.arguments.values())
