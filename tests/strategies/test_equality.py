"""The first law: every strategy, on every legal mesh, computes what one device computes.

Why the bounds are what they are. Spreading a step changes no operation, only the order in which sums are added up:
over the batch (data, fsdp), over a contracted dim (tensor), over the keys of a sequence (context), over microbatches
(pipeline), over the vocabulary.
A sum of n float32 terms in another order differs by about sqrt(n) u, with u = 2^-24, relative to the norm of its
terms (Higham & Mary 2019, theorem 2.4). Along the longest path, forward and back, some 12 such operations a layer each
way follow each other, and their errors add up. `ROUNDING` is that, for the loss and for each gradient in its norm.
Gradients are the first moments of AdamW after one step, divided by 1 - beta1: they are clipped as the step clips them.

AdamW divides each gradient by its own size, so an element much smaller than its array's largest carries that much more
relative error, up to a step of the other sign: each step may carry a parameter lr min(2, 2 error / size) apart. The
bias of the keys has only such elements, its true gradient being zero: softmax does not see what all scores share.

In bfloat16, u = 2^-9 and each operation rounds its result, whatever the order of its float32 sums. A rounding is
uniform within u of the power of two below a number, so relative to numbers whose mantissas are log-uniform on [1, 2)
(Knuth, "The Art of Computer Programming", section 4.2.4) its root mean square is u sqrt(1/3 x 3 / (8 ln 2)) = 0.425 u.
Roundings are independent: over a path of d operations they add up to sqrt(d) times that, and two runs that round at
different places stand apart by sqrt(2) times as much. Norms of arrays have that size and not more, for they are means
over many elements; 0.53 of the bound is the most that was seen. It holds only if long sums are made in float32: the
gradient of a bias, summed over 256 tokens in bfloat16, is off by 1.3 times the bound.

What devices sum is no rounding of that kind: each computes the gradients of its sequences as one device does, and their
sum is held to the bound of float32 (`test_bfloat16_gradients_of_devices_are_summed_in_float32`).
"""

import dataclasses
import itertools
import math
from functools import cache, partial

import jax
import numpy as np
import pytest
from jax.experimental.multihost_utils import process_allgather

from benchmarks.cases import distinct_meshes
from strategies import PRESETS, STRATEGIES, MeshSpec, TrainConfig
from strategies.mesh import AXES, first_devices
from strategies.model import attention, mlp, part
from tests.strategies.quick import compiled
from tests.strategies.test_step import WIDEST

STEPS = 3
# 257 is prime, so every strategy that splits the vocabulary pads it.
CONFIG = dataclasses.replace(PRESETS["nano"], embed=32, sequence=16, vocab=257)
TRAIN = TrainConfig(batch_size=16)
OF_MODEL = ("tied", "attention_window", "attention_stride", "attention_pattern")
"""Options that change what one device computes, too."""
DEPTH = 2 * 12 * CONFIG.layers
TERMS = max(TRAIN.batch_size * CONFIG.sequence, CONFIG.vocab, CONFIG.mlp_dim)
ROUNDING = {"float32": DEPTH * math.sqrt(TERMS) * 2**-24, "bfloat16": math.sqrt(2 * DEPTH / (8 * math.log(2))) * 2**-9}

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


def train(name, mesh, **options):
    """Train a few steps: losses, gradient norms, and the state after each step on the host, without padding."""
    of_model = {key: options.pop(key) for key in [*options] if key in OF_MODEL}
    config, options = dataclasses.replace(CONFIG, **of_model), dataclasses.replace(TRAIN, **options)
    step = STRATEGIES[name].build(config, mesh, options, first_devices(mesh.size))
    key = jax.random.key(0)
    state, update = compiled(step.init.lower(key))(key), compiled(step.lower())
    losses, norms, states = [], [], []
    for seed in range(STEPS):
        tokens = np.random.default_rng(seed).integers(0, CONFIG.vocab, step.batch.shape).astype(np.int32)
        state, metrics = update(state, step.place(tokens))
        losses.append(float(metrics["loss"]))
        norms.append(float(metrics["grad_norm"]))
        states.append(jax.tree.map_with_path(partial(ordered, step.layer_slots), state))
    return np.array(losses), np.array(norms), states


def ordered(places, path, x):
    """An array on the host: tables without padding, which must be zero, and stacked blocks in the model's order."""
    x = np.array(x if x.is_fully_addressable else process_allgather(x, tiled=True), np.float64)
    if places and jax.tree_util.DictKey("blocks") in path:
        assert all((layer == 0).all() for place, layer in zip(places, x, strict=True) if place < 0)
        return x[[places.index(layer) for layer in range(CONFIG.layers)]]
    if x.ndim == 2 and x.shape[0] > CONFIG.vocab:
        assert (x[CONFIG.vocab :] == 0).all()
        return x[: CONFIG.vocab]
    return x


@cache
def single(**options):
    """The reference: `single` on one device."""
    return train("single", MeshSpec.parse("data=1"), **options)


def assert_equal(mine, reference, rounding):
    """Compare losses, norms, gradients and parameters, each with its own bound."""
    for measured, expected in zip(mine[:2], reference[:2], strict=True):
        np.testing.assert_allclose(measured, expected, rtol=rounding)
    moments, expected_moments = mine[2][0].optimizer[0].mu, reference[2][0].optimizer[0].mu
    whole = math.sqrt(sum(np.square(g).sum() for g in jax.tree.leaves(expected_moments)))
    for gradient, expected in zip(jax.tree.leaves(moments), jax.tree.leaves(expected_moments), strict=True):
        # A norm below the rounding of the whole gradient is itself rounding.
        assert np.linalg.norm(gradient - expected) <= rounding * max(np.linalg.norm(expected), 2**-12 * whole)
    params, expected_params = mine[2][-1].params, reference[2][-1].params
    drifts = jax.tree.map(
        lambda *second_moments: drift(rounding, second_moments), *(state.optimizer[0].nu for state in reference[2])
    )
    for param, expected, bound in zip(*map(jax.tree.leaves, (params, expected_params, drifts)), strict=True):
        assert (np.abs(param - expected) <= bound + 2**-23 * np.abs(expected)).all()


def drift(rounding, second_moments):
    """How far AdamW may drive two runs apart, element by element, whose gradients agree to `rounding`."""
    total = 0
    for step, moment in enumerate(second_moments, start=1):
        size = np.sqrt(moment / (1 - TRAIN.beta2**step))
        total += TRAIN.learning_rate * np.minimum(2, 2 * rounding * size.max() / (size + TRAIN.epsilon))
    return total


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
    """Strategies compute what one device computes in bfloat16, with remat and accumulation, untied, and unrolled."""
    reference = single(**{key: options[key] for key in options if key in ("dtype", "z_loss", *OF_MODEL)})
    assert_equal(train(name, WIDEST[name], **options), reference, ROUNDING[options.get("dtype", "float32")])


def gradients(name, mesh, tokens, **options):
    """The loss and the gradients of a bfloat16 step at its initial weights."""
    spec, options = MeshSpec.parse(mesh), TrainConfig(len(tokens), dtype="bfloat16", **options)
    step = STRATEGIES[name].build(dataclasses.replace(CONFIG, layers=2), spec, options, first_devices(spec.size))
    key, batch = jax.random.key(0), step.place(tokens)
    params = compiled(step.init.lower(key))(key).params
    found = compiled(step.gradients.lower(params, batch))(params, batch)
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


def test_a_bfloat16_sum_of_gradients_is_caught(monkeypatch):
    """The check fails if a bias gradient is summed over tokens in bfloat16, planted on one device."""
    reference = single(dtype="bfloat16")
    for module in (attention, mlp, part):
        monkeypatch.setattr(module, "add_bias", lambda x, bias: x + bias.astype(x.dtype))
    with pytest.raises(AssertionError):
        assert_equal(train("single", MeshSpec.parse("data=1"), dtype="bfloat16"), reference, ROUNDING["bfloat16"])


def test_a_planted_error_is_caught():
    """The check fails if one weight in a thousand has a gradient that is 1% too large."""
    reference = single()
    wrong = jax.tree.map(np.copy, reference[2])
    wrong[0].optimizer[0].mu["blocks"]["attention"]["qkv_DCA"].flat[::1000] *= 1.01
    with pytest.raises(AssertionError):
        assert_equal((*reference[:2], wrong), reference, ROUNDING["float32"])
