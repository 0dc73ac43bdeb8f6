"""Fits recover the constants that made their timings."""

from dataclasses import replace

import pytest

from benchmarks import calibrate
from benchmarks.calibration import small_steps as small_steps_module
from benchmarks.calibration.fits import (
    CALIBRATED,
    START,
    Timing,
    attention,
    fitted,
    links,
    matmuls,
    packed_matmuls,
    predicted,
    waits,
)
from benchmarks.calibration.measured import ALONE, FITTED, SHARED, Measured, Setting, machine_of, with_passes
from benchmarks.devices.topology import CPU, Topology
from benchmarks.seconds.published import Run
from benchmarks.seconds.stack import VIRTUAL
from strategies import GPTConfig, TrainConfig
from strategies.costs.predict import predict

FLOPS, DIM, BANDWIDTH, LATENCY, FRESH, MATRIX, WAIT, AFTER_WORK = 2e11, 20.0, 1e10, 3e-6, 2e9, 1e-7, 4e-5, 5e-4
COLUMN, TRANSPOSED, STREAMING, COLD, COPIED = 15.0, 80.0, 3e10, 5e9, 1e9
HERE = Setting(8, True, VIRTUAL, "float32")


def timings(*, shared):
    """Seconds of probes on a machine of planted constants."""
    scale = lambda devices: devices if shared else 1  # noqa: E731
    for work, dim, columns, transposed in ((1e9, 64, 64, 0), (4e9, 512, 99, 16), (1e8, 128, 32, 64), (1e8, 32, 128, 0)):
        inverses = 1 / columns, 1 / transposed if transposed else 0.0
        factor = 1 + COLUMN * inverses[0] + TRANSPOSED * inverses[1] if shared else 1 + DIM / dim
        yield Timing("matmul", 8, work, 0, 1 / dim, 0, 0, scale(8) * work / FLOPS * factor, *inverses)
    for devices in (2, 4, 8):
        for kind, work in (("all_reduce", 1e3), ("all_reduce", 1e6), ("permute", 1e5)):
            hops = 1 if kind == "permute" and not shared else devices - 1
            copied = devices / (devices - 1) if shared and kind != "permute" else 1  # also a device's own part
            seconds = scale(devices) * (hops * LATENCY + work * copied / BANDWIDTH) + shared * WAIT
            yield Timing(kind, devices, work, 1, 0, 0, 0, seconds)
    for flops, scores, matrices in ((1e8, 1e6, 1e3), (1e8, 1e7, 1e2), (1e9, 1e6, 1e3), (1e7, 1e5, 1e4)):
        seconds = flops / 5e10 + scores * 1e-9 + matrices * MATRIX
        yield Timing("attention", 8, flops, 0, 0, scores, matrices, scale(8) * seconds)
    for work in (1e7, 4e7, 1e8):
        yield Timing("turn", 8, work, 0, 0, 0, 0, 8 * work / FLOPS + 8 * 7 * LATENCY + AFTER_WORK)
    yield Timing("stream", 8, 1e6, 0, 0, 0, 0, scale(8) * 1e6 / STREAMING)
    yield Timing("cold", 8, 1e6, 0, 0, 0, 0, scale(8) * 1e6 / COLD)
    yield Timing("transpose", 8, 1e5, 0, 0, 0, 0, scale(8) * 1e5 / COPIED)
    yield Timing("dispatch", 8, 0, 0, 0, 0, 0, 1e-4)
    yield Timing("allocation", 1, 1e6, 0, 0, 0, 0, 1e6 / FRESH)


@pytest.mark.parametrize("shared", [True, False])
def test_rates_are_recovered(shared):
    """Matmuls give their rate and how it depends on their dims; collectives give bandwidth and latency."""
    made = [*timings(shared=shared)]
    products = [each for each in made if each.kind == "matmul"]
    if shared:
        assert packed_matmuls(products) == pytest.approx((FLOPS, COLUMN, TRANSPOSED))
    else:
        assert matmuls(products) == pytest.approx((FLOPS, DIM))
    assert attention([each for each in made if each.scores], shared=shared) == pytest.approx((5e10, 1e-9, MATRIX))
    assert links([each for each in made if each.calls], shared=shared) == pytest.approx(
        (BANDWIDTH, LATENCY, shared * WAIT)
    )


def test_a_machine_has_the_rates_of_its_probes():
    """Each probe sets its constant; what no probe shows is named."""
    machine, missing = machine_of("host", [*timings(shared=True)], HERE)
    assert machine.chip.flops_per_second == pytest.approx(FLOPS)
    assert machine.chip.memory_bytes_per_second == pytest.approx(STREAMING)
    assert machine.constants.step_seconds == 1e-4
    assert (machine.stack.column_dim, machine.stack.transposed_dim) == pytest.approx((COLUMN, TRANSPOSED))
    assert machine.stack.again_seconds == pytest.approx(WAIT)
    assert machine.stack.wait_seconds == pytest.approx(AFTER_WORK)
    assert len(missing) == 1
    alone = [each for each in timings(shared=True) if not each.calls]
    assert "links" in machine_of("host", alone, HERE)[1][1]
    for efficiency, cold in ((0.5, 0.5 * STREAMING / COLD), (0.1, 1)):  # kernels may be slower than memory
        its = replace(machine, constants=replace(machine.constants, memory_efficiency=efficiency))
        assert with_passes(its, [*timings(shared=True)]).stack.cold_bytes == pytest.approx(cold)
    whole = with_passes(machine, [*timings(shared=True)])
    assert whole.constants.attention_efficiency == pytest.approx(5e10 / FLOPS)
    assert whole.stack.matrix_flops == pytest.approx(MATRIX * 5e10)
    assert whole.stack.cores > 0
    assert whole.stack.fresh_bytes == pytest.approx(machine.reached.memory_bytes_per_second / FRESH)
    assert whole.stack.transposed_bytes == pytest.approx(machine.reached.memory_bytes_per_second / COPIED)


@pytest.fixture(scope="module")
def planted():
    """A machine of planted constants, and where a fit to its small steps starts."""
    machine, _ = machine_of("host", [*timings(shared=True)], HERE)
    its = replace(
        machine,
        constants=replace(START, memory_efficiency=0.1, kernel_seconds=2e-6),
        stack=replace(
            VIRTUAL,
            **{"wait_seconds": 3e-4, "cores": 2, "alone_launches": 3, "kept_bytes": 7, "logit_bytes": 90},
            **{"skew": 0.2, "step_skew": 0.4},
        ),
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


def test_small_steps_that_do_not_fit_the_devices_are_left_out(monkeypatch):
    """Of any number of devices some steps remain, and each is of a strategy that the others have, too."""
    built = []
    monkeypatch.setattr(
        small_steps_module, "_probe", lambda strategy, _config, mesh, _train: built.append((strategy, mesh.size))
    )

    def steps(devices):
        built.clear()
        _ = [*small_steps_module.steps(devices, VIRTUAL, "float32")]
        return [*built]

    assert {strategy for strategy, _ in steps(8)} == {"data", "context", "pipeline", "tensor", "fsdp"}
    assert ("pipeline", 16) not in steps(16)
    assert ("data", 16) in steps(16)
    assert {size for _, size in steps(3)} == {2, 3}
