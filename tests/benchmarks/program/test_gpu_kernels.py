"""Kernels of a compiled program by kind; what the step of one GPU launches and moves, compiled for an absent one."""

import dataclasses

import pytest

from benchmarks.devices.topology import Topology
from benchmarks.program.kernels import Kernel, kernels_of, pass_bytes, totals
from strategies import PRESETS, STRATEGIES, MeshSpec, TrainConfig
from tests.benchmarks.program.programs import entry

LAYERS = 2
CONFIG = """backend_config={"gemm_backend_config":{"epilogue":"BIAS","dot_dimension_numbers":
{"lhs_contracting_dimensions":["1"]}}}""".replace("\n", "")


def test_kernels_are_of_a_kind() -> None:
    """A matmul, a copy, and a pass over memory; what the optimizer's scope computes is the optimizer's."""
    scope = 'metadata={op_name="jit(update)/optimizer/mul"}'
    text = entry(
        "%a = f32[8,8] bitcast(%p)",
        f'%b = f32[8,8] custom-call(%a, %a), custom_call_target="__cublas$lt$matmul", {CONFIG}',
        "%c = f32[8,8] copy(%b)",
        "%d = f32[8,8] add(%c, %c)",
        "%e = f32[8,8] fusion(%d), kind=kLoop, calls=%squared",
        before=f"%squared (q: f32[8,8]) -> f32[8,8] {{\n  %q = f32[8,8] parameter(0)\n"
        f"  ROOT %s = f32[8,8] multiply(%q, %q), {scope}\n}}\n\n",
    )
    kernels = kernels_of(text)
    assert [(each.name, each.kind, each.epilogue) for each in kernels] == [
        ("b", "matmul", "BIAS"),
        ("c", "copy", ""),
        ("d", "pass", ""),
        ("e", "optimizer", ""),
    ]
    assert totals(kernels)["copy"] == (1, 2 * 4 * 64)
    assert pass_bytes(kernels) == (2 + 3 + 2) * 4 * 64


@pytest.fixture(scope="module")
def kernels() -> list[Kernel]:
    """Those of a step of gpt2 with two layers."""
    config = dataclasses.replace(PRESETS["gpt2"], layers=LAYERS)
    train, one = TrainConfig(batch_size=16, dtype="bfloat16"), MeshSpec.parse("data=1")
    step = STRATEGIES["single"].build(config, one, train, Topology.parse("h100:1x1").devices())
    return kernels_of(step.lower().compile(step.xla_options_with({})).as_text() or "")


@pytest.mark.cuda
def test_biases_are_epilogues(kernels: list[Kernel]) -> None:
    """Of a layer's projections and MLP: three of queries, keys and values; GELU's with the input that it keeps."""
    epilogues = [each.epilogue for each in kernels]
    assert epilogues.count("BIAS_GELU_AUX") == LAYERS
    assert epilogues.count("BIAS") == 5 * LAYERS
