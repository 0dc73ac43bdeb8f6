"""Fits recover the constants that made their timings."""

from dataclasses import replace

import pytest

from benchmarks import calibrate
from benchmarks.calibration.fits import CALIBRATED, START, Timing, attention, fitted, links, matmuls, predicted, waits
from benchmarks.calibration.measured import ALONE, FITTED, SHARED, Measured, Setting, machine_of, with_passes
from benchmarks.devices.topology import CPU, Topology
from benchmarks.seconds.published import Run
from benchmarks.seconds.stack import VIRTUAL
from strategies import GPTConfig, TrainConfig
from strategies.costs.predict import predict

FLOPS, DIM, BANDWIDTH, LATENCY, FRESH, MATRIX, WAIT, AFTER_WORK = 2e11, 20.0, 1e10, 3e-6, 2e9, 1e-7, 4e-5, 5e-4
HERE = Setting(8, True, VIRTUAL, "float32")


def timings(*, shared):
    """Seconds of probes on a machine of planted constants."""
    scale = lambda devices: devices if shared else 1  # noqa: E731
    for work, inverse_dim in ((1e9, 1 / 64), (4e9, 1 / 512), (1e8, 1 / 128)):
        yield Timing("matmul", 8, work, 0, inverse_dim, 0, 0, scale(8) * work / FLOPS * (1 + DIM * inverse_dim))
    for devices in (2, 4, 8):
        for kind, work in (("all_reduce", 1e3), ("all_reduce", 1e6), ("permute", 1e5)):
            hops = 1 if kind == "permute" and not shared else devices - 1
            seconds = scale(devices) * (hops * LATENCY + work / BANDWIDTH) + shared * WAIT
            yield Timing(kind, devices, work, 1, 0, 0, 0, seconds)
    for flops, scores, matrices in ((1e8, 1e6, 1e3), (1e8, 1e7, 1e2), (1e9, 1e6, 1e3), (1e7, 1e5, 1e4)):
        seconds = flops / 5e10 + scores * 1e-9 + matrices * MATRIX
        yield Timing("attention", 8, flops, 0, 0, scores, matrices, scale(8) * seconds)
    for work in (1e7, 4e7, 1e8):
        yield Timing("turn", 8, work, 0, 0, 0, 0, 8 * work / FLOPS + 8 * 7 * LATENCY + AFTER_WORK)
    yield Timing("stream", 8, 1e6, 0, 0, 0, 0, scale(8) * 1e6 / 3e10)
    yield Timing("dispatch", 8, 0, 0, 0, 0, 0, 1e-4)
    yield Timing("allocation", 1, 1e6, 0, 0, 0, 0, 1e6 / FRESH)


@pytest.mark.parametrize("shared", [True, False])
def test_rates_are_recovered(shared):
    """Matmuls give their rate and how it depends on the contracted dim; collectives give bandwidth and latency."""
    made = [*timings(shared=shared)]
    assert matmuls([each for each in made if each.kind == "matmul"], shared=shared) == pytest.approx((FLOPS, DIM))
    assert attention([each for each in made if each.scores], shared=shared) == pytest.approx((5e10, 1e-9, MATRIX))
    assert links([each for each in made if each.calls], shared=shared) == pytest.approx(
        (BANDWIDTH, LATENCY, shared * WAIT)
    )


def test_a_machine_has_the_rates_of_its_probes():
    """Each probe sets its constant; what no probe shows is named."""
    machine, missing = machine_of("host", [*timings(shared=True)], HERE)
    assert machine.chip.flops_per_second == pytest.approx(FLOPS)
    assert machine.chip.memory_bytes_per_second == pytest.approx(3e10)
    assert machine.constants.step_seconds == 1e-4
    assert machine.stack.again_seconds == pytest.approx(WAIT)
    assert machine.stack.wait_seconds == pytest.approx(AFTER_WORK)
    assert len(missing) == 1
    alone = [each for each in timings(shared=True) if not each.calls]
    assert "links" in machine_of("host", alone, HERE)[1][1]
    whole = with_passes(machine, [*timings(shared=True)])
    assert whole.constants.attention_efficiency == pytest.approx(5e10 / FLOPS)
    assert whole.stack.matrix_flops == pytest.approx(MATRIX * 5e10)
    assert whole.stack.cores > 0
    assert whole.stack.fresh_bytes == pytest.approx(machine.reached.memory_bytes_per_second / FRESH)


@pytest.fixture(scope="module")
def planted():
    """A machine of planted constants, and where a fit to its small steps starts."""
    machine, _ = machine_of("host", [*timings(shared=True)], HERE)
    its = replace(
        machine,
        constants=replace(START, memory_efficiency=0.1, kernel_seconds=2e-6),
        stack=replace(VIRTUAL, wait_seconds=3e-4, cores=2, alone_launches=3, kept_bytes=7, logit_bytes=90),
    )
    return its, replace(its, constants=START, stack=replace(VIRTUAL, wait_seconds=3e-4, cores=2))


@pytest.fixture(scope="module")
def small_steps():
    """Small steps that were not measured."""
    runs = []
    kept, large = ("data", 8, 256), ("data", 8, 32)
    steps = ("data", 8, 64), ("data", 2, 64), ("data", 2, 256), ("context", 8, 128), ("pipeline", 8, 64), kept, large
    for strategy, size, embed in steps:
        vocab = 8192 if (strategy, size, embed) == large else 128
        model = GPTConfig(layers=8, embed=embed, heads=8, vocab=vocab, sequence=96)
        train = TrainConfig(16, remat="none" if (strategy, size, embed) == kept else "dots")
        cost = predict(strategy, model, f"{strategy}={size}", train, CPU)
        topology = Topology(CPU, (size,))
        runs.append(Run(cost, topology, VIRTUAL, None))
    return runs


def measured(runs, machine):
    """Steps that take as long as predicted."""
    return [replace(run, step_seconds=seconds) for run, seconds in zip(runs, predicted(runs, machine), strict=True)]


def test_constants_of_small_steps_are_recovered(planted, small_steps):
    """A fit to steps of planted constants finds them again."""
    its, start = planted
    made = measured(small_steps, its)
    found, at_edges = fitted(made, start, (*FITTED, *SHARED))
    assert predicted(made, found) == pytest.approx([run.step_seconds for run in made], rel=1e-3)
    for name in ("memory_efficiency", "kernel_seconds"):
        assert getattr(found.constants, name) == pytest.approx(getattr(its.constants, name), rel=0.05)
    assert at_edges == ()


def test_a_constant_stays_in_its_range_and_an_end_is_reported(planted, small_steps):
    """Steps that seem to keep residuals for nothing leave `kept_bytes` at its least plausible value."""
    its, start = planted
    made = measured(small_steps, replace(its, stack=replace(its.stack, kept_bytes=0.0)))
    found, at_edges = fitted(made, start, (*FITTED, *SHARED))
    assert at_edges == ("kept_bytes",)
    assert CALIBRATED["kept_bytes"].low <= found.stack.kept_bytes < 1.1 * CALIBRATED["kept_bytes"].low
    told = calibrate.report(Measured(found, [], [], [], at_edges), 1.0)
    assert [line.split()[0] for line in told if line.endswith("at an end of its range")] == ["kept_bytes"]


def test_all_that_is_fitted_has_a_range_around_where_it_starts():
    """Also what is fitted only on devices that do not share a host."""
    assert {*CALIBRATED} == {*FITTED, *SHARED, *ALONE}
    for low, high, start in CALIBRATED.values():
        assert 0 < low < start < high


def test_a_collective_after_work_waits_at_least_as_long_as_one_after_another():
    """Where nothing was measured, or noise says less."""
    made = [each for each in timings(shared=True) if each.kind == "turn"]
    assert waits(made, LATENCY, WAIT) == pytest.approx(AFTER_WORK)
    assert waits(made, LATENCY, 1e-2) == 1e-2
    assert waits([], LATENCY, WAIT) == WAIT
