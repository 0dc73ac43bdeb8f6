"""What a run ran on."""

from typing import Any

import jax
import pytest

from benchmarks.timing.machine import compiler_facts, fingerprint, matmul_flops_per_second, update_machine_info

FINGERPRINTS = ("fingerprint", "counters_fingerprint")


def info(**changes: Any) -> dict[str, Any]:
    """The machine as pytest-benchmark describes it, then as this suite does."""
    cpu = {"brand_raw": "EPYC", "arch": "X86_64", "count": 2, "flags": ["avx", "sse"], "hz_actual": [2596118000, 0]}
    described = {"cpu": cpu | changes, "python_version": "3.11.7", "node": "somewhere"}
    update_machine_info(described, {"float32": 2e11})
    return described


def test_noise_is_dropped_and_versions_are_kept() -> None:
    """The processor keeps its name; versions, devices and the measured speed are there."""
    described = info()
    assert described["cpu"] == {"brand_raw": "EPYC", "arch": "X86_64", "count": 2}
    assert described["versions"]["jax"] == jax.__version__
    assert described["device_count"] == jax.device_count()
    assert described["matmul_flops_per_second"] == {"float32": 2e11}


def test_fingerprint_is_of_what_stays() -> None:
    """A clock that jitters leaves the fingerprint as it is; another processor changes it."""
    assert info()["fingerprint"] == info(hz_actual=[2600000000, 0])["fingerprint"]
    assert info()["fingerprint"] != info(brand_raw="Xeon")["fingerprint"]


def test_counters_do_not_depend_on_the_processor() -> None:
    """Compiled programs of equal versions, flags and devices compare wherever they were compiled."""
    assert info()["counters_fingerprint"] == info(brand_raw="Xeon")["counters_fingerprint"]
    assert compiler_facts()["compiler_versions"]["jax"] == jax.__version__


@pytest.mark.parametrize("variable", ["XLA_FLAGS", "LIBTPU_INIT_ARGS"])
def test_flags_are_part_of_both_fingerprints(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """What tells a compiler to do otherwise makes numbers that do not compare."""
    before = info()
    monkeypatch.setenv(variable, "--xla_some_flag=1")
    assert not {before[key] for key in FINGERPRINTS} & {info()[key] for key in FINGERPRINTS}


def test_how_memory_is_allocated_is_part_of_what_times_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Huge pages change a step's time, and leave its program as it is."""
    before = info()
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    after = info()
    assert after["glibc_tunables"] == "glibc.malloc.hugetlb=1"
    assert after["fingerprint"] != before["fingerprint"]
    assert after["counters_fingerprint"] == before["counters_fingerprint"]


def test_settings_are_part_of_both_fingerprints() -> None:
    """So does a setting of JAX."""
    before = info()
    with jax.enable_x64():
        assert not {before[key] for key in FINGERPRINTS} & {info()[key] for key in FINGERPRINTS}


def test_fingerprint_ignores_order() -> None:
    """Equal facts in another order are equal."""
    assert fingerprint({"a": 1, "b": {"c": 2, "d": 3}}) == fingerprint({"b": {"d": 3, "c": 2}, "a": 1})


def test_matmul_rate_is_that_of_a_processor() -> None:
    """The rate is of the right order: more than one GFLOP/s, less than an exaFLOP/s."""
    assert 1e9 < matmul_flops_per_second("float32") < 1e18
