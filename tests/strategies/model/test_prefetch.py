"""Weights that are gathered one layer ahead: the same numbers, gathered in the iteration before."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.extend.core import Var

from strategies import STRATEGIES, MeshSpec, TrainConfig
from tests.strategies.costs.steps import ODD, SMALL, UNTIED, cost
from tests.strategies.equality import ROUNDING, assert_equal, single, train
from tests.strategies.quick import compiled
from tests.strategies.sampling import nightly

CASES = [
    ("fsdp", "fsdp=4", {"remat": "full", "unroll": 2, "tied": False}),
    *nightly(
        (
            "three_d",
            "fsdp=2,context=2,tensor=2",
            {"context_attention": "ulysses", "sequence_parallel": False, "microbatches": 2},
        ),
        ("hsdp", "data=2,fsdp=4", {"remat": "full", "reduce": "layer"}),
        ("fsdp", "fsdp=2", {"remat": "none", "microbatches": 2}),
        ("fsdp", "fsdp=8", {}),
        ("fsdp", "fsdp=4", {"dtype": "bfloat16"}),
        ("three_d", "data=2,fsdp=2,tensor=2", {"reduce": "layer"}),
        ("three_d", "fsdp=2,context=2,tensor=2", {"remat": "full"}),
    ),
]


@pytest.mark.parametrize(("name", "mesh", "options"), CASES, ids=str)
def test_prefetch_equals_one_device(name, mesh, options):
    """A step that gathers weights one layer ahead computes what one device computes."""
    reference = single(**{key: options[key] for key in options if key in ("dtype", "tied")})
    mine = train(name, MeshSpec.parse(mesh), prefetch="on", **options)
    assert_equal(mine, reference, ROUNDING[options.get("dtype", "float32")])


def bodies(program):
    """The bodies of all loops of a program."""
    for equation in program.eqns:
        for part in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            part = getattr(part, "jaxpr", part)
            if hasattr(part, "eqns"):
                yield from [part] if equation.primitive.name == "scan" else bodies(part)


def follow(program, tainted, source, sink):
    """Follow results through a program, also into the functions that it calls.

    Args:
        program: without loops.
        tainted: for each input, whether it is followed.
        source: name of a primitive whose results are followed.
        sink: name of a primitive.

    Returns:
        For each output, whether it depends on what is followed; how many sources there are; and how many sinks that
        take what is followed.
    """
    known, sources, sinks = dict(zip(program.invars, tainted, strict=True)), 0, 0
    for equation in program.eqns:
        name, inputs = equation.primitive.name, [isinstance(x, Var) and known.get(x, False) for x in equation.invars]
        part = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        outputs = [any(inputs) or name == source] * len(equation.outvars)
        if part is not None:
            outputs, more, deeper = follow(getattr(part, "jaxpr", part), inputs, source, sink)
            sources, sinks = sources + more, sinks + deeper
        sources += name == source
        sinks += name == sink and any(inputs)
        known.update(zip(equation.outvars, outputs, strict=True))
    return [isinstance(x, Var) and known.get(x, False) for x in program.outvars], sources, sinks


@pytest.mark.parametrize("prefetch", ["on", "off"])
def test_an_iteration_communicates_for_its_neighbours(prefetch):
    """With prefetch=on no matmul of a loop takes what the same iteration gathers, and no reduce-scatter what it
    multiplies. Otherwise some do.

    Both loops gather: the forward and the backward one, whose recomputation needs the weights again.
    """
    built = STRATEGIES["fsdp"].build(ODD, "fsdp=8", TrainConfig(16, remat="full", prefetch=prefetch))
    program = jax.make_jaxpr(built.gradients)(built.state, built.batch)
    loops = [body for body in bodies(program.jaxpr) if body.eqns]

    def counted(source, sink):
        return [follow(body, [False] * len(body.invars), source, sink)[1:] for body in loops]

    gathers, products = counted("all_gather", "dot_general"), counted("dot_general", "reduce_scatter")
    assert len(loops) == 2
    assert all(count > 0 for count, _ in (*gathers, *products))
    assert [late == 0 for _, late in gathers] == [prefetch == "on"] * 2
    assert (sum(late for _, late in products) == 0) == (prefetch == "on")


@pytest.mark.parametrize(("microbatches", "waits"), [(1, False), (2, True)])
def test_gathers_of_both_ends_wait_for_no_layer(microbatches, waits):
    """With prefetch=on no gather takes what a matmul gave, also of embedding and head: compilers may begin each
    ahead. With several microbatches the gathers before the two loops wait (`is_ordered`).
    """
    train = TrainConfig(16, remat="full", prefetch="on", microbatches=microbatches)
    built = STRATEGIES["fsdp"].build(UNTIED, "fsdp=8", train)
    program = jax.make_jaxpr(built.gradients)(built.state, built.batch).jaxpr
    _, products, gathers = follow(program, [False] * len(program.invars), "dot_general", "all_gather")
    assert products > 0
    assert (gathers > 0) == waits


@pytest.mark.factorisations
@pytest.mark.parametrize("layers", [2, 3])
def test_few_layers_are_gathered_ahead_too(layers):
    """With loops of no or one iteration, and sums over replicas in them, gradients are those without prefetch."""
    config = dataclasses.replace(SMALL, layers=layers)
    found = []
    for prefetch in ("on", "off"):
        options = TrainConfig(16, remat="full", reduce="layer", prefetch=prefetch)
        built = STRATEGIES["hsdp"].build(config, "data=2,fsdp=4", options)
        tokens = np.random.default_rng(0).integers(0, config.vocab, built.batch.shape).astype(np.int32)
        state = compiled(built.init.lower(jax.random.key(0)))(jax.random.key(0))
        lowered = built.gradients.lower(built.state, built.batch)
        found.append(compiled(lowered)(state, built.place(tokens)))
    for mine, expected in zip(*map(jax.tree.leaves, found), strict=True):
        assert np.linalg.norm(expected) > 0
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("remat", ["none", "full"])
def test_the_last_layer_is_gathered_once(remat):
    """The formula of gathers again counts one layer less."""
    on, off = (cost("fsdp", "fsdp=8", ODD, remat=remat, prefetch=prefetch) for prefetch in ("on", "off"))
    again = ("all_gather", ("fsdp",))
    less = off.sent[again]["weights again"] - on.sent[again]["weights again"]
    assert less * ODD.layers == off.sent[again]["weights again"] > 0
    assert on.sent[again]["weights"] == off.sent[again]["weights"]


def test_evaluation_keeps_no_residuals():
    """A forward pass alone holds the weights of one layer more than without prefetch, and no residuals of layers."""
    config = dataclasses.replace(SMALL, layers=8, sequence=128)
    held = []
    for prefetch in ("on", "off"):
        built = STRATEGIES["fsdp"].build(config, "fsdp=8", TrainConfig(8, remat="none", prefetch=prefetch))
        memory = compiled(built.evaluation.lower(built.state.params, built.batch)).memory_analysis()
        assert memory
        held.append(memory.temp_size_in_bytes)
    layer = sum(x.dtype.itemsize * x.size // config.layers for x in jax.tree.leaves(built.state.params["blocks"]))
    assert held[0] - held[1] < 1.5 * layer < config.layers * 4 * config.sequence * config.embed
