"""Kernels of a compiled program by kind; what the step of one GPU launches and moves, compiled for an absent one."""

import dataclasses

import pytest

from benchmarks.devices.topology import Topology
from benchmarks.program.hlo import parse
from benchmarks.program.kernels import kernels_of, pass_bytes, totals
from strategies import PRESETS, STRATEGIES, MeshSpec, TrainConfig
from tests.benchmarks.program.programs import entry

LAYERS = 2
CONFIG = """backend_config={"gemm_backend_config":{"epilogue":"BIAS","dot_dimension_numbers":
{"lhs_contracting_dimensions":["1"]}}}""".replace("\n", "")
TRITON = 'backend_config={debug = false, grid_x = 8 : i32, name = "grouped_matmul_384"}'


def test_kernels_are_of_a_kind() -> None:
    """A matmul, a copy, and a pass over memory; what the optimizer's scope computes is the optimizer's."""
    scope = 'metadata={op_name="jit(update)/optimizer/mul"}'
    text = entry(
        "%a = f32[8,8] bitcast(%p)",
        f'%b = f32[8,8] custom-call(%a, %a), custom_call_target="__cublas$lt$matmul", {CONFIG}',
        "%c = f32[8,8] copy(%b)",
        "%d = f32[8,8] add(%c, %c)",
        "%e = f32[8,8] fusion(%d), kind=kLoop, calls=%squared",
        f'%f = f32[8,8] custom-call(%e), custom_call_target="__gpu$xla.gpu.triton", {TRITON}',
        before=f"%squared (q: f32[8,8]) -> f32[8,8] {{\n  %q = f32[8,8] parameter(0)\n"
        f"  ROOT %s = f32[8,8] multiply(%q, %q), {scope}\n}}\n\n",
    )
    kernels = kernels_of(text)
    assert [(each.name, each.kind, each.epilogue) for each in kernels] == [
        ("b", "matmul", "BIAS"),
        ("c", "copy", ""),
        ("d", "pass", ""),
        ("e", "optimizer", ""),
        ("f", "matmul", ""),
    ]
    assert totals(kernels)["copy"] == (1, 2 * 4 * 64)
    assert pass_bytes(kernels) == (2 + 3 + 2) * 4 * 64


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """The programs of a step of gpt2 with two layers, by the kernel of attention."""
    config = dataclasses.replace(PRESETS["gpt2"], layers=LAYERS)
    one, devices = MeshSpec.parse("data=1"), Topology.parse("h100:1x1").devices()
    found = {}
    for attention in ("cudnn", "xla"):
        train = TrainConfig(batch_size=16, dtype="bfloat16", attention=attention)
        step = STRATEGIES["single"].build(config, one, train, devices)
        found[attention] = step.lower().compile(step.xla_options_with({})).as_text() or ""
    return found


@pytest.mark.cuda
def test_biases_are_epilogues(texts: dict[str, str]) -> None:
    """Of a layer's projections and MLP: three of queries, keys and values; GELU's with the input that it keeps."""
    epilogues = [each.epilogue for each in kernels_of(texts["cudnn"])]
    assert epilogues.count("BIAS_GELU_AUX") == LAYERS
    assert epilogues.count("BIAS") == 5 * LAYERS


@pytest.mark.cuda
@pytest.mark.parametrize("attention", ["cudnn", "xla"])
def test_no_matmul_with_a_bias_has_a_factor(attention: str, texts: dict[str, str]) -> None:
    """XLA folds factors into matmuls that add a bias, and does not multiply the bias (openxla 46110)."""
    computations = parse(texts[attention]).computations.values()
    calls = [each for computation in computations for each in computation.instructions.values() if each.target]
    configs = [config for each in calls if (config := each.configured("gemm_backend_config"))]
    factors = [config["alpha_real"] for config in configs if "BIAS" in config["epilogue"]]
    assert factors
    assert set(factors) == {1}
