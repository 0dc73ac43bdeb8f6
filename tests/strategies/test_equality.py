"""The first law: every strategy, on every legal mesh, computes what one device computes (bounds: equality.py)."""

import dataclasses
import itertools
import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.cases import distinct_meshes
from strategies import STRATEGIES, MeshSpec, TrainConfig
from strategies.mesh import AXES, first_devices
from strategies.model import attention, mlp, part
from tests.strategies.equality import CONFIG, ROUNDING, ROUNDOFF, TO_FLOAT32, TRAIN, assert_equal, single, train
from tests.strategies.quick import compiled
from tests.strategies.test_step import WIDEST

MESHES = [
    (name, mesh)
    for name, strategy in STRATEGIES.items()
    if name != "single"
    for devices in (2, 4, 8)
    for mesh in distinct_meshes(name, devices)
    if strategy.is_usual(mesh)
]
HARDEST = {name: WIDEST[name] for name in STRATEGIES if name != "single"} | {
    "three_d": MeshSpec.parse("data=2,pipeline=2,tensor=2")
}
"""Each strategy's own mesh with most devices and axes.

Eight devices give the hardest case: stages of one layer, tables with most padding, the longest ring, the longest sums.
Two axes are unequal, so a strategy that confuses them fails. `three_d` has all of its own axes here, and the others in
`COMBINATIONS` and `WIDEST`.
"""
COMBINATIONS = [
    ("data=2,fsdp=2,pipeline=2", {}),
    ("data=2,context=2,tensor=2", {"context_attention": "ulysses", "sequence_parallel": False}),
    ("fsdp=2,context=2,tensor=2", {}),
    ("pipeline=2,context=2,tensor=2", {}),
    ("fsdp=2,pipeline=2,tensor=2", {"gather": "step"}),
    ("fsdp=2,pipeline=2,context=2", {"schedule": "zb-h1", "remat": "full"}),
    ("pipeline=3,tensor=2", {}),
]
"""A sample of the other meshes of `three_d`: every pair of axes meets, and every way to split an axis occurs."""


def unless_hardest(name, mesh):
    """A case that runs with the factorisations only, unless the mesh is the strategy's hardest."""
    return pytest.param(name, mesh, marks=[pytest.mark.factorisations] * (mesh != HARDEST[name]))


@pytest.mark.parametrize(("name", "mesh"), [unless_hardest(*case) for case in MESHES], ids=str)
def test_equals_one_device(name, mesh):
    """Several AdamW steps on a mesh compute what one device computes, to float32 rounding."""
    microbatches = 4 if "pipeline" in mesh.sizes else 1
    assert_equal(train(name, mesh, microbatches=microbatches), single(), ROUNDING["float32"])


@pytest.mark.parametrize(
    ("name", "mesh"), [unless_hardest(name, mesh) for name, mesh in MESHES if name == "context"], ids=str
)
def test_equals_one_device_with_heads_exchanged_for_tokens(name, mesh):
    """Context parallelism with Ulysses attention computes what one device computes."""
    assert_equal(train(name, mesh, context_attention="ulysses"), single(), ROUNDING["float32"])


def test_each_strategy_has_a_hardest_mesh():
    """Each strategy has a hardest mesh, and no mesh has more devices, or as many and more axes."""
    assert {(name, mesh) for name, mesh in HARDEST.items()} <= set(MESHES)
    for name, mesh in MESHES:
        assert (HARDEST[name].size, len(HARDEST[name].axes)) >= (mesh.size, len(mesh.axes))


@pytest.mark.parametrize(("mesh", "options"), COMBINATIONS, ids=str)
def test_combinations_equal_one_device(mesh, options):
    """three_d on a sample of other meshes, however each axis is split, computes what one device computes."""
    mesh = MeshSpec.parse(mesh)
    mine = train("three_d", mesh, **{"microbatches": 4 if "pipeline" in mesh.sizes else 1, **options})
    assert_equal(mine, single(), ROUNDING["float32"])


def test_in_combinations_each_two_axes_meet():
    """The sample of combinations has every pair of axes."""
    meshes = [MeshSpec.parse(mesh).sizes for mesh, _ in COMBINATIONS]
    assert {pair for mesh in meshes for pair in itertools.combinations(mesh, 2)} == {*itertools.combinations(AXES, 2)}


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
        (name, options)
        for options in (
            {"dtype": "bfloat16"},
            {"remat": "full", "microbatches": 2, "tied": False},
            {"remat": "none", "unroll": 2, "logits_bytes": 2**14, "z_loss": 1e-2},
        )
        for name in STRATEGIES
        if name != "single"
    ]
    + [
        ("pipeline", {"dtype": "bfloat16", "reduce_dtype": "bfloat16", "microbatches": 4}),
        ("data", {"dtype": "bfloat16", "reduce_dtype": "bfloat16", "bucket_bytes": 10_000}),
    ]
    + [
        (name, {"sequence_parallel": False}) for name, each in STRATEGIES.items() if "sequence_parallel" in each.options
    ],
    ids=str,
)
def test_equals_one_device_with_every_option(name, options):
    """Strategies compute what one device computes in bfloat16, with remat and accumulation, untied, and unrolled.

    And what they compute in bfloat16 is what one device computes in float32, to the rounding of bfloat16.
    """
    reference = single(**{key: options[key] for key in options if key in ("dtype", "tied", "z_loss")})
    mine, dtype = train(name, WIDEST[name], **options), options.get("dtype", "float32")
    assert_equal(mine, reference, ROUNDING[dtype])
    if dtype != "float32":
        assert_equal(mine, single(), TO_FLOAT32[dtype])


def gradients(name, mesh, tokens, **options):
    """The loss and the gradients of a bfloat16 step at its initial weights."""
    spec, options = MeshSpec.parse(mesh), TrainConfig(len(tokens), dtype="bfloat16", **options)
    step = STRATEGIES[name].build(dataclasses.replace(CONFIG, layers=2), spec, options, first_devices(spec.size))
    key, batch = jax.random.key(0), step.place(tokens)
    state = compiled(step.init.lower(key))(key)
    found = compiled(step.gradients.lower(state, batch))(state, batch)
    return jax.tree.leaves(jax.tree.map(lambda x: np.asarray(x, np.float64), found))


@cache
def of_each_quarter():
    """Tokens, and the mean of the losses and gradients that one device computes for each quarter of them."""
    tokens = np.random.default_rng(0).integers(0, CONFIG.vocab, (TRAIN.batch_size, CONFIG.sequence + 1))
    parts = [gradients("single", "data=1", quarter) for quarter in np.split(tokens, 4)]
    return tokens, [np.mean(part, axis=0) for part in zip(*parts, strict=True)]


def apart(mine, expected):
    """The largest distance of two arrays, relative to the norm of the second, or of all if that is tiny."""
    whole = math.sqrt(sum(np.square(y).sum() for y in expected))
    return max(
        np.linalg.norm(x - y) / max(np.linalg.norm(y), 2**-12 * whole) for x, y in zip(mine, expected, strict=True)
    )


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("single", "data=1"),
        ("data", "data=4"),
        ("zero1", "data=4"),
        ("zero2", "data=4"),
        ("fsdp", "fsdp=4"),
        ("hsdp", "data=2,fsdp=2"),
        ("three_d", "data=4"),
    ],
)
def test_bfloat16_gradients_of_devices_are_summed_in_float32(name, mesh):
    """In bfloat16 the gradients of devices, or of microbatches on one device, are summed in float32.

    The same gradients summed in bfloat16 are caught.
    """
    tokens, expected = of_each_quarter()
    if name == "single":  # each microbatch has every fourth sequence
        turned = tokens.reshape(4, -1, tokens.shape[1]).swapaxes(0, 1).reshape(tokens.shape)
        assert apart(gradients(name, mesh, turned, microbatches=4), expected) < ROUNDING["float32"]
    else:
        assert apart(gradients(name, mesh, tokens), expected) < ROUNDING["float32"]
        planted = gradients(name, mesh, tokens, reduce_dtype="bfloat16")
        assert apart(planted, expected) > 10 * ROUNDING["float32"]


@pytest.mark.parametrize("dtype", ROUNDOFF)
def test_a_bfloat16_sum_of_gradients_is_caught(dtype, monkeypatch):
    """The checks fail if a bias gradient is summed over tokens in bfloat16, planted on one device.

    The check against the same dtype does, and so does that against float32.
    """
    reference, exact = single(dtype=dtype), single()

    def add_bias(x, bias):
        return (x + jnp.broadcast_to(bias.astype("bfloat16"), x.shape)).astype(x.dtype)

    for module in (attention, mlp, part):
        monkeypatch.setattr(module, "add_bias", add_bias)
    planted = train("single", MeshSpec.parse("data=1"), dtype=dtype)
    for expected, rounding in ((reference, ROUNDING[dtype]), (exact, TO_FLOAT32[dtype])):
        with pytest.raises(AssertionError):
            assert_equal(planted, expected, rounding)


def test_a_planted_error_is_caught():
    """The check fails if one weight in a thousand has a gradient that is 1% too large."""
    reference = single()
    wrong = jax.tree.map(np.copy, reference[2])
    wrong[0].optimizer[0].mu["blocks"]["attention"]["qkv_DCA"].flat[::1000] *= 1.01
    with pytest.raises(AssertionError):
        assert_equal((*reference[:2], wrong), reference, ROUNDING["float32"])
