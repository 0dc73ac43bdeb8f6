"""`search --stack` ranks the meshes of other stacks, priced as `meshmark predict` prices published runs of them."""

import csv
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.devices.topology import Topology
from benchmarks.search.ranking import candidate_of
from benchmarks.search.stacks import MODELS, SEARCHED, StackSpace, machine_under, row_of, stack_named
from benchmarks.simulate.folding import AXES
from benchmarks.simulate.predict import predicted_rows
from benchmarks.simulate.published import config_of
from strategies import PRESETS, MeshSpec
from tests.commands import command

H100S = Topology.parse("h100:8x8")
PUBLISHED = Path("results/published/dgxc_benchmarking.csv")
main = command("search")


def space(preset="llama3-70b", stack="megatron", topology=H100S, batch_size=128, **restricted):
    """The search space of a stack."""
    stack = stack_named(stack, topology.kind)
    return StackSpace(topology, preset, PRESETS[preset], batch_size, "bfloat16", stack=stack, **restricted)


def test_a_published_configuration_is_a_candidate_with_the_seconds_of_its_row():
    """The mesh of NVIDIA's run of Llama 3.1 70B on 64 H100s is a candidate, as `meshmark predict` predicts its row."""
    with PUBLISHED.open() as file:
        rows = [row for row in csv.DictReader(file) if (row["model"], row["devices"]) == ("llama3.1-70b", "64")]
    (row,) = [row for row in rows if row["dtype"] == "bf16"]
    mesh = MeshSpec.parse("data=2,pipeline=4,context=2,tensor=4")
    cases = space(meshes=(mesh,), microbatches=(64,), remats=("none",)).cases()
    (case,) = [case for case in cases if dict(case.options)["virtual_stages"] == int(row["virtual_stages"])]
    found = candidate_of(case, machine_under(stack_named("megatron", "h100"), "h100", 8, ""))
    assert found.step_seconds == predicted_rows([row])[0].step_seconds


def test_a_row_of_a_case_has_the_model_of_the_case():
    """All sizes of a preset survive the columns of published tables. Dense layers are those of the row."""
    for preset, config in PRESETS.items():
        if config.block in MODELS and not (config.attention_window or config.full_attention_every):
            case = next(space(preset, remats=("full",)).cases())
            row = row_of(case, stack_named("megatron", "h100"))
            assert config_of(row).dim_sizes == replace(config, dense_layers=0).dim_sizes, preset
            assert (row.dense_layers or 0) == config.dense_layers, preset


def test_meshes_are_those_of_the_stack():
    """They take all devices, have axes that the stack combines, and keep the tensor axis inside a host."""
    for name in SEARCHED:
        stack = stack_named(name, "h100")
        meshes = [mesh for _, mesh in space(stack=name).strategy_meshes()]
        assert meshes
        for mesh in meshes:
            assert mesh.size == 64
            assert mesh.sizes.get("tensor", 1) <= 8
            assert any({*mesh.sizes} <= {*axes} for axes in stack.meshes)


@pytest.mark.parametrize(("stack", "own"), [("megatron", False), ("torchtitan", False), ("maxtext", True)])
def test_experts_are_split_as_the_stack_splits_them(stack, own):
    """MaxText has an axis for experts; elsewhere devices of other axes split them. Their number divides eight."""
    cases = [*space("mixtral-8x7b", stack, remats=("full",)).cases()]
    assert any("expert" in case.mesh.sizes for case in cases) == own
    sizes = {dict(case.options).get("expert") or case.mesh.sizes.get("expert") or 1 for case in cases}
    assert sizes == {1, 2, 4, 8}
    for case in cases[::20]:
        row = row_of(case, stack_named(stack, "h100"))
        assert row.own_experts * math.prod(getattr(row, axis) for axis in AXES) == 64


def test_chunks_divide_the_layers_of_a_stage():
    """The 80 layers of Llama 3 70B, or 82 with embedding and loss, are split equally over all chunks."""
    of_meshes = {"data=64": [None], "pipeline=4,tensor=8": [1, 2, 4, 5, 10, 20], "pipeline=2,tensor=8": None}
    of_meshes["pipeline=2,tensor=8"] = [1, 2, 4, 5, 8, 10, 20, 40]  # and 41 parts have less than a layer each
    for mesh, chunks in of_meshes.items():
        assert [*space().chunks(MeshSpec.parse(mesh))] == chunks


ASKED = ("--preset=llama3-8b", "--batch-size=64", "--topology=h100:1x8", "--stack=megatron")


def test_the_document_has_the_meshes_and_options_of_the_stack(tmp_path, capsys):
    """Candidates have the name of the stack and its options, and are predicted by its machine file."""
    path, trace = tmp_path / "found.json", tmp_path / "trace.json"
    given = ("--mesh=data=4,tensor=2", "--mesh=pipeline=2,tensor=4", "--remat=none", "--microbatches=16")
    assert main([*ASKED, *given, f"--json={path}", f"--trace={trace}"]) == 0
    found = json.loads(path.read_text())
    assert found["machine"] == "megatron_bridge_h100"
    assert {row["strategy"] for row in found["candidates"]} == {"Megatron-Bridge"}
    options = {row["mesh"]: set() for row in found["candidates"]}
    for row in found["candidates"]:
        options[row["mesh"]].add(row["options"].get("virtual_stages"))
    assert options == {"data=4,tensor=2": {None}, "pipeline=2,tensor=4": {1, 2, 4, 8, 16}}
    assert trace.exists()
    assert "at most 67.2 of 79.1 GiB; they are assumed to be within 15%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (("--stack=deepspeed",), "--stack deepspeed: it can be meshmark, megatron, megatron-core, torchtitan"),
        (("--topology=v5p:2x2x2",), "no machine file has v5p under Megatron-Bridge; there are: .*MaxText on .*v5p"),
        (("--compile=1",), "--compile is of meshmark's own steps; leave it or --stack megatron out"),
        (("--strategy=fsdp",), "--strategy is of meshmark's own steps"),
        (("--machine=meshmark_gpus",), "machine meshmark_gpus is one of meshmark, and --stack is Megatron-Bridge"),
        (("--attention-window=128",), "attention is dense; leave window and stride out"),
        (("--preset=olmoe-1b-7b",), "there are no formulas for olmoe blocks; there are for gpt2, llama"),
        (("--dtype=float32",), "dtype float32 is not known; float16 and bfloat16 are"),
    ],
)
def test_what_a_stack_does_not_have_is_refused(given, problem, capsys):
    """The message names what there is."""
    with pytest.raises(SystemExit):
        main([*ASKED, *given])
    assert re.search(problem, capsys.readouterr().err)
