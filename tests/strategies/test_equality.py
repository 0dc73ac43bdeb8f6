"""The first law: every strategy, on every legal mesh, computes what one device computes (bounds: equality.py)."""

import itertools

import jax
import numpy as np
import pytest

from strategies import STRATEGIES, MeshSpec
from strategies.mesh import all_axes
from strategies.registry import distinct_meshes
from tests.strategies.checkpoints.variants import VARIANTS
from tests.strategies.equality import OF_MODEL, ROUNDING, assert_equal, single, train
from tests.strategies.sampling import nightly
from tests.strategies.test_step import WIDEST

SEVERAL = [name for name in STRATEGIES if name != "single"]
USUAL = {
    name: [mesh for n in (2, 4, 8) for mesh in distinct_meshes(name, n) if STRATEGIES[name].is_usual(mesh)]
    for name in SEVERAL
}
MESHES = [(name, mesh) for name in SEVERAL for mesh in dict.fromkeys([*USUAL[name], WIDEST[name]])]
HARDEST = {name: max(meshes, key=lambda mesh: (mesh.size, len(mesh.axes))) for name, meshes in USUAL.items()}
"""Each strategy's usual mesh with most devices, and of those with most axes; the first of several.

Eight devices give the hardest case: stages of one layer, tables with most padding, the longest ring, the longest sums.
Two axes are unequal, so a strategy that confuses them fails. `three_d` has all of its own axes here, and the others in
`COMBINATIONS` and `WIDEST`; `zero1` has the axis `expert` in `VARIANTS`.
"""
COMBINATIONS = [
    ("data=2,fsdp=2,context=2", {}),
    ("data=2,context=2,tensor=2", {"context_attention": "ulysses", "sequence_parallel": False}),
    ("pipeline=2,context=2,tensor=2", {}),
]
"""A sample of the other meshes of `three_d`: with its hardest mesh and those of `RESUMED`, every pair of axes meets."""
MORE_COMBINATIONS = [
    ("data=2,fsdp=2,pipeline=2", {}),
    ("fsdp=2,context=2,tensor=2", {}),
    ("pipeline=3,tensor=2", {}),
    ("fsdp=2,pipeline=2,tensor=2", {"gather": "step"}),
    ("fsdp=2,pipeline=2,context=2", {"schedule": "zb-h1", "remat": "full"}),
]
OPTIONS = (
    {"remat": "full", "microbatches": 2, "tied": False},
    {"remat": "none", "unroll": 2, "logits_bytes": 2**14, "z_loss": 1e-2},
)
RESUMED = {(name, MeshSpec.parse(mesh)) for name, mesh, _ in VARIANTS.values()}
"""Meshes on which checkpoints/test_checkpoints.py restores a step every day.

It compares the steps after with those of one device: for the variants of its `PAIRS` every day, for all at night.
"""
WITH_OPTIONS = [(name, OPTIONS[i % 2]) for i, name in enumerate(SEVERAL)]
"""Each strategy with one set of options, of which one runs every day; the others are for the night."""


def unless_hardest(name, mesh):
    """A case that runs every day if the mesh is the strategy's hardest, and not one of `RESUMED`."""
    daily = mesh == HARDEST[name] and (name, mesh) not in RESUMED
    return (name, mesh) if daily else nightly((name, mesh))[0]


@pytest.mark.parametrize(("name", "mesh"), [unless_hardest(*case) for case in MESHES], ids=str)
def test_equals_one_device(name, mesh):
    """Several AdamW steps on a mesh compute what one device computes, to float32 rounding."""
    microbatches = 4 if "pipeline" in mesh.sizes else 1
    assert_equal(train(name, mesh, microbatches=microbatches), single(), ROUNDING["float32"])


@pytest.mark.parametrize(
    ("name", "mesh"),
    [(name, mesh) if mesh == HARDEST[name] else nightly((name, mesh))[0] for name, mesh in MESHES if name == "context"],
    ids=str,
)
def test_equals_one_device_with_heads_exchanged_for_tokens(name, mesh):
    """Context parallelism with Ulysses attention computes what one device computes."""
    assert_equal(train(name, mesh, context_attention="ulysses"), single(), ROUNDING["float32"])


def test_each_strategy_has_a_hardest_mesh():
    """Each strategy has a usual mesh of eight devices with most axes, and every day it is trained here or resumed."""
    for name in SEVERAL:
        usual = [mesh for mesh in STRATEGIES[name].meshes(8) if STRATEGIES[name].is_usual(mesh)]
        assert HARDEST[name] in usual
        assert len(HARDEST[name].axes) == max(len(mesh.axes) for mesh in usual)
    daily = {case for case in MESHES if unless_hardest(*case) == case}
    assert {*HARDEST.items()} <= daily | RESUMED


@pytest.mark.parametrize(("mesh", "options"), [*COMBINATIONS, *nightly(*MORE_COMBINATIONS)], ids=str)
def test_combinations_equal_one_device(mesh, options):
    """three_d on a sample of other meshes, however each axis is split, computes what one device computes."""
    mesh = MeshSpec.parse(mesh)
    mine = train("three_d", mesh, **{"microbatches": 4 if "pipeline" in mesh.sizes else 1, **options})
    assert_equal(mine, single(), ROUNDING["float32"])


def test_in_combinations_each_two_axes_meet():
    """The meshes of three_d that are tested every day have every pair of axes; of `expert`, test_expert.py at night."""
    meshes = [HARDEST["three_d"], *(mesh for name, mesh in RESUMED if name == "three_d")]
    meshes += [MeshSpec.parse(mesh) for mesh, _ in COMBINATIONS]
    pairs = {pair for mesh in meshes for pair in itertools.combinations(mesh.sizes, 2)}
    assert pairs == {*itertools.combinations([axis for axis in all_axes() if axis != "expert"], 2)}


@pytest.mark.factorisations
@pytest.mark.parametrize(
    ("name", "mesh"), [(name, mesh) for name in ("hsdp", "three_d") for mesh in STRATEGIES[name].meshes(8)], ids=str
)
def test_every_factorisation_equals_one_device(name, mesh):
    """On every factorisation of eight devices, hsdp and three_d compute what one device computes."""
    microbatches = 4 if "pipeline" in mesh.sizes else 1
    assert_equal(train(name, mesh, microbatches=microbatches), single(), ROUNDING["float32"])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(case if case[0] == "fsdp" else nightly(case)[0] for case in WITH_OPTIONS),
        *nightly(("tensor", {"sequence_parallel": False})),
        *nightly(*((name, OPTIONS[1 - i % 2]) for i, name in enumerate(SEVERAL))),
        *nightly(
            *(
                (name, {"sequence_parallel": False})
                for name in SEVERAL
                if "sequence_parallel" in STRATEGIES[name].options and name != "tensor"
            )
        ),
    ],
    ids=str,
)
def test_equals_one_device_with_every_option(name, options):
    """Strategies compute what one device computes with remat and accumulation, untied, and unrolled."""
    reference = single(**{key: options[key] for key in options if key in ("z_loss", *OF_MODEL)})
    assert_equal(train(name, WIDEST[name], **options), reference, ROUNDING["float32"])


def test_a_planted_error_is_caught():
    """The check fails if one weight in a thousand has a gradient that is 1% too large."""
    reference = single()
    wrong = jax.tree.map(np.copy, reference[2])
    wrong[0].optimizer[0].mu["blocks"]["attention"]["qkv_DCA"].flat[::1000] *= 1.01
    with pytest.raises(AssertionError):
        assert_equal((*reference[:2], wrong), reference, ROUNDING["float32"])
