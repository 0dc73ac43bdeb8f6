"""The cases that a selection of strategies, meshes and sizes asks for."""

import dataclasses
from typing import Any

import pytest

from benchmarks.cases.case import Case, Selection, default_strategies
from strategies import PRESETS, STRATEGIES, Infeasible, MeshSpec
from strategies.registry import distinct_meshes

FSDP = MeshSpec.parse("fsdp=8")
EVERYTHING = Selection(
    strategies=(),
    meshes=(),
    devices=(1, 2, 8),
    batch_sizes=(8, 16),
    microbatches=(),
    preset="nano",
    config=PRESETS["nano"],
    dtype="float32",
    remat="dots",
)


def ids(**selection: Any) -> list[str]:
    """The ids of the cases that a selection asks for."""
    return [str(case) for case in dataclasses.replace(EVERYTHING, **selection).cases()]


def test_id_names_strategy_mesh_and_batch() -> None:
    """A case's id is its strategy, its mesh in the form `MeshSpec.parse` reads, and its global batch size."""
    assert str(Case("fsdp", FSDP, "nano", PRESETS["nano"], 16, 1, "float32", "dots")) == "fsdp-fsdp=8-b16"


def test_default_selection_has_every_strategy_count_and_batch() -> None:
    """The default selection has every strategy, every device count and every batch size, and no case twice.

    But for `expert`, which equals `data` unless the model has experts.
    """
    cases = EVERYTHING.cases()
    assert {case.strategy for case in cases} == {*default_strategies()} - {"expert"}
    with_experts = dataclasses.replace(EVERYTHING, preset="nano-moe", config=PRESETS["nano-moe"])
    assert {case.strategy for case in with_experts.cases()} == {*default_strategies()}
    assert {(case.mesh.size, case.batch_size) for case in cases} == {(n, b) for n in (1, 2, 8) for b in (8, 16)}
    assert len(set(map(str, cases))) == len(cases)


def test_sparse_selection_has_every_strategy_count_and_batch() -> None:
    """A default run has every strategy, count and batch size: one mesh for each strategy and count, and with the small
    batch one strategy for each axis that splits the batch. Those are cases of the whole selection.
    """
    cases = dataclasses.replace(EVERYTHING, sparse=True).cases()
    assert set(map(str, cases)) < set(ids())
    assert {case.strategy for case in cases if case.batch_size == 16} == {*default_strategies()} - {"expert"}
    placed = [(case.strategy, case.mesh.size) for case in cases if case.batch_size == 16]
    assert {size for _, size in placed} == {1, 2, 8}
    assert len(set(placed)) == len(placed)
    small = [str(case.mesh) for case in cases if case.batch_size == 8]
    assert small == ["data=1", "data=8", "fsdp=8", "pipeline=8"]


def test_sparse_selection_of_named_strategies_has_all_their_meshes() -> None:
    """Strategies that are named have all meshes with the largest batch, and the widest with the small one."""
    chosen = ids(strategies=("hsdp",), sparse=True)
    assert chosen == ["hsdp-data=4,fsdp=2-b8", "hsdp-data=2,fsdp=4-b16", "hsdp-data=4,fsdp=2-b16"]


@pytest.mark.parametrize("case", EVERYTHING.cases(), ids=str)
def test_default_cases_are_feasible(case: Case) -> None:
    """Every default case builds: its mesh, batch and microbatches fit the default model."""
    assert case.build().tokens_per_step == case.batch_size * case.config.sequence


def test_options_multiply_the_cases_of_the_strategies_that_have_them() -> None:
    """Each value of an option makes a case with the value in its id; a strategy without the option keeps its cases."""
    options = ("schedule", ("gpipe", "1f1b")), ("unroll", (2,))
    asked = ids(strategies=("single", "pipeline"), devices=(1, 2), batch_sizes=(8,), options=options)
    assert asked == [
        "single-data=1-b8-unroll=2",
        "pipeline-pipeline=2-b8-schedule=gpipe-unroll=2",
        "pipeline-pipeline=2-b8-schedule=1f1b-unroll=2",
    ]


def test_options_reach_the_step_and_the_common_ones_its_reference() -> None:
    """A step is built with its case's options, and its single-device reference with those that `single` has, too."""
    options = ("schedule", "gpipe"), ("unroll", 2)
    mesh = MeshSpec.parse("pipeline=2")
    case = Case("pipeline", mesh, "nano", PRESETS["nano"], 8, 4, "float32", "dots", options)
    assert (case.build().train.schedule, case.build().train.unroll) == ("gpipe", 2)
    assert str(case.single) == "single-data=1-b8-unroll=2"


def test_microbatches_that_are_not_the_default_are_part_of_the_id() -> None:
    """Each microbatch count is a case, named in its id unless it is the default; the reference never accumulates."""
    strategies, counts = ("single", "pipeline"), (4, 16)
    asked = ids(strategies=strategies, devices=(1, 8), batch_sizes=(16,), microbatches=counts)
    assert asked == [
        "single-data=1-b16-microbatches=4",
        "single-data=1-b16-microbatches=16",
        "pipeline-pipeline=8-b16-microbatches=4",
        "pipeline-pipeline=8-b16",
    ]
    chosen = dataclasses.replace(EVERYTHING, strategies=strategies, microbatches=counts, batch_sizes=(16,)).cases()
    assert {str(case.single) for case in chosen} == {"single-data=1-b16"}


def test_zero2_accumulates_where_it_can() -> None:
    """zero2 defaults to two microbatches, and to one where a device has a single sequence or an odd number of them."""
    assert [STRATEGIES["zero2"].default_microbatches("data=8", batch) for batch in (8, 16, 24)] == [1, 2, 1]


def test_mesh_alone_selects_its_strategies() -> None:
    """A mesh given without a strategy selects every strategy that has it among its own meshes."""
    assert ids(meshes=(FSDP,), batch_sizes=(8,)) == ["fsdp-fsdp=8-b8", "auto-fsdp=8-b8"]


def test_strategy_and_mesh_that_are_both_named_make_a_case() -> None:
    """A strategy and a mesh that are both named make a case even if they do not fit: its row says why."""
    assert ids(strategies=("tensor",), meshes=(FSDP,), batch_sizes=(8,)) == ["tensor-fsdp=8-b8"]


def test_single_comes_first_in_whatever_order_it_is_asked_for() -> None:
    """`single` comes first in any selection, because the times of other rows are relative to it."""
    asked = ids(strategies=("fsdp", "single"), devices=(1, 8), batch_sizes=(8,))
    assert asked == ["single-data=1-b8", "fsdp-fsdp=8-b8"]


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_three_d_has_no_mesh_of_a_simpler_strategy(devices: int) -> None:
    """Every mesh of three_d has at least two axes and is no mesh of hsdp."""
    for mesh in distinct_meshes("three_d", devices):
        assert len(mesh.sizes) > 1
        assert mesh not in STRATEGIES["hsdp"].meshes(devices)


def test_three_d_spans_its_usual_axes_unless_a_mesh_is_named() -> None:
    """By default three_d spans data, pipeline and tensor; any other mesh of several axes is its case when named."""
    default = ids(strategies=("three_d",), devices=(4, 8), batch_sizes=(8,))
    assert default == [
        "three_d-pipeline=2,tensor=2-b8",
        "three_d-data=2,tensor=2-b8",
        "three_d-data=2,pipeline=2-b8",
        "three_d-pipeline=2,tensor=4-b8",
        "three_d-pipeline=4,tensor=2-b8",
        "three_d-data=2,tensor=4-b8",
        "three_d-data=2,pipeline=2,tensor=2-b8",
        "three_d-data=2,pipeline=4-b8",
        "three_d-data=4,tensor=2-b8",
        "three_d-data=4,pipeline=2-b8",
    ]
    other = MeshSpec.parse("data=2,fsdp=2,tensor=2")
    assert ids(meshes=(other,), batch_sizes=(8,)) == ["three_d-data=2,fsdp=2,tensor=2-b8"]
    assert ids(strategies=("three_d",), meshes=(other,), batch_sizes=(8,)) == ["three_d-data=2,fsdp=2,tensor=2-b8"]


def test_hsdp_has_no_mesh_of_data_or_fsdp() -> None:
    """Every mesh of hsdp has two or more groups of two or more devices; others are meshes of data or of fsdp."""
    assert [str(mesh) for n in (2, 4, 8) for mesh in distinct_meshes("hsdp", n)] == [
        "data=2,fsdp=2",
        "data=2,fsdp=4",
        "data=4,fsdp=2",
    ]


def test_auto_shares_meshes_and_takes_none_away() -> None:
    """auto has meshes of hand-written strategies, which keep them, and by default only those of most devices."""
    assert [case for case in ids(batch_sizes=(8,)) if case.startswith("auto")] == [
        "auto-tensor=8-b8",
        "auto-fsdp=4,tensor=2-b8",
        "auto-fsdp=8-b8",
        "auto-data=8-b8",
    ]
    assert len(ids(strategies=("auto",), devices=(1, 2, 8), batch_sizes=(8,))) == 3 + 5
    assert [str(mesh) for mesh in distinct_meshes("data", 8)] == ["data=8"]


@pytest.mark.parametrize(
    ("mesh", "twin"), [("data=8", "data"), ("fsdp=8", "fsdp"), ("tensor=8", "tensor"), ("fsdp=4,tensor=2", "three_d")]
)
def test_twin_is_the_hand_written_strategy_on_the_same_mesh(mesh: str, twin: str) -> None:
    """The twin of auto is the hand-written strategy on the same mesh, with the options it has, and has no twin."""
    options = ("sequence_parallel", False), ("unroll", 2)
    auto = Case("auto", MeshSpec.parse(mesh), "nano", PRESETS["nano"], 16, 2, "float32", "dots", options)
    kept = options if "tensor" in mesh else options[1:]
    assert auto.twin == dataclasses.replace(auto, strategy=twin, options=kept)
    assert auto.twin
    assert (auto.twin.twin, auto.twin.single) == (None, auto.single)


def test_a_twin_that_is_infeasible_refuses_no_case():
    """With more experts than bfloat16 can number the twin of auto cannot exchange tokens, but auto can."""
    config = dataclasses.replace(PRESETS["nano-moe"], experts=514, capacity_factor=None)
    auto = Case("auto", MeshSpec.parse("expert=2"), "nano-moe", config, 16, 1, "bfloat16", "dots")
    assert auto.twin
    with pytest.raises(Infeasible):
        _ = auto.twin.resolved
    assert auto.twin.step_key == (auto.twin, auto.twin.training())


@pytest.mark.parametrize(("dispatch", "further"), [((), 2), (("all_to_all",), 0), (("auto", "all_to_all"), 0)], ids=str)
def test_a_run_has_the_twin_of_each_case(dispatch: tuple[str, ...], further: int) -> None:
    """In a run of all strategies each case of auto has its twin, whether or not `dispatch` is given, and once.

    Where the hand-written strategy gathers tokens by default, here on two devices, the twin is a further case.
    """
    meshes = tuple(map(MeshSpec.parse, ("fsdp=8", "expert=8", "fsdp=2,expert=4", "data=4,expert=2", "fsdp=4,expert=2")))
    options = (("dispatch", dispatch), ("unroll", (2,))) if dispatch else (("unroll", (2,)),)
    names = tuple(name for name in STRATEGIES if name != "explicit")  # whose cases have the same twins
    chosen = dataclasses.replace(EVERYTHING, batch_sizes=(16,), strategies=names, meshes=meshes)
    mixture = dataclasses.replace(chosen, options=options, preset="nano-moe", config=PRESETS["nano-moe"])
    cases = mixture.cases()
    twins = [case.twin for case in cases if case.twin]
    assert len(twins) == len(meshes)
    known = [case.step_key for case in cases if case.strategy in ("fsdp", "expert", "three_d")]
    assert {twin.step_key for twin in twins} <= {*known}
    selected = {(case.strategy, case.mesh, case.options) for case in cases}
    assert len(cases) == len(selected)
    by_default = dataclasses.replace(mixture, strategies=tuple(name for name in names if name != "auto")).cases()
    assert len(cases) - len(meshes) - len(by_default) == further


@pytest.mark.parametrize("batch_size", [8, 16, 64])
@pytest.mark.parametrize("mesh", ["pipeline=2", "pipeline=8", "data=2,pipeline=4", "data=2,fsdp=2,pipeline=2"])
def test_microbatches_fill_the_pipeline_and_divide_the_batch(mesh: str, batch_size: int) -> None:
    """The default number of microbatches is one or two for each stage and divides the batch."""
    spec = MeshSpec.parse(mesh)
    microbatches = STRATEGIES["three_d"].default_microbatches(spec, batch_size)
    assert microbatches in (spec.sizes["pipeline"], 2 * spec.sizes["pipeline"])
    assert batch_size % (microbatches * spec.sizes.get("data", 1) * spec.sizes.get("fsdp", 1)) == 0


def test_infeasible_case_says_so_when_built() -> None:
    """Building a case that does not fit raises Infeasible with the numbers, before anything is compiled."""
    case = Case("tensor", MeshSpec.parse("tensor=3"), "nano", PRESETS["nano"], 8, 1, "float32", "dots")
    with pytest.raises(Infeasible, match="tensor=3 does not divide heads=8"):
        case.build()


def test_single_is_its_own_reference() -> None:
    """The reference of a case is `single` with the same global batch; the reference of `single` is itself."""
    fsdp = Case("fsdp", FSDP, "nano", PRESETS["nano"], 16, 2, "float32", "dots")
    assert str(fsdp) == "fsdp-fsdp=8-b16-microbatches=2"
    assert str(fsdp.single) == "single-data=1-b16"
    assert fsdp.single.single == fsdp.single
