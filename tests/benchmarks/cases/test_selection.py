"""How the command-line options become a selection of cases, and which values are refused."""

import argparse
import copy
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.cases.case import Selection, default_strategies
from benchmarks.cases.selection import selected
from benchmarks.cli import values
from benchmarks.cli.parser import commas
from benchmarks.devices.topology import Topology

Select = Callable[..., Selection]


@pytest.fixture
def select(pytestconfig: pytest.Config) -> Select:
    """Build the selection of the default options, overridden by those given."""

    def select(**given: Any) -> Selection:
        option = copy.copy(pytestconfig.option)
        vars(option).update(given)
        return selected(option)

    return select


def test_default_is_everything_on_the_devices_that_are_there(select: Select) -> None:
    """By default all strategies run on 1, 2 and 8 devices with batch 16, and then a few with batch 8. Of those that a
    run must name, explicit runs beside auto; fsdp runs with Muon, too.
    """
    *cases, one, two, eight = select().cases()
    assert {(case.mesh.size, case.batch_size) for case in cases} == {(1, 8), (8, 8), (1, 16), (2, 16), (8, 16)}
    assert {case.strategy for case in cases} == {*default_strategies(), "explicit"} - {"expert"}
    assert [str(case) for case in cases if case.strategy == "explicit"] == ["explicit-fsdp=4,tensor=2-b16"]
    assert [str(case) for case in cases if case.options] == ["fsdp-fsdp=8-b16-optimizer=muon"]
    assert cases[0].batch_size == 16
    most_axes = {str(case.mesh) for case in cases if len(case.mesh.sizes) > 1}
    assert most_axes == {"data=4,fsdp=2", "data=2,pipeline=2,tensor=2", "fsdp=4,tensor=2"}
    assert {case.preset for case in cases} == {"nano"}
    # `expert` would do nothing for a model without experts.
    assert {case.preset for case in (one, two, eight)} == {"nano-moe"}
    spread = "data=1", "expert=2", "data=4,expert=2"
    assert tuple(str(case.mesh) for case in (one, two, eight)) == spread
    assert len({str(case) for case in (*cases, one, two, eight)}) == len(cases) + 3


@pytest.mark.parametrize(
    ("given", "presets"),
    [
        ({"strategy": ["expert"]}, {"nano-moe"}),
        ({"mesh": ["data=2,expert=4"]}, {"nano-moe"}),
        ({"strategy": ["fsdp"]}, {"nano"}),
        ({"preset": "nano"}, {"nano"}),
        ({"dtype": "bfloat16"}, {"nano"}),  # rounding sends tokens to other experts
        ({"model": [("tied", False), ("layers", 3), ("layers", 2)]}, {"nano,layers=2,tied=False"}),
    ],
    ids=str,
)
def test_the_model_is_a_mixture_where_expert_is_named(select: Select, given: dict[str, Any], presets: set[str]) -> None:
    """Without `--preset` the model is `nano`, or `nano-moe` for the strategy or the axis `expert`."""
    assert {case.preset for case in select(**given).cases()} == presets


@pytest.mark.parametrize("asked", [{"batch_size": [8, 16]}, {"devices": [1, 2, 8]}])
def test_selected_values_are_multiplied_out(select: Select, asked: dict[str, Any]) -> None:
    """Selected batch sizes and device counts are multiplied out."""
    found = {(case.mesh.size, case.batch_size) for case in select(**asked).cases()}
    assert found == {(devices, batch) for devices in (1, 2, 8) for batch in (8, 16)}


@pytest.mark.parametrize("strategy", [["fsdp"], ["single", "fsdp"], ["data", "fsdp"], []])
def test_every_number_of_devices_that_is_asked_for_has_a_case(select: Select, strategy: list[str]) -> None:
    """One device is `single`, whether or not it is named, so that a curve over devices begins with one."""
    cases = select(strategy=strategy, devices=[1, 2, 4]).cases()
    assert {case.mesh.size for case in cases} == {1, 2, 4}
    assert {case.strategy for case in cases if case.mesh.size == 1} == {"single"}


def test_a_topology_is_taken_whole(select: Select, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topology sets the device count to all of its devices, and the default batch to one sequence for each."""
    monkeypatch.setattr(Topology, "prepare", lambda self: None)  # JAX has started
    chosen = select(topology=Topology.parse("cpu:4"), strategy=["fsdp", "data"])
    assert [(str(case), str(case.topology)) for case in chosen.cases()] == [
        ("fsdp-fsdp=4-b4", "cpu:4"),
        ("data-data=4-b4", "cpu:4"),
    ]


def test_overridden_sizes_are_part_of_the_preset(select: Select) -> None:
    """A preset with an overridden size has the override in its name."""
    chosen = select(model=[("layers", 2), ("embed", 32)])
    assert (chosen.config.layers, chosen.config.embed) == (2, 32)
    assert chosen.preset == "nano,layers=2,embed=32"


def test_repeated_values_count_once(select: Select) -> None:
    """A value that is given twice counts once, so no case id occurs twice."""
    chosen = select(strategy=["fsdp", "fsdp"], batch_size=[8, 8], devices=[4, 4])
    assert [str(case) for case in chosen.cases()] == ["fsdp-fsdp=4-b8"]


def test_option_values_are_parsed_by_type(select: Select) -> None:
    """Values of --option are parsed as text, flag or count, and repeated options add their values."""
    given = [("sequence_parallel", "false"), ("unroll", "2,4"), ("unroll", "1,2")]
    assert select(option=given).options == (("sequence_parallel", (False,)), ("unroll", (2, 4, 1)))


def test_compiler_options_apply_to_every_case(select: Select) -> None:
    """Compiler options apply to every case and its reference; of a repeated one the last value counts."""
    given = [values.assignment(text) for text in ("xla_a=1", "xla_b=x,y", "xla_a=2")]
    cases = select(compiler_option=given, strategy=["fsdp", "data"]).cases()
    assert {case.compiler_options for case in cases} == {(("xla_a", "2"), ("xla_b", "x,y"))}
    assert {case.single.compiler_options for case in cases} == {(("xla_a", "2"), ("xla_b", "x,y"))}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"strategy": ["data"], "option": [("schedule", "gpipe")]},
            "--option schedule changes none of the selected steps; it is one of pipeline, three_d",
        ),
        (
            {"topology": Topology.parse("v5p:4x4x4"), "devices": [8]},
            "--topology v5p:4x4x4 always uses all of its 64 devices; remove --devices",
        ),
        (
            {"topology": Topology.parse("tpu7x:2x2x1"), "mesh": ["fsdp=8", "fsdp=4"]},
            "--mesh fsdp=4 takes 4 devices, and must take all 8 of tpu7x:2x2x1",
        ),
        ({"strategy": ["ddp"]}, "--strategy 'ddp' is not a strategy; use one of single, data, .* did you mean data"),
        ({"mesh": ["data:2"]}, "mesh 'data:2' cannot be read; write it as data=2,tensor=4"),
        ({"option": [("order", "1f1b")]}, "'order' is not an option of a strategy; use one of attention, unroll, "),
        ({"option": [("schedule", "2f2b")]}, "schedule='2f2b'; it can be gpipe, 1f1b"),
        ({"option": [("unroll", "0")]}, "--option unroll=0: '0' is not a count"),
        ({"option": [("sequence_parallel", "1")]}, "'1' is neither true nor false"),
        (
            {"option": [("schedule", "gpipe,unroll=2")]},
            "commas separate values of one option; pass --option schedule=gpipe --option unroll=2",
        ),
        (
            {"model": [("heads", 3)]},
            r"--preset nano --model heads=3: heads=3 does not divide embed=128; it can be 1, 2, 4",
        ),
        ({"mesh": ["data=2"], "devices": [2]}, r"remove --devices, or remove --mesh"),
        (
            {"strategy": ["single"], "devices": [8]},
            r"no case: .*--devices 8 \(single uses data\); name one by --mesh, or another .* by --devices; .*data=1",
        ),
        (
            {"strategy": ["hsdp"], "devices": [2, 8]},
            r"no case: none of hsdp has a mesh of its own for --devices 2 \(hsdp uses data, fsdp\); name one by --mesh",
        ),
        (
            {"mesh": ["data=2,context=1"]},
            r"no case: .*--mesh data=2,context=1 \(single uses data;.*; name a --strategy as well",
        ),
    ],
)
def test_impossible_options_are_refused(select: Select, given: dict[str, Any], message: str) -> None:
    """Options that select no case raise an error that says what could be selected."""
    with pytest.raises(ValueError, match=message):
        select(**given)


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (values.count, "0", r"'0' is not a count; use a whole number of at least 1"),
        (values.count, "two", r"'two' is not a count"),
        (commas(values.count), "8,", r"'' is not a count"),
        (values.rounds, "5", r"'5' rounds are too few for a 95% interval of a median; use 6 or more"),
        (values.seconds, "-1", r"'-1' is not a time; use a positive number of seconds"),
        (values.seconds, "soon", r"'soon' is not a time"),
        (values.seconds, "nan", r"'nan' is not a time"),
        (values.assignment, "xla_a", r"'xla_a' is not an option with a value; write it as NAME=VALUE"),
    ],
)
def test_bad_values_are_refused(read: Callable[[str], Any], text: str, message: str) -> None:
    """A value that cannot be parsed is refused with the values that can."""
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        read(text)


def test_attention_windows_are_swept_and_named(select: Select) -> None:
    """Each window is a case with the window in its name, and is compared with `single` with the same window."""
    cases = select(strategy=["fsdp"], devices=[8], batch_size=[8], attention_window=[16, None, 64]).cases()
    assert [str(case) for case in cases] == [
        "fsdp-fsdp=8-b8-attention_window=16",
        "fsdp-fsdp=8-b8",
        "fsdp-fsdp=8-b8-attention_window=64",
    ]
    assert [case.single.config.attention_window for case in cases] == [16, None, 64]


def test_routings_are_swept_and_named(select: Select) -> None:
    """Each forced routing is a case with the routing in its name, and so is its `single`."""
    given = {"preset": "nano-moe", "routing": ["learned", "zipf=1.2"]}
    cases = select(strategy=["expert"], devices=[2], batch_size=[8], **given).cases()
    learned = "expert-expert=2-b8-experts=8"
    assert [str(case) for case in cases] == [learned, f"{learned}-routing=zipf=1.2"]
    assert [case.single.config.routing for case in cases] == ["learned", "zipf=1.2"]
    with pytest.raises(ValueError, match="routing='even'; it can be learned, balanced, one or zipf=X"):
        select(preset="nano-moe", routing=["one", "even"])


def test_a_pattern_is_named(select: Select) -> None:
    """A stride, its pattern and its summary are in the name of each case."""
    pattern = [("attention_stride", 8), ("attention_pattern", "fixed"), ("attention_summary", 2)]
    (case,) = select(strategy=["fsdp"], devices=[8], batch_size=[8], model=pattern).cases()
    assert case.preset == "nano"
    assert str(case).endswith("b8-attention_stride=8-attention_pattern=fixed-attention_summary=2")


def test_attention_that_no_model_has_is_refused(select: Select) -> None:
    """Options that exclude each other are refused before anything is measured, whichever window of a list it is."""
    with pytest.raises(ValueError, match="attention_window=16 does not go with attention_pattern=fixed"):
        select(attention_window=[None, 16], model=[("attention_stride", 8), ("attention_pattern", "fixed")])
