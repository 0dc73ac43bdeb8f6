"""The laws of a step, each stated once: what it computes, sends, holds and needs, for all cases."""

import itertools

import pytest

from strategies import STRATEGIES, MeshSpec
from strategies.costs.predict import strategies_with_formulas
from strategies.mesh import all_axes
from tests.strategies.cases import DAILY, SLOW
from tests.strategies.checkpoints.variants import VARIANTS
from tests.strategies.formulas import compiled
from tests.strategies.laws import Case, hold, hold_formulas
from tests.strategies.meshes import HARDEST, SEVERAL
from tests.strategies.nightly_formulas import FORMULAS
from tests.strategies.nightly_laws import NIGHTLY
from tests.strategies.sampling import nightly

RESUMED = {(name, mesh) for name, mesh, _ in VARIANTS.values()}
"""Meshes on which checkpoints/test_checkpoints.py restores a step every day, and goes on as one device does."""


@pytest.mark.parametrize("case", [*DAILY, *nightly(*SLOW, *NIGHTLY)], ids=str)
def test_a_step_holds_all_laws(case: Case) -> None:
    """It computes what one device computes; its program, arguments and memory are those of the formulas."""
    hold(case)


@pytest.mark.factorisations
@pytest.mark.parametrize("fast", [True, False], ids=["quick", "as used"])
@pytest.mark.parametrize("case", [*FORMULAS, *DAILY, *SLOW], ids=str)
def test_a_compiled_program_is_what_formulas_say(case: Case, fast: bool) -> None:
    """However it is compiled; programs of the default matrix are held to the formulas by each run."""
    hold_formulas(case, *compiled(case.name, case.mesh, case.config, fast, **case.train))


def test_each_strategy_is_held_every_day_on_its_hardest_mesh() -> None:
    """It has a usual mesh of eight devices with most axes, and is trained on it here, or resumed."""
    for name in SEVERAL:
        usual = [mesh for mesh in STRATEGIES[name].meshes(8) if STRATEGIES[name].is_usual(mesh)]
        assert HARDEST[name] in usual
        assert len(HARDEST[name].axes) == max(len(mesh.axes) for mesh in usual)
    assert {(name, str(mesh)) for name, mesh in HARDEST.items()} <= {(each.name, each.mesh) for each in DAILY} | RESUMED
    stated = {*STRATEGIES} - {"auto"}
    assert {*strategies_with_formulas()} == stated == {case.name for case in [*DAILY, *FORMULAS] if case.has_formulas}


def test_every_day_each_two_axes_meet() -> None:
    """The meshes of three_d have every pair of axes."""
    meshes = [
        MeshSpec.parse(mesh) for name, mesh in {(each.name, each.mesh) for each in DAILY} | RESUMED if name == "three_d"
    ]
    pairs = {pair for mesh in meshes for pair in itertools.combinations(mesh.sizes, 2)}
    assert pairs >= {*itertools.combinations([axis for axis in all_axes() if axis != "expert"], 2)}
