"""`--remat auto` recomputes little if that fits by formulas, otherwise everything."""

import dataclasses
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from benchmarks.cases.case import ONE_DEVICE, Case
from benchmarks.devices.topology import Topology
from benchmarks.program.explanations import cost_of
from benchmarks.run import remat as module
from benchmarks.run.remat import CHOICES, resolved_remats
from benchmarks.simulate.machines import as_json, nearest_machine, read_file
from strategies import PRESETS, MeshSpec
from strategies.config import Remat
from tests.commands import ended

ONE, EIGHT = Topology.parse("h100:1x1"), Topology.parse("h100:1x8")
GPT2 = Case("single", ONE_DEVICE, "gpt2", PRESETS["gpt2"], 256, 1, "bfloat16", "auto", topology=ONE)
"""A step on one H100 that fits with full recomputation only."""


def found(**changes: Any) -> str:
    """What the step has in place of `auto`, with other fields."""
    (case,) = resolved_remats([dataclasses.replace(GPT2, **changes)])
    return case.remat


def test_it_recomputes_little_if_that_fits() -> None:
    """And everything where only that fits, or nothing does; never nothing, which is slower."""
    assert {*CHOICES} == {*get_args(Remat)} - {"none"}
    assert [found(batch_size=size) for size in (16, 128, 256, 4096)] == ["dots", "dots", "full", "full"]
    machine = nearest_machine("h100", "meshmark")
    needed = {remat: cost_of(dataclasses.replace(GPT2, remat=remat)) for remat in CHOICES}
    assert [cost.needed_bytes <= machine.usable_bytes for cost in needed.values() if cost] == [False, True]


def test_cases_with_one_reference_have_the_same() -> None:
    """What one device needs, its comparison on eight has, too; other models and batches choose for themselves."""
    spread = dataclasses.replace(GPT2, strategy="fsdp", mesh=MeshSpec.parse("fsdp=8"), topology=EIGHT)
    alone = dataclasses.replace(GPT2, topology=EIGHT)
    small = dataclasses.replace(alone, batch_size=16)
    (alone, spread, small), (by_itself,) = resolved_remats([alone, spread, small]), resolved_remats([spread])
    assert alone == spread.single
    assert (alone.remat, spread.remat, small.remat, by_itself.remat) == ("full", "full", "dots", "dots")


def test_what_nothing_predicts_has_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices without a machine, virtual ones, infeasible cases, and cases without formulas; `auto` has its twin's."""
    assert found(topology=Topology.parse("cpu:1")) == found(topology=None) == CHOICES[0]
    assert found(microbatches=7) == CHOICES[0]
    spread = {"mesh": MeshSpec.parse("fsdp=2"), "topology": Topology.parse("h100:1x2"), "batch_size": 512}
    assert found(**spread, strategy="auto") == found(**spread, strategy="fsdp") == "full"
    monkeypatch.setattr(module, "cost_of", lambda case: None)
    assert found() == CHOICES[0]


def test_more_memory_recomputes_less(tmp_path: Path) -> None:
    """That of other devices, or of the machine file that is named; a case that names its own keeps it."""
    assert found(topology=Topology.parse("b200:1x1")) == "dots"
    large = msgspec.structs.replace(read_file("meshmark_gpus"), specifications={"memory_bytes": 2**40})
    path = tmp_path / "large.json"
    path.write_text(as_json(large))
    of_each = {name: resolved_remats([GPT2], name)[0].remat for name in ("meshmark_gpus", str(path))}
    assert of_each == {"meshmark_gpus": "full", str(path): "dots"}
    own = dataclasses.replace(GPT2, remat="none")
    assert resolved_remats([own]) == [own]


def test_commands_take_it() -> None:
    """`meshmark compile` says what it has; `search` varies it anyway, and refuses it."""
    tiny = "--model=layers=2,embed=16,heads=2,vocab=256,sequence=16"
    done = ended(["compile", "--topology=cpu:8", "--strategy=data", "--batch-size=8", "--remat=auto", tiny])
    assert done.code == 0
    assert "remat=dots" in done.out
    refused = ended(["search", "--topology=h100:1x2", "--batch-size=8", "--remat=auto", tiny])
    assert refused.code == 2
    assert "rematerialisation policy" in refused.err
