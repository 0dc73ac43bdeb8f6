"""Rates are those of the machine that made the timings, and a rate that timings do not show is refused."""

import dataclasses
import json

import jax
import pytest

from benchmarks.run import calibrate
from benchmarks.run.probes import ACCELERATOR_SCALE, MATMULS, Probe, probes
from benchmarks.simulate.kernels import tiles_filled
from benchmarks.simulate.machines import machine
from benchmarks.simulate.rates import NotMeasurableError, Timing, calibrated, link_rate, matmul_rate
from tests.commands import command

FLOPS, FLOAT32_FLOPS, DIM, BANDWIDTH, LATENCY, STREAMING = 2e11, 1e11, 20.0, 1e10, 3e-6, 3e10


def matmuls():
    """Timings of matmuls that are slower by 1 + DIM / dim."""
    for dtype, flops in (("bfloat16", FLOPS), ("float32", FLOAT32_FLOPS)):
        for work, dim in ((1e9, 64), (4e9, 512), (1e8, 128), (1e8, 32)):
            yield Timing("matmul", 1, work, 1 / dim, dtype, seconds=work / flops * (1 + DIM / dim))


def collectives():
    """Timings of rings: n - 1 steps among n devices, and one of a permute."""
    for devices in (2, 4, 8):
        for kind, sent in (("all_reduce", 1e3), ("all_reduce", 1e6), ("permute", 1e5), ("reduce_scatter", 1e5)):
            calls, hops = 1 + (kind == "reduce_scatter"), 1 if kind == "permute" else devices - 1
            yield Timing(kind, devices, sent, calls=calls, seconds=calls * hops * LATENCY + sent / BANDWIDTH)


def others():
    """Timings of what one device does besides."""
    yield Timing("stream", 1, 1e6, seconds=1e6 / STREAMING)
    yield from (Timing("launch", 1, launches, seconds=launches * 2e-6) for launches in (8, 64))
    yield Timing("dispatch", 8, 0, seconds=1e-4)


def test_rates_are_recovered():
    """Timings of planted rates give these rates, and what nothing shows is named."""
    found, missing = calibrated("host", [*matmuls(), *collectives(), *others()], "cpu", 2**30, "a test")
    assert found.effective_chip.flops_per_second == pytest.approx(FLOPS)
    assert found.best_rate(4) == pytest.approx(FLOAT32_FLOPS)
    assert found.effective_chip.memory_bytes_per_second == pytest.approx(STREAMING)
    assert found.effective_chip.link_bytes_per_second == pytest.approx(BANDWIDTH)
    constants = found.constants
    assert (constants.matmul_dim, constants.link_seconds) == pytest.approx((DIM, LATENCY))
    assert (constants.kernel_seconds, constants.step_seconds) == pytest.approx((2e-6, 1e-4))
    assert [each.partition(":")[0].partition(";")[0] for each in missing] == ["attention", "the network between hosts"]
    assert "links: there is one device" in calibrated("host", [*matmuls(), *others()], "cpu", 1, "")[1][-1]


def test_an_iteration_of_a_loop_is_no_work():
    """If each iteration of the loops of probes takes longer, the same rates are recovered."""
    plain = [*matmuls(), *collectives(), *others()]
    late = [each._replace(seconds=each.seconds + 1e-5 * (each.kind != "dispatch")) for each in plain]
    (found, _), (wanted, _) = (calibrated("host", some, "cpu", 2**30, "a test") for some in (late, plain))
    rates = (dataclasses.asdict(each.chip) | dataclasses.asdict(each.constants) for each in (found, wanted))
    mine, its = ({name: rate for name, rate in some.items() if isinstance(rate, float)} for some in rates)
    assert mine == pytest.approx(its)


def test_waves_of_tiles_are_no_part_of_the_rate(tmp_path):
    """A GPU whose tiles allow half of its peak has twice the rate, with its cores; other constants stay."""
    some = [*matmuls(), *others()]
    half = [each._replace(filled=0.5) if each.kind == "matmul" else each for each in some]
    whole, _ = calibrated("gpu", some, "cuda", 2**30, "a test")
    tiled, missing = calibrated("gpu", half, "cuda", 2**30, "a test", cores=132)
    assert tiled.best_rate(2) == pytest.approx(2 * whole.best_rate(2))
    assert (whole.chip.cores, tiled.chip.cores) == (0, 132)
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(calibrate.document(tiled, half, missing)))
    assert machine(str(path)).chip.cores == 132


def test_the_latency_of_kernels_is_that_of_steps():
    """Where steps are graphs it is at least that of traced steps, whose kernels are slower than the smallest."""
    quick = [each._replace(seconds=each.work * 1e-6) if each.kind == "launch" else each for each in others()]
    found, missing = calibrated("gpu", [*matmuls(), *quick], "cuda", 2**30, "a test")
    assert found.constants.kernel_seconds == machine("meshmark_gpus").constants.kernel_seconds
    assert any("as traced on an H100; small ones take 1.0" in each for each in missing)
    slow = [each._replace(seconds=each.work * 9e-6) if each.kind == "launch" else each for each in others()]
    assert calibrated("gpu", [*matmuls(), *slow], "cuda", 1, "")[0].constants.kernel_seconds == pytest.approx(9e-6)


def test_a_rate_that_timings_do_not_show_is_refused():
    """Where more work takes no longer the rate would be endless: the message says what to do."""
    flat = [each._replace(seconds=1e-3 * 2e9 / each.work) for each in matmuls() if each.dtype == "float32"]
    with pytest.raises(NotMeasurableError, match="the rate of float32 matmuls is not measurable: calibrate again"):
        matmul_rate(flat)
    slower = [each._replace(seconds=1 / each.work) for each in collectives() if each.devices == 4]
    with pytest.raises(NotMeasurableError, match="bandwidth of links is not measurable: more bytes took no longer"):
        link_rate(slower)


def test_the_command_writes_a_machine(tmp_path, capsys, monkeypatch):
    """What it times it prints and writes; the file is read as the machine that the report shows."""
    timings = [*matmuls(), *collectives(), *others()]
    monkeypatch.setattr(calibrate, "probes", lambda: iter(()))
    monkeypatch.setattr(calibrate, "timed", lambda some: timings)
    path = tmp_path / "host.json"
    assert command("calibrate")([f"--out={path}"]) == 0
    said = capsys.readouterr().out
    read = machine(str(path))
    assert (read.chip.platform, read.assumed) == ("cpu", True)
    assert read.best_rate(4) == pytest.approx(FLOAT32_FLOPS)
    assert f"flops_per_second{'':>10}2e+11" in said
    assert len(json.loads(path.read_text())["measured"]) == len(timings)
    monkeypatch.setattr(
        calibrate, "timed", lambda some: [each._replace(seconds=1 / (each.work + 1)) for each in timings]
    )
    with pytest.raises(SystemExit) as ended:
        command("calibrate")([f"--out={tmp_path / 'none.json'}"])
    assert ended.value.code == 2
    assert "is not measurable" in capsys.readouterr().err
    assert not (tmp_path / "none.json").exists()


def test_probes_have_the_groups_of_all_devices(monkeypatch):
    """Powers of two and all devices; what one device does is timed on one device."""
    built = []
    monkeypatch.setattr(Probe, "__init__", lambda self, timing, *_: built.append(timing))
    for count, groups in ((1, set()), (6, {2, 4, 6}), (8, {2, 4, 8})):
        built.clear()
        monkeypatch.setattr(jax, "device_count", lambda count=count: count)
        _ = [*probes()]
        assert {each.devices for each in built if each.calls} == groups
        assert {each.devices for each in built if each.kind in ("matmul", "stream", "launch")} == {1}


def test_probes_of_a_gpu_have_several_matmuls_and_two_bodies_of_launches(monkeypatch):
    """Eight pairs of matmuls in a body, whose tiles fill a share of its cores, and 8 and 64 small kernels."""
    built = []
    monkeypatch.setattr(Probe, "__init__", lambda self, timing, *_: built.append(timing))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr("benchmarks.run.probes.gpu_cores", lambda: 132)
    _ = [*probes()]
    timings = {kind: [each for each in built if each.kind == kind] for kind in ("matmul", "launch")}
    m, n, k = (ACCELERATOR_SCALE * size for size in MATMULS[0])
    first = timings["matmul"][0]
    assert first.work == 8 * 2 * 2 * m * n * k
    shares = tiles_filled(m, n, 1, 132), tiles_filled(m, k, 1, 132)
    assert first.filled == pytest.approx(2 / (1 / shares[0] + 1 / shares[1]))
    assert [each.work for each in timings["launch"]] == [8, 64]


@pytest.mark.usefixtures("_short_blocks")
def test_a_probe_of_two_devices_is_timed():
    """A collective that all take part in returns, and takes some time."""
    ring = [(0, 1), (1, 0)]
    probe = Probe(Timing("permute", 2, 64, calls=1), lambda x: (jax.lax.ppermute(x, "devices", ring),), (16,))
    (found,) = calibrate.timed([probe])
    assert 0 < found.seconds < 1
