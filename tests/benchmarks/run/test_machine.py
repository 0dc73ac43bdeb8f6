"""The description of the machine, and the fingerprints that decide which runs compare."""

from typing import Any

import jax
import pytest

from benchmarks.run.journal import fingerprint
from benchmarks.run.machine import compiler_facts, machine_facts, matmul_flops_per_second
from benchmarks.run.publish import describe_machine

FINGERPRINTS = ("fingerprint", "counters_fingerprint")


def info(**changes: Any) -> dict[str, Any]:
    """The machine as described by pytest-benchmark and then by this suite."""
    cpu = {"brand_raw": "EPYC", "arch": "X86_64", "count": 2, "flags": ["avx", "sse"], "hz_actual": [2596118000, 0]}
    described = {"cpu": cpu | changes, "python_version": "3.11.7", "node": "somewhere"}
    describe_machine(described, machine_facts({"float32": 2e11}))
    return described


def test_noise_is_dropped_and_versions_are_kept() -> None:
    """The processor keeps its name without its flags and clock; versions, devices and the measured speed are added."""
    described = info()
    assert described["cpu"] == {"brand_raw": "EPYC", "arch": "X86_64", "count": 2}
    assert described["versions"]["jax"] == jax.__version__
    assert described["device_count"] == jax.device_count()
    assert described["matmul_flops_per_second"] == {"float32": 2e11}


def test_fingerprint_is_of_what_stays() -> None:
    """The fingerprint ignores the current clock rate, and differs for another processor."""
    assert info()["fingerprint"] == info(hz_actual=[2600000000, 0])["fingerprint"]
    assert info()["fingerprint"] != info(brand_raw="Xeon")["fingerprint"]


def test_counters_do_not_depend_on_the_processor() -> None:
    """The counters' fingerprint is the same on another processor with equal versions."""
    assert info()["counters_fingerprint"] == info(brand_raw="Xeon")["counters_fingerprint"]
    assert compiler_facts()["compiler_versions"]["jax"] == jax.__version__


@pytest.mark.parametrize("variable", ["XLA_FLAGS", "LIBTPU_INIT_ARGS"])
def test_flags_are_part_of_both_fingerprints(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """Compiler flags in the environment change both fingerprints."""
    before = info()
    monkeypatch.setenv(variable, "--xla_some_flag=1")
    assert not {before[key] for key in FINGERPRINTS} & {info()[key] for key in FINGERPRINTS}


def test_how_memory_is_allocated_is_part_of_what_times_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allocator settings change the fingerprint of times, and not that of counters."""
    before = info()
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    after = info()
    assert after["glibc_tunables"] == "glibc.malloc.hugetlb=1"
    assert after["fingerprint"] != before["fingerprint"]
    assert after["counters_fingerprint"] == before["counters_fingerprint"]


def test_settings_are_part_of_both_fingerprints() -> None:
    """A setting of JAX changes both fingerprints."""
    before = info()
    with jax.enable_x64():
        assert not {before[key] for key in FINGERPRINTS} & {info()[key] for key in FINGERPRINTS}


def test_fingerprint_ignores_order() -> None:
    """A fingerprint does not depend on the order of facts."""
    assert fingerprint({"a": 1, "b": {"c": 2, "d": 3}}) == fingerprint({"b": {"d": 3, "c": 2}, "a": 1})


def test_matmul_rate_is_that_of_a_processor() -> None:
    """The measured rate of matmuls is between one GFLOP/s and one exaFLOP/s."""
    assert 1e9 < matmul_flops_per_second("float32") < 1e18
