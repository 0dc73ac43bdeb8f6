"""Other values of options are tried on the best step as compiled."""

from dataclasses import replace

from benchmarks.cases.case import Case
from benchmarks.devices.topology import Topology
from benchmarks.explain.trials import INEXACT, trial_lines, trials, varied
from strategies import GPTConfig, MeshSpec

CONFIG = GPTConfig(layers=8, embed=16, heads=2, vocab=256, sequence=8)
BEST = Case("fsdp", MeshSpec.parse("fsdp=4"), "tiny", CONFIG, 4, 1, "bfloat16", "full", (), Topology.parse("v5e:2x2"))
SAVED = {("reduce_dtype", "bfloat16"): 0.15, ("unroll", 2): 0.05, ("unroll", 4): -0.1}
"""Seconds that a value saves of one second."""


def compiled(cases):
    """Each option saves its time, and another mesh half of it."""
    for case in cases:
        seconds = (1 - sum(SAVED[each] for each in case.options)) / (1 if case.mesh == BEST.mesh else 2)
        yield case, seconds, 1, ""


def test_what_saves_alone_is_tried_together() -> None:
    """Every value alone, then the best of each option that saves time; the fastest comes first."""
    found = trials(BEST, 1.0, compiled)
    changes = [each.changes for each in found]
    assert changes[0] == {"reduce_dtype": "bfloat16", "unroll": 2}
    assert changes[1:] == [{"reduce_dtype": "bfloat16"}, {"unroll": 2}, {"unroll": 4}]
    assert [each.seconds for each in found] == sorted(each.seconds or 0 for each in found)
    lines = trial_lines(BEST, 1.0, found)
    assert lines[2].split() == ["reduce_dtype=bfloat16", "unroll=2", "800.0", "20.0%", "0.0"]
    assert lines[-1] == INEXACT


def test_values_that_are_named_or_without_effect_are_not_tried() -> None:
    """Those that the user named stay; float32 sums in float32, codes have no sums; iterations have as many layers."""
    assert varied(BEST) == {"reduce_dtype": ("bfloat16",), "unroll": (2, 4)}
    assert varied(BEST, ["unroll"]) == {"reduce_dtype": ("bfloat16",)}
    assert varied(replace(BEST, dtype="float32")) == {"unroll": (2, 4)}
    compressed = replace(BEST, strategy="data", mesh=MeshSpec.parse("data=4"), options=(("compression", "int8"),))
    assert varied(compressed) == {"unroll": (2, 4)}
    assert varied(replace(BEST, config=replace(CONFIG, layers=6))) == {"reduce_dtype": ("bfloat16",), "unroll": (2,)}
    assert varied(replace(BEST, config=replace(CONFIG, layers=7))) == {"reduce_dtype": ("bfloat16",)}
    assert varied(replace(BEST, config=replace(CONFIG, layers=2))) == {"reduce_dtype": ("bfloat16",)}
    assert trials(replace(BEST, dtype="float32"), 1.0, compiled, ["unroll"]) == []


def test_what_has_no_time_comes_last() -> None:
    """A step that was not compiled saves nothing, and says why."""
    found = trials(BEST, 1.0, lambda cases: [(case, None, None, "not compiled") for case in cases])
    assert len(found) == 3
    assert {each.as_row(1.0)["saves"] for each in found} == {None}
    assert all(line.endswith("not compiled") for line in trial_lines(BEST, 1.0, found)[2:5])


def test_what_a_page_advises_is_compared_and_not_combined() -> None:
    """Other meshes and compiler options are trials of their own; the changes of options are not applied to them."""
    others = [{"mesh": MeshSpec.parse("fsdp=2")}, {"compiler_options": (("xla_some", "true"),)}]
    found = trials(BEST, 1.0, compiled, ["unroll"], others)
    assert [(dict(each.changes), each.seconds) for each in found] == [
        (others[0], 0.5),
        ({"reduce_dtype": "bfloat16"}, 0.85),
        (others[1], 1.0),
    ]
    lines = trial_lines(BEST, 1.0, found)
    assert lines[2].startswith("mesh=fsdp=2 ")
    assert lines[4].startswith("the compiler options above ")
