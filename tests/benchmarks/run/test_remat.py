"""`--remat auto` is the fastest rematerialisation by prediction, of those that fit."""

import dataclasses
from typing import get_args

import pytest

from benchmarks.cases.case import ONE_DEVICE, Case
from benchmarks.devices.topology import Topology
from benchmarks.run.remat import CHOICES, resolved_remat
from benchmarks.search.candidates import SearchSpace
from benchmarks.search.ranking import ranked
from benchmarks.simulate.machines import nearest_machine
from strategies import PRESETS, MeshSpec
from strategies.config import Remat
from tests.commands import ended

H100 = Topology.parse("h100:1x1")
GPT2 = Case("single", ONE_DEVICE, "gpt2", PRESETS["gpt2"], 16, 1, "bfloat16", "auto", topology=H100)


def of_batch(batch_size: int) -> Case:
    """A step of gpt2 on one H100."""
    return dataclasses.replace(GPT2, batch_size=batch_size)


@pytest.mark.parametrize("batch_size", [8, 16, 64, 128, 256])
def test_it_is_what_a_search_ranks_first(batch_size: int) -> None:
    """A search of the same step with each rematerialisation finds the same, or that nothing fits."""
    space = SearchSpace(H100, "gpt2", PRESETS["gpt2"], batch_size, "bfloat16", ("single",), (ONE_DEVICE,), (1,))
    best = ranked(space.cases(), nearest_machine("h100", "meshmark")).fitting
    assert resolved_remat(of_batch(batch_size)).remat == (best[0].case.remat if best else CHOICES[-1])


def test_a_large_batch_recomputes_more() -> None:
    """Residuals of ever more sequences fit no longer; beyond what fits at all the least memory is tried."""
    assert {*CHOICES} == {*get_args(Remat)}
    found = [resolved_remat(of_batch(size)).remat for size in (16, 64, 128, 4096)]
    assert found == sorted(found, key=("none", "dots", "full").index)
    assert (found[0], found[-1]) == ("dots", "full")


def test_what_nothing_predicts_has_the_default() -> None:
    """Virtual devices, strategies without formulas, infeasible cases; and a case that names its own keeps it."""
    default, eight = CHOICES[0], MeshSpec.parse("fsdp=8")
    virtual = dataclasses.replace(GPT2, topology=Topology.parse("cpu:8"), mesh=eight, strategy="fsdp")
    infeasible = dataclasses.replace(GPT2, microbatches=5)
    for case in (virtual, infeasible, dataclasses.replace(GPT2, topology=None)):
        assert resolved_remat(case).remat == default
    own = dataclasses.replace(GPT2, remat="none")
    assert resolved_remat(own) is own
    whole = dataclasses.replace(GPT2, strategy="auto", mesh=eight, topology=Topology.parse("h100:1x8"))
    by_hand = dataclasses.replace(whole, strategy="fsdp")
    assert resolved_remat(whole).remat == resolved_remat(by_hand).remat


def test_commands_take_it() -> None:
    """`meshmark compile` says what it found; `search` varies it anyway, and refuses it."""
    tiny = "--model=layers=2,embed=16,heads=2,vocab=256,sequence=16"
    done = ended(["compile", "--topology=cpu:8", "--strategy=data", "--batch-size=8", "--remat=auto", tiny])
    assert done.code == 0
    assert "remat=dots" in done.out
    refused = ended(["search", "--topology=h100:1x2", "--batch-size=8", "--remat=auto", tiny])
    assert refused.code == 2
    assert "rematerialisation policy" in refused.err
