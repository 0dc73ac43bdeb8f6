"""Which XLA options a step is compiled with."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks.devices.topology import DEVICE_KINDS, Topology
from benchmarks.run.compilation import compile_step
from strategies import PRESETS, STRATEGIES, MeshSpec, Strategy, TrainConfig
from strategies.backends import xla_options as module
from strategies.backends.backend import backend_for
from strategies.backends.xla_options import (
    DEFAULTS,
    Default,
    as_read,
    gathers_weights,
    has_option,
    sums_over_all_devices,
    xla_options,
)
from strategies.core.plan import Plan

CONFIG = replace(PRESETS["nano-moe"], layers=4, heads=8, sequence=64, capacity_factor=None)
TRAIN = TrainConfig(batch_size=16)
SMALLEST = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "tpu7x": "tpu7x:2x2x1"}
TABLE = (
    Default("tpu", {"xla_a": "1"}, "all strategies"),
    Default("tpu", {"xla_b": "2"}, "some of them", gathers_weights),
    Default("gpu", {"xla_c": "3"}, "another platform"),
)


def plan_of(strategy: Strategy, mesh: str, platform: str | None = None, **options: Any) -> Plan:
    """The plan of a step."""
    train, backend = replace(TRAIN, **options), backend_for(platform)
    return Plan.of(strategy.axes, CONFIG, MeshSpec.parse(mesh), train, backend, checked=False)


@pytest.mark.parametrize(
    ("platform", "mesh", "expected"),
    [
        ("tpu", "data=4", {"xla_a": "1"}),
        ("tpu", "fsdp=4", {"xla_a": "1", "xla_b": "2"}),
        ("gpu", "fsdp=4", {"xla_c": "3"}),
        ("cpu", "fsdp=4", {}),
    ],
)
def test_options_of_the_table_are_of_a_platform_and_of_what_a_step_does(
    monkeypatch: pytest.MonkeyPatch, platform: str, mesh: str, expected: dict[str, Any]
) -> None:
    """A step has the options of its platform for what it does; without a plan, those of all steps."""
    monkeypatch.setattr(module, "DEFAULTS", TABLE)
    monkeypatch.setattr(module, "has_option", lambda *_: True)
    device = SimpleNamespace(platform=platform)
    assert xla_options(device, plan_of(STRATEGIES["three_d"], mesh)) == expected
    assert xla_options(device, None) == {name: value for name, value in expected.items() if name != "xla_b"}


@pytest.mark.parametrize(("platform", "read"), [("tpu", "TRUE"), ("gpu", True), ("cpu", True)])
def test_only_libtpu_reads_texts_as_booleans(platform: str, read: Any) -> None:
    """Compilers for GPUs and CPUs get a Boolean for `TRUE`."""
    assert as_read(platform, {"xla_a": "TRUE", "xla_b": "2"}) == {"xla_a": read, "xla_b": "2"}


def test_a_default_that_xla_does_not_have_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With another version of XLA a step is compiled without the option, and a warning names it."""
    known = {"xla_cpu_enable_fast_math": "False"}
    table = Default("cpu", {"xla_no_such": "1"}, "gone"), Default("cpu", known, "still there")
    monkeypatch.setattr(module, "DEFAULTS", table)
    with pytest.warns(UserWarning, match="no option xla_no_such; steps are compiled without it"):
        assert xla_options(jax.devices()[0], None) == {"xla_cpu_enable_fast_math": False}


def test_flags_of_the_environment_go_before_those_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA_FLAGS says what all programs are compiled with; an option that it sets is left to it."""
    known = {"xla_cpu_enable_fast_math": "False", "xla_backend_optimization_level": "1"}
    monkeypatch.setattr(module, "DEFAULTS", (Default("cpu", known, "two"),))
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_prefer_vector_width=128")
    assert xla_options(jax.devices()[0], None) == {"xla_cpu_enable_fast_math": False}


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


LIMIT = "xla_gpu_experimental_parallel_collective_overlap_limit"
BUFFERS = "xla_gpu_enable_while_loop_double_buffering"
SUMS, GATHERS, EXCHANGES = (f"xla_enable_async_{name}" for name in ("all_reduce", "all_gather", "all_to_all"))
EXCHANGES = EXCHANGES.replace("xla_", "xla_tpu_", 1)
BETWEEN_HOSTS = {"prefetch": "off", "reduce": "layer", "reduce_dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("platform", "strategy", "mesh", "options", "expected"),
    [
        ("gpu", "hsdp", "data=2,fsdp=2", {"prefetch": "on"}, {LIMIT, BUFFERS}),
        ("gpu", "hsdp", "data=2,fsdp=2", {"prefetch": "off"}, {}),
        ("gpu", "hsdp", "data=2,fsdp=2", BETWEEN_HOSTS, {LIMIT}),
        ("gpu", "hsdp", "fsdp=4", {"prefetch": "off", "reduce_dtype": "bfloat16"}, {}),
        ("gpu", "tensor", "tensor=4", {"halves": "on"}, {}),
        ("gpu", "three_d", "tensor=4", {"halves": "on"}, {}),
        ("gpu", "expert", "data=2,expert=2", {"halves": "on"}, {}),
        ("gpu", "three_d", "data=2,tensor=2", {"halves": "off"}, {}),
        ("gpu", "three_d", "data=2,tensor=2", {"halves": "on"}, {LIMIT}),
        ("gpu", "zero1", "data=4", {"reduce": "layer"}, {}),
        ("tpu", "fsdp", "fsdp=4", {}, {SUMS, GATHERS}),
        ("tpu", "hsdp", "data=2,fsdp=2", {}, {GATHERS}),
        ("tpu", "three_d", "data=2,tensor=2", {}, {}),
        ("tpu", "data", "data=4", {}, {SUMS}),
        ("tpu", "auto", "data=4", {}, {SUMS}),
        ("tpu", "zero1", "data=4", {}, {}),
        ("tpu", "tensor", "tensor=4", {}, {}),
        ("tpu", "expert", "expert=4", {"dispatch": "all_to_all"}, {EXCHANGES}),
        ("tpu", "expert", "expert=4", {"dispatch": "all_gather"}, {}),
        ("tpu", "auto", "expert=4", {}, {EXCHANGES}),
    ],
)
def test_what_overlaps_has_options_that_hide_it(
    monkeypatch: pytest.MonkeyPatch, platform: str, strategy: str, mesh: str, options: dict[str, Any], expected: Any
) -> None:
    """Of the committed table, GPUs have options for steps with prefetch, for halves beside another axis, and for sums
    beside gathers; TPUs for sums over all devices, for gathers, and for all-to-alls of experts. All steps of a platform
    are compiled without one of XLA's passes.
    """
    monkeypatch.setattr(module, "has_option", lambda *_: True)
    found = xla_options(SimpleNamespace(platform=platform), plan_of(STRATEGIES[strategy], mesh, platform, **options))
    passes = {"gpu": "rematerialization", "tpu": "while-loop-all-reduce-code-motion"}
    assert found["xla_disable_hlo_passes"] == passes[platform]
    assert {LIMIT, BUFFERS, SUMS, GATHERS, EXCHANGES} & {*found} == {*expected}


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_equal_strategies_are_compiled_alike(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    """Strategies with the same placement on a mesh have the same XLA options, whatever their names.

    So has a strategy of the compiler as its twin, and a user's own as the one whose axes it has.
    """
    monkeypatch.setattr(module, "has_option", lambda *_: True)
    device, pairs = SimpleNamespace(platform=platform), set()
    said = {"prefetch": "off", "halves": "off", "reduce": "step", "dispatch": "all_to_all"}
    for one in STRATEGIES.values():
        for mesh in one.meshes(4):
            twin = one.twins.get(tuple(mesh.sizes))
            for other in (*STRATEGIES.values(), replace(one, name="mine")):
                if other.equals(one, mesh) or other.name == twin:
                    options = [{name: said[name] for name in said if name in each.options} for each in (one, other)]
                    found = [xla_options(device, plan_of(one, str(mesh), platform, **options[0]))]
                    found.append(xla_options(device, plan_of(other, str(mesh), platform, **options[1])))
                    assert found[0] == found[1], (one.name, other.name, str(mesh))
                    pairs.add((one.name, other.name))
    assert {("hsdp", "fsdp"), ("three_d", "hsdp"), ("three_d", "tensor"), ("fsdp", "mine"), ("auto", "fsdp")} <= pairs


def fusions(program: Any) -> int:
    """Fused instructions of a compiled program."""
    return program.as_text().count(" fusion(")


def test_a_step_is_compiled_with_the_options_of_its_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is called or lowered compiles itself with the table's options; those given to `compile` go first.

    Its `update` has none, so it can be part of another program. All compute the same.
    """
    table = Default("cpu", {"xla_disable_hlo_passes": "algsimp"}, "a test", sums_over_all_devices)
    config, train = replace(PRESETS["nano"], layers=1, embed=32, sequence=8, vocab=64), replace(TRAIN, batch_size=2)
    monkeypatch.setattr(module, "DEFAULTS", (table,))
    step = STRATEGIES["data"].build(config, "data=2", train)
    assert step.xla_options == table.options
    default = fusions(step.update.lower(step.state, step.batch).compile())
    assert fusions(step.lower().compile()) != default
    assert fusions(step.lower().compile({"xla_disable_hlo_passes": ""})) == default
    batch = step.place(np.zeros(step.batch.shape, np.int32))
    _, metrics = step(step.init(jax.random.key(0)), batch)
    _, inner = jax.jit(lambda *given: step.update(*given))(step.init(jax.random.key(0)), batch)
    np.testing.assert_allclose(metrics["loss"], inner["loss"], rtol=1e-6)


def test_given_options_go_before_those_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is compiled with the options of its strategy, unless the user gives others."""
    table = Default("cpu", {"xla_cpu_enable_fast_math": "False"}, "a test", gathers_weights)
    monkeypatch.setattr(module, "DEFAULTS", (table,))
    fast, size = {"xla_cpu_enable_fast_math": "true"}, {"xla_cpu_prefer_vector_width": "128"}
    small = replace(PRESETS["nano"], layers=1, embed=32, sequence=8, vocab=64)
    data, step = (STRATEGIES[name].build(small, f"{name}=4", replace(TRAIN, batch_size=4)) for name in ("data", "fsdp"))
    assert data.xla_options_with({}) == {}
    assert step.xla_options_with(size) == {"xla_cpu_enable_fast_math": False, **size}
    assert step.xla_options_with(fast) == {"xla_cpu_enable_fast_math": True}
    assert compile_step(step, tuple(fast.items())).options == {"xla_cpu_enable_fast_math": True}
