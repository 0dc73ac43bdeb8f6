"""Constants are recovered from steps that they made, and cross-validation never sees what it judges."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.cli.accuracy import errors_of
from benchmarks.simulate.fit import fit, left_out, predicted_seconds
from benchmarks.simulate.machine import RANGES
from benchmarks.simulate.machines import machine
from benchmarks.simulate.published import run_of

ROW = {
    **{"stack": "Megatron-LM", "device": "A100", "devices": 16, "devices_per_host": 8, "layers": 8, "embed": 2048},
    **{"heads": 16, "mlp": 8192, "vocab": 51200, "sequence": 1024, "batch_size": 64, "microbatches": 4, "data": 2},
    **{"fsdp": 1, "tensor": 8, "pipeline": 1, "schedule": "1f1b", "recompute": "full", "sequence_parallel": False},
    **{"optimizer_sharded": "none", "dtype": "float16", "step_seconds": 1.0},
}
SPREADS = [(16, 1, 1), (8, 2, 1), (4, 4, 1), (2, 8, 1), (1, 16, 1), (4, 2, 2), (2, 2, 4), (1, 8, 2)]


@pytest.fixture(scope="module")
def runs():
    """Runs of two models, spread in several ways."""
    rows = [
        {**ROW, **dict(zip(("data", "tensor", "pipeline"), spread, strict=True)), **sizes}
        for spread in SPREADS
        for sizes in ({"embed": 1024, "mlp": 4096, "layers": 8}, {"embed": 4096, "mlp": 16384, "layers": 16})
    ]
    return [run_of(row) for row in rows]


@pytest.fixture(scope="module")
def planted():
    """Constants inside of their ranges, unlike those where a fit starts."""
    start = machine("a100_megatron")
    values = {name: each.low + 0.3 * (each.high - each.low) for name, each in RANGES.items()}
    return replace(start, constants=replace(start.constants, **values))


def on(machine_):
    """A machine for all kinds of devices."""
    return lambda kind: machine_


def measured_on(machine_, runs):
    """The runs with the seconds that a machine predicts."""
    seconds = predicted_seconds(runs, on(machine_), machine_.constants)
    return [replace(run, step_seconds=float(each)) for run, each in zip(runs, seconds, strict=True)]


def test_a_fit_recovers_what_made_the_steps(runs, planted):
    """Fitted to steps of known constants, predictions are those steps; what does not matter keeps its value."""
    made = measured_on(planted, runs)
    found = fit(made, on(replace(planted, constants=machine("a100_megatron").constants)))
    error = predicted_seconds(made, on(planted), found.constants) / [run.step_seconds for run in made] - 1
    assert np.abs(error).max() < 0.01
    assert "attention_efficiency" not in found.fitted  # Megatron-LM's attention is not fused
    assert found.constants.attention_efficiency == machine("a100_megatron").constants.attention_efficiency


def test_a_constant_at_the_end_of_its_range_is_reported(runs, planted):
    """Steps that are faster than any plausible constant allows push it to its end, and the fit says so."""
    fast = [replace(run, step_seconds=(run.step_seconds or 0) / 5) for run in measured_on(planted, runs)]
    assert "matmul_efficiency" in fit(fast, on(planted), ["matmul_efficiency"]).at_edges


def test_what_is_judged_is_not_fitted(runs, planted):
    """A model whose steps were planted twice as slow is judged by the other model's constants: about half too fast."""
    made = measured_on(planted, runs)
    models = [str(run.cost.plan.config.embed) for run in made]
    slow = [
        replace(run, source=name, step_seconds=(2 if name == "1024" else 1) * (run.step_seconds or 0))
        for run, name in zip(made, models, strict=True)
    ]
    only = ["matmul_efficiency", "memory_efficiency"]
    without = left_out(slow, on(planted), only)
    judged = np.array([name == "1024" for name in models])
    ratios = {
        name: predicted_seconds(slow, on(planted), constants) / [run.step_seconds for run in slow]
        for name, constants in without.items()
    }
    assert ratios["1024"][judged] == pytest.approx(0.5, rel=0.01)
    assert np.all(ratios["4096"][~judged] > 1.1)  # the slow model pulled these constants down
    assert left_out(made, on(planted)) == {}


def test_errors_of_predictions():
    """Absolute errors are averaged, signed ones are the bias; regret is what the predicted best loses."""
    told = errors_of([1.2, 1.0, 3.0], [1.0, 1.25, 3.0])
    assert (told.mean, told.bias, told.median) == pytest.approx(((0.2 + 0.2 + 0) / 3, 0.0, 0.2))
    assert told.regret == pytest.approx(0.25)
    assert errors_of([1.0], [2.0]).rank_correlation is None
