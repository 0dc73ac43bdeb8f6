"""Which XLA options a step is compiled with."""

import re
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks.devices.topology import DEVICE_KINDS, Topology
from benchmarks.run.compilation import compile_step
from strategies import PRESETS, STRATEGIES, TrainConfig
from strategies.backends import xla_options as module
from strategies.backends.xla_options import DEFAULTS, Default, as_read, has_option, xla_options
from tests.benchmarks.search.test_compile import case
from tests.strategies.quick import OPTIONS

TRAIN = TrainConfig(batch_size=1)
SMALLEST = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "tpu7x": "tpu7x:2x2x1"}
TABLE = (
    Default("tpu", {"xla_a": "1"}, "all strategies"),
    Default("tpu", {"xla_b": "2"}, "one of them", frozenset({"fsdp"})),
    Default("gpu", {"xla_c": "3"}, "another platform"),
    Default("gpu", {"xla_f": "6"}, "some options", training={"reduce": "layer"}),
)


@pytest.mark.parametrize(
    ("platform", "strategy", "expected"),
    [
        ("tpu", "data", {"xla_a": "1"}),
        ("tpu", "fsdp", {"xla_a": "1", "xla_b": "2"}),
        ("gpu", "fsdp", {"xla_c": "3"}),
        ("cpu", "fsdp", {}),
    ],
)
def test_options_of_the_table_are_of_a_platform_and_of_strategies(
    monkeypatch: pytest.MonkeyPatch, platform: str, strategy: str, expected: dict[str, Any]
) -> None:
    """A step has the options of its platform and strategy."""
    monkeypatch.setattr(module, "DEFAULTS", TABLE)
    monkeypatch.setattr(module, "has_option", lambda *_: True)
    assert xla_options(SimpleNamespace(platform=platform), strategy, TRAIN) == expected


@pytest.mark.parametrize(("platform", "read"), [("tpu", "TRUE"), ("gpu", True), ("cpu", True)])
def test_only_libtpu_reads_texts_as_booleans(platform: str, read: Any) -> None:
    """Compilers for GPUs and CPUs get a Boolean for `TRUE`."""
    assert as_read(platform, {"xla_a": "TRUE", "xla_b": "2"}) == {"xla_a": read, "xla_b": "2"}


def test_options_of_the_table_may_need_options_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option that helps only some steps of a strategy is given to these alone."""
    monkeypatch.setattr(module, "DEFAULTS", TABLE)
    monkeypatch.setattr(module, "has_option", lambda *_: True)
    found = xla_options(SimpleNamespace(platform="gpu"), "hsdp", replace(TRAIN, reduce="layer"))
    assert found == {"xla_c": "3", "xla_f": "6"}


def test_a_default_that_xla_does_not_have_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With another version of XLA a step is compiled without the option, and a warning names it."""
    known = {"xla_cpu_enable_fast_math": "False"}
    table = Default("cpu", {"xla_no_such": "1"}, "gone"), Default("cpu", known, "still there")
    monkeypatch.setattr(module, "DEFAULTS", table)
    with pytest.warns(UserWarning, match="no option xla_no_such; data is compiled without it"):
        assert xla_options(jax.devices()[0], "data", TRAIN) == {"xla_cpu_enable_fast_math": False}


def test_flags_of_the_environment_go_before_those_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA_FLAGS says what all programs are compiled with; an option that it sets is left to it."""
    known = {"xla_cpu_enable_fast_math": "False", "xla_backend_optimization_level": "1"}
    monkeypatch.setattr(module, "DEFAULTS", (Default("cpu", known, "two"),))
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_prefer_vector_width=128")
    assert xla_options(jax.devices()[0], "data", TRAIN) == {"xla_cpu_enable_fast_math": False}


def test_a_value_that_xla_refuses_is_an_error() -> None:
    """A wrong value of an option that exists is no reason to leave it out."""
    with pytest.raises(jax.errors.JaxRuntimeError, match="not a valid bool"):
        has_option(jax.devices()[0], "xla_cpu_enable_fast_math", "perhaps")


@pytest.mark.parametrize(
    "kind", [pytest.param("v5e:4x4", marks=pytest.mark.libtpu), pytest.param("h100:1x4", marks=pytest.mark.cuda)]
)
def test_the_installed_compiler_has_all_options_of_the_table(kind: str) -> None:
    """No name or value in the table is misspelt, for the versions that are installed."""
    device = Topology.parse(kind).devices()[0]
    ours = [each for each in DEFAULTS if each.platform == device.platform]
    assert ours
    assert all(has_option(device, name, value) for each in ours for name, value in each.options.items())


@pytest.mark.libtpu
def test_kinds_of_chips_have_the_names_that_jax_gives_them() -> None:
    """A case knows JAX's name of its devices without a compiler."""
    found = {name: Topology.parse(shape).devices()[0].device_kind for name, shape in SMALLEST.items()}
    assert found == DEVICE_KINDS


def test_the_table_names_strategies_and_reasons() -> None:
    """Each default is for strategies and options that exist, and says why."""
    assert {name for each in DEFAULTS for name in each.strategies} <= set(STRATEGIES)
    assert {name for each in DEFAULTS for name in each.training} <= {field.name for field in fields(TrainConfig)}
    assert all(re.fullmatch(r"[A-Z].{40,}\.", each.reason) for each in DEFAULTS)


@pytest.mark.parametrize(
    ("platform", "strategy", "options", "expected"),
    [
        ("gpu", "hsdp", {"prefetch": "on"}, {"xla_gpu_enable_while_loop_double_buffering": True}),
        ("gpu", "hsdp", {"prefetch": "off"}, {}),
        ("gpu", "tensor", {"halves": "on"}, {}),
        ("gpu", "three_d", {"prefetch": "off", "halves": "off"}, {}),
        (
            "gpu",
            "three_d",
            {"prefetch": "off", "halves": "on"},
            {"xla_gpu_experimental_parallel_collective_overlap_limit": "8"},
        ),
        ("gpu", "zero1", {"reduce": "layer"}, {"xla_gpu_enable_while_loop_double_buffering": True}),
        ("gpu", "zero1", {"reduce": "step"}, {}),
        ("tpu", "hsdp", {"prefetch": "on"}, {"xla_enable_async_all_gather": "true"}),
        ("tpu", "data", {"prefetch": "off"}, {"xla_enable_async_all_reduce": "true"}),
        ("tpu", "tensor", {"prefetch": "off"}, {}),
        ("tpu", "expert", {"dispatch": "all_to_all"}, {"xla_tpu_enable_async_all_to_all": "true"}),
        ("tpu", "expert", {"dispatch": "all_gather"}, {}),
    ],
)
def test_what_overlaps_has_options_that_hide_it(
    monkeypatch: pytest.MonkeyPatch, platform: str, strategy: str, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Of the committed table, GPUs have options for steps with prefetch, for three_d with halves, and for ZeRO by
    layer; TPUs for strategies that gather, and for all-to-alls of experts. All steps of a platform are compiled without
    one of XLA's passes.
    """
    monkeypatch.setattr(module, "has_option", lambda *_: True)
    passes = {"gpu": "rematerialization", "tpu": "while-loop-all-reduce-code-motion"}
    of_all = {"xla_disable_hlo_passes": passes[platform]}
    found = xla_options(SimpleNamespace(platform=platform), strategy, replace(TRAIN, **options))
    assert found.items() >= (of_all | expected).items()
    assert (found == of_all) == (not expected)
    assert ("xla_enable_async_all_gather" in found) == (platform == "tpu" and strategy == "hsdp")


def fusions(program: Any) -> int:
    """Fused instructions of a compiled program."""
    return program.as_text().count(" fusion(")


def test_a_step_is_compiled_with_the_options_of_its_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is called or lowered compiles itself with the table's options; those given to `compile` go first.

    Its `update` has none, so it can be part of another program. All compute the same.
    """
    table = Default("cpu", {"xla_disable_hlo_passes": "fusion"}, "a test", frozenset({"data"}))
    config, train = replace(PRESETS["nano"], layers=1, embed=32, sequence=8, vocab=64), replace(TRAIN, batch_size=2)
    monkeypatch.setattr(module, "DEFAULTS", (table,))
    step = STRATEGIES["data"].build(config, "data=2", train)
    assert step.xla_options == table.options
    default = fusions(step.update.lower(step.state, step.batch).compile(OPTIONS))
    assert fusions(step.lower().compile(OPTIONS)) != default
    assert fusions(step.lower().compile({"xla_disable_hlo_passes": "", **OPTIONS})) == default
    batch = step.place(np.zeros(step.batch.shape, np.int32))
    _, metrics = step(step.init(jax.random.key(0)), batch)
    _, inner = jax.jit(lambda *given: step.update(*given))(step.init(jax.random.key(0)), batch)
    np.testing.assert_allclose(metrics["loss"], inner["loss"], rtol=1e-6)


def test_given_options_go_before_those_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is compiled with the options of its strategy, unless the user gives others."""
    table = Default("cpu", {"xla_cpu_enable_fast_math": "False"}, "a test", frozenset({"fsdp"}))
    monkeypatch.setattr(module, "DEFAULTS", (table,))
    fast, size = {"xla_cpu_enable_fast_math": "true"}, {"xla_cpu_prefer_vector_width": "128"}
    assert case(strategy="data", mesh="data=4").build().xla_options_with({}) == {}
    step = case().build()
    assert step.xla_options_with(size) == {"xla_cpu_enable_fast_math": False, **size}
    assert step.xla_options_with(fast) == {"xla_cpu_enable_fast_math": True}
    assert compile_step(step, tuple(fast.items())).options == {"xla_cpu_enable_fast_math": True}
